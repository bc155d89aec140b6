"""Methods that quantize part of the weights permanently, a growing portion of them, and train the others.

    W = Ŵ for the portion of the largest weights, θ elsewhere
    portions 0.5, 0.75, 0.875 at the start, after one and two thirds of the training; 1 at its end

Incremental Network Quantization with two bits: Ŵ = ±a where |θ| ≥ a/2, else 0;  a = 2ⁿ, n = ⌊log₂(4/3 · max |θ|)⌋ of
the layer at the start. Zhou, Yao, Guo, Xu & Chen, Incremental Network Quantization: Towards Lossless CNNs with
Low-Precision Weights, 2017. Two bits leave one power of two. The portions are those of its five-bit ResNet-18; its
two-bit networks use more of them.

Explicit Loss-error-aware Quantization (the published objective, our constants): the loss includes its change by
quantization and the distance of the weights from quantized ones.

    minimize L(W) + a₁ |L(W) - L(Ŵ)| + a₂ Σ (W - Ŵ)²,  Ŵ = ±a where |θ| > Δ, else 0

L(Ŵ) takes a second forward pass at every step, with all weights quantized; ∂Ŵ/∂θ = 1 where θ is free. Δ and a are TWN's
of the layer at the start. a₁ = ½ and the portions, INQ's, are our choice; a₂ is searched. Zhou, Yao, Wang & Chen,
Explicit Loss-Error-Aware Quantization for Low-Bit Deep Neural Networks, 2018.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights
from sca_search.ternary.methods.thresholds import twn_levels
from sca_search.ternary.parametrize import straight_through, trits_at

_PORTIONS = (0.5, 0.75, 0.875)
_LOSS_FACTOR = 0.5  # a₁ of ELQ


class Incremental(Quantizer):
    scale: Tensor
    threshold: Tensor  # of |θ|, below which a quantized weight is 0
    fixed: Tensor

    def __init__(self, spread: float | None, channel: int | None) -> None:
        super().__init__(spread, channel)
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("threshold", torch.zeros(()))

    def begin(self, latent: Tensor) -> None:
        self.register_buffer("fixed", torch.zeros_like(latent, dtype=torch.bool))
        scale, threshold = self.first_levels(latent)
        self.scale.copy_(scale)
        self.threshold.copy_(threshold)

    def first_levels(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """The scale and the threshold, by the latents at the start."""
        raise NotImplementedError

    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(trits_at(latent, self.threshold), self.scale.clone())

    def soft(self, latent: Tensor) -> Tensor:
        if not hasattr(self, "fixed"):  # while it is being registered
            return latent
        return torch.where(self.fixed, as_weights(self.levels(latent.detach())), latent)

    def update(self, latent: Tensor, elapsed: float) -> None:
        """Fix the largest free weights, up to the current portion of all weights, and set the fixed ones to Ŵ."""
        portion = _PORTIONS[min(int(elapsed * len(_PORTIONS)), len(_PORTIONS) - 1)]
        missing = round(portion * latent.numel()) - int(self.fixed.sum())
        if missing > 0:
            free = torch.where(self.fixed, -1.0, latent.abs()).flatten()
            chosen = torch.zeros_like(free, dtype=torch.bool).index_fill(0, free.topk(missing).indices, True)
            self.fixed.logical_or_(chosen.view(latent.shape))  # for any memory layout
        latent.copy_(self.soft(latent))  # the optimizer's momentum moves them without a gradient


class Inq(Incremental):
    def first_levels(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        largest = float(latent.abs().max())
        scale = latent.new_tensor(2.0 ** math.floor(math.log2(4.0 * largest / 3.0)) if largest > 0 else 1.0)
        return scale, torch.nextafter(scale / 2, scale.new_zeros(()))  # the border itself is not a zero


class LossErrorAware(Incremental):
    has_regularizer = True
    all_quantized = False  # whether the free weights are quantized as well, in the second forward pass

    def first_levels(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        return twn_levels(latent)

    def soft(self, latent: Tensor) -> Tensor:
        weight = super().soft(latent)
        if not self.all_quantized:
            return weight
        return straight_through(as_weights(self.levels(latent.detach())), weight)

    def regularizer(self, latent: Tensor) -> Tensor:
        return (super().soft(latent) - as_weights(self.levels(latent.detach()))).square().sum()


class Elq(Quantized):
    quantizer = LossErrorAware

    def second_pass(self, loss: Tensor, again: Callable[[], Tensor]) -> Tensor:
        self._quantize_all(True)
        try:
            return _LOSS_FACTOR * (loss - again()).abs()
        finally:
            self._quantize_all(False)

    def _quantize_all(self, all_quantized: bool) -> None:
        for quantizer in self.quantizers.values():
            assert isinstance(quantizer, LossErrorAware)
            quantizer.all_quantized = all_quantized
