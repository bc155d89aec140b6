"""BNN+'s two regularizers, as the paper extends them to three values, with the straight-through estimator.

    R₁ = Σ |a - |θ|| · |θ|,   R₂ = Σ (a - |θ|)² · θ²
    W = a · round(clip(θ/a, -1, 1)), a learned, one a layer;  ∂W/∂θ = 1

Darabi, Belbahri, Courbariaux & Nia, BNN+: Improved Binary Network Training, 2018 (without the factor |θ| or θ² there).
a starts at the mean magnitude.
"""

import torch
from torch import Tensor, nn

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer
from sca_search.ternary.parametrize import nearest_trits

_SMALLEST = 1e-3  # a scale must not reach 0 or change its sign


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


class FirstPull(LearnedScale):
    def pull(self, latent: Tensor) -> Tensor:
        magnitude = latent.abs()
        return ((self.scale - magnitude).abs() * magnitude).sum()


class SecondPull(LearnedScale):
    def pull(self, latent: Tensor) -> Tensor:
        return ((self.scale - latent.abs()).square() * latent.square()).sum()


class BnnPlusL1(Quantized):
    quantizer = FirstPull
    has_pull = True


class BnnPlusL2(Quantized):
    quantizer = SecondPull
    has_pull = True
