"""Incremental Network Quantization with two bits: quantizes part of the weights permanently and trains the others.

    a = 2ⁿ,  n = ⌊log₂(4/3 · max |θ|)⌋ of the layer at the start
    W = ±a where |θ| ≥ a/2, else 0, for the portion of the largest weights; θ elsewhere
    portions 0.5, 0.75, 0.875 at the start, after one and two thirds of the training; 1 at its end

Zhou, Yao, Guo, Xu & Chen, Incremental Network Quantization: Towards Lossless CNNs with Low-Precision Weights, 2017. Two
bits leave one power of two. The portions are those of its five-bit ResNet-18; its two-bit networks use more of them.
"""

import math

import torch
from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights
from sca_search.ternary.parametrize import trits_at

_PORTIONS = (0.5, 0.75, 0.875)


class Incremental(Quantizer):
    scale: Tensor
    fixed: Tensor

    def __init__(self, spread: float | None, channel: int | None) -> None:
        super().__init__(spread, channel)
        self.register_buffer("scale", torch.ones(()))

    def begin(self, latent: Tensor) -> None:
        largest = float(latent.abs().max())
        self.scale.fill_(2.0 ** math.floor(math.log2(4.0 * largest / 3.0)) if largest > 0 else 1.0)
        self.register_buffer("fixed", torch.zeros_like(latent, dtype=torch.bool))

    def levels(self, latent: Tensor) -> ScaledTrits:
        half = torch.nextafter(self.scale / 2, self.scale.new_zeros(()))  # the border itself is not a zero
        return ScaledTrits(trits_at(latent, half), self.scale.clone())

    def soft(self, latent: Tensor) -> Tensor:
        if not hasattr(self, "fixed"):  # while it is being registered
            return latent
        return torch.where(self.fixed, as_weights(self.levels(latent.detach())), latent)

    def update(self, latent: Tensor, elapsed: float) -> None:
        """Fix the largest free weights, up to the current portion of all weights."""
        portion = _PORTIONS[min(int(elapsed * len(_PORTIONS)), len(_PORTIONS) - 1)]
        missing = round(portion * latent.numel()) - int(self.fixed.sum())
        if missing > 0:
            free = torch.where(self.fixed, -1.0, latent.abs()).flatten()
            chosen = torch.zeros_like(free, dtype=torch.bool).index_fill(0, free.topk(missing).indices, True)
            self.fixed.logical_or_(chosen.view(latent.shape))  # for any memory layout


class Inq(Quantized):
    quantizer = Incremental
