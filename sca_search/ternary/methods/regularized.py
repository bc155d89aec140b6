"""Methods with a regularizer: those of binary networks, as the paper extends them to three values, and ADMM.

Tang: R = Σ (1 - θ²) θ²;  W = round(clip(θ, -1, 1));  ∂W/∂θ = 1. Tang, Hua & Wang, How to Train a Compact Binary Neural
Network with High Accuracy?, 2017 (R = Σ 1 - θ² there).

BNN+: R₁ = Σ |a - |θ|| · |θ|,   R₂ = Σ (a - |θ|)² · θ²;  W = a · round(clip(θ/a, -1, 1)), a learned per layer, which
starts at the mean magnitude;  ∂W/∂θ = 1. Darabi, Belbahri, Courbariaux & Nia, BNN+: Improved Binary Network Training,
2018 (there without the factor |θ| or θ²).

Extremely low bit networks by ADMM: real weights, attracted to the nearest ternary ones plus a running error.

    minimize L(θ) + ρ/2 Σ (θ - G + u)²,  G = a·Q, Q in {-1, 0, +1}
    G ← argmin ‖θ + u - aQ‖²: in turn a = ⟨V, Q⟩ / ⟨Q, Q⟩ and Q = round(clip(V/a, -1, 1)), V = θ + u
    u ← u + θ - G

G and u are updated at regular intervals; in between, the common optimizer takes the steps for which the paper uses
the extragradient method. Leng, Dou, Li, Zhu & Jin, Extremely Low Bit Neural Network: Squeeze the Last Bit Out
with ADMM, 2018.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from sca_search.config.candidate import elapsed_fraction
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights
from sca_search.ternary.parametrize import nearest_trits

_SMALLEST = 1e-3  # a scale must stay positive
# Of ADMM: updates of G and u per training; iterations of a and Q, which hardly change after the first few.
_UPDATES = 40
_ITERATIONS = 10


class Tang(Quantizer):
    has_regularizer = True

    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(nearest_trits(latent))

    def regularizer(self, latent: Tensor) -> Tensor:
        square = latent.clamp(-1.0, 1.0).square()  # beyond ±1 R is unbounded below
        return ((1.0 - square) * square).sum()


class LearnedScale(Quantizer):
    has_regularizer = True

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


class BnnPlusL1(LearnedScale):
    def regularizer(self, latent: Tensor) -> Tensor:
        magnitude = latent.abs()
        return ((self.scale - magnitude).abs() * magnitude).sum()


class BnnPlusL2(LearnedScale):
    def regularizer(self, latent: Tensor) -> Tensor:
        return ((self.scale - latent.abs()).square() * latent.square()).sum()


def nearest_scaled(values: Tensor) -> ScaledTrits:
    """The scaled trits closest to some values."""
    scale = values.abs().mean()
    trits = nearest_trits(values / scale.clamp(min=1e-12))
    for _ in range(_ITERATIONS):
        scale = (values * trits).sum() / trits.abs().sum().clamp(min=1.0)
        trits = nearest_trits(values / scale.clamp(min=1e-12))
    return ScaledTrits(trits, scale)


class Attracted(Quantizer):
    has_regularizer = True
    target: Tensor  # G
    error: Tensor  # u
    updates = 0  # of both so far

    def begin(self, latent: Tensor) -> None:
        self.register_buffer("target", as_weights(nearest_scaled(latent)))
        self.register_buffer("error", torch.zeros_like(latent))

    def soft(self, latent: Tensor) -> Tensor:
        return latent.clone()  # a parametrization must not return its own parameter

    def levels(self, latent: Tensor) -> ScaledTrits:
        return nearest_scaled(latent)

    def regularizer(self, latent: Tensor) -> Tensor:
        return 0.5 * (latent - self.target + self.error).square().sum()

    def update(self, latent: Tensor, elapsed: float) -> None:
        due = int(elapsed * _UPDATES)
        if due > self.updates:
            self.updates = due
            self.target.copy_(as_weights(nearest_scaled(latent + self.error)))
            self.error.add_(latent - self.target)


class Elb(Quantized):
    quantizer = Attracted

    def resume(self, state: Mapping[str, float], steps: int) -> None:
        super().resume(state, steps)
        per_epoch = len(self.task.data.train.batches(self.task.batch))
        elapsed = elapsed_fraction((steps - 1) / per_epoch, self.candidate.epochs)
        for quantizer in self.quantizers.values():
            assert isinstance(quantizer, Attracted)
            quantizer.updates = int(elapsed * _UPDATES)
