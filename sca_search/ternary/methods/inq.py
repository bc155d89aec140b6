"""Incremental Network Quantization with two bits: part of the weights is quantized for good, the others train on.

    a = 2ⁿ,  n = ⌊log₂(4/3 · max |θ|)⌋ of the layer at the start
    W = ±a where |θ| ≥ a/2, else 0, for the largest weights that make up a portion; θ elsewhere
    portions 0.5, 0.75, 0.875 at the start, after one and two thirds of the training; 1 at its end

Zhou, Yao, Guo, Xu & Chen, Incremental Network Quantization: Towards Lossless CNNs with Low-Precision Weights, 2017. Two
bits leave one power of two. The portions are those of its ResNet-18 of five bits; what it trains with two bits takes
more of them.
"""

import math

import torch
from torch import Tensor

from sca_search.config.schedule import elapsed_fraction
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights, beyond

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
        half = torch.nextafter(self.scale / 2, self.scale.new_zeros(()))  # the border itself is no zero
        return ScaledTrits(beyond(latent, half), self.scale.clone())

    def soft(self, latent: Tensor) -> Tensor:
        if not hasattr(self, "fixed"):  # while it is put on
            return latent
        return torch.where(self.fixed, as_weights(self.levels(latent.detach())), latent)

    @torch.no_grad()
    def fix(self, latent: Tensor, portion: float) -> None:
        """Up to a portion of all weights, the largest of the free ones join the fixed."""
        missing = round(portion * latent.numel()) - int(self.fixed.sum())
        if missing > 0:
            free = torch.where(self.fixed, -1.0, latent.abs()).flatten()
            chosen = torch.zeros_like(free, dtype=torch.bool).index_fill(0, free.topk(missing).indices, True)
            self.fixed.logical_or_(chosen.view(latent.shape))  # whatever order the weights have in memory


class Inq(Quantized):
    quantizer = Incremental

    def update(self, epoch: float) -> None:
        share = elapsed_fraction(epoch, self.candidate.epochs)
        step = min(int(share * len(_PORTIONS)), len(_PORTIONS) - 1)
        for name, quantizer in self.quantizers().items():
            assert isinstance(quantizer, Incremental)
            quantizer.fix(self.latents()[name], _PORTIONS[step])
