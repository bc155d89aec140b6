"""Regularizers of binary networks, as the paper extends them to three values, with the straight-through estimator.

Tang: R = Σ (1 - θ²) θ²;  W = round(clip(θ, -1, 1));  ∂W/∂θ = 1. Tang, Hua & Wang, How to Train a Compact Binary Neural
Network with High Accuracy?, 2017 (R = Σ 1 - θ² there).

BNN+: R₁ = Σ |a - |θ|| · |θ|,   R₂ = Σ (a - |θ|)² · θ²;  W = a · round(clip(θ/a, -1, 1)), a learned per layer, which
starts at the mean magnitude;  ∂W/∂θ = 1. Darabi, Belbahri, Courbariaux & Nia, BNN+: Improved Binary Network Training,
2018 (there without the factor |θ| or θ²).
"""

import torch
from torch import Tensor, nn

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer
from sca_search.ternary.parametrize import nearest_trits

_SMALLEST = 1e-3  # a scale must stay positive


class RegularizedTrits(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(nearest_trits(latent))

    def regularizer(self, latent: Tensor) -> Tensor:
        square = latent.clamp(-1.0, 1.0).square()  # beyond ±1 R is unbounded below
        return ((1.0 - square) * square).sum()


class Tang(Quantized):
    quantizer = RegularizedTrits
    has_regularizer = True


class LearnedScale(Quantizer):
    def __init__(self, spread: float | None, channel: int | None) -> None:
        super().__init__(spread, channel)
        self.learned = nn.Parameter(torch.ones(()))

    @property
    def scale(self) -> Tensor:
        return self.learned.clamp(min=_SMALLEST)

    def begin(self, latent: Tensor) -> None:
        self.learned.data.fill_(float(latent.abs().mean()))

    def levels(self, latent: Tensor) -> ScaledTrits:
        scale = self.scale.detach()
        return ScaledTrits(nearest_trits(latent / scale), scale.clone())

    def soft(self, latent: Tensor) -> Tensor:
        trits = nearest_trits(latent.detach() / self.scale.detach())
        return self.scale * trits + latent - latent.detach()


class L1Regularized(LearnedScale):
    def regularizer(self, latent: Tensor) -> Tensor:
        magnitude = latent.abs()
        return ((self.scale - magnitude).abs() * magnitude).sum()


class L2Regularized(LearnedScale):
    def regularizer(self, latent: Tensor) -> Tensor:
        return ((self.scale - latent.abs()).square() * latent.square()).sum()


class BnnPlusL1(Quantized):
    quantizer = L1Regularized
    has_regularizer = True


class BnnPlusL2(Quantized):
    quantizer = L2Regularized
    has_regularizer = True
