"""Extremely low bit networks by ADMM: real weights, drawn to the nearest ternary ones and a running error.

    minimize L(θ) + ρ/2 Σ (θ - G + u)²,  G = a·Q, Q in {-1, 0, +1}
    G ← argmin ‖θ + u - aQ‖²: in turn a = ⟨V, Q⟩ / ⟨Q, Q⟩ and Q = round(clip(V/a, -1, 1)), V = θ + u
    u ← u + θ - G

G and u move at even times, as often as stated below; between them the common optimizer takes the steps that the paper
takes by the extragradient method. Leng, Dou, Li, Zhu & Jin, Extremely Low Bit Neural Network: Squeeze the Last Bit Out
with ADMM, 2018.
"""

import torch
from torch import Tensor

from sca_search.config.schedule import elapsed_fraction
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights
from sca_search.ternary.parametrize import nearest_trits

_MOVES = 40  # of G and u in a training
_TURNS = 10  # of a and Q; they hardly move after the first few


def nearest_scaled(values: Tensor) -> ScaledTrits:
    """The scaled trits nearest to some values."""
    scale = values.abs().mean()
    trits = nearest_trits(values / scale.clamp(min=1e-12))
    for _ in range(_TURNS):
        scale = (values * trits).sum() / trits.abs().sum().clamp(min=1.0)
        trits = nearest_trits(values / scale.clamp(min=1e-12))
    return ScaledTrits(trits, scale)


class Drawn(Quantizer):
    target: Tensor  # G
    error: Tensor  # u

    def begin(self, latent: Tensor) -> None:
        self.register_buffer("target", as_weights(nearest_scaled(latent)))
        self.register_buffer("error", torch.zeros_like(latent))

    def soft(self, latent: Tensor) -> Tensor:
        return latent.clone()  # a parametrization must not give its own parameter

    def levels(self, latent: Tensor) -> ScaledTrits:
        return nearest_scaled(latent)

    def pull(self, latent: Tensor) -> Tensor:
        return 0.5 * (latent - self.target + self.error).square().sum()

    @torch.no_grad()
    def move(self, latent: Tensor) -> None:
        self.target.copy_(as_weights(nearest_scaled(latent + self.error)))
        self.error.add_(latent - self.target)


class Elb(Quantized):
    quantizer = Drawn
    has_pull = True
    _moves = 0

    def update(self, epoch: float) -> None:
        super().update(epoch)
        due = int(elapsed_fraction(epoch, self.candidate.epochs) * _MOVES)
        if due > self._moves:
            self._moves = due
            for name, quantizer in self.quantizers().items():
                assert isinstance(quantizer, Drawn)
                quantizer.move(self.latents()[name])

    def go_on(self, unit: float, alphas: dict[str, float], steps: int) -> None:
        super().go_on(unit, alphas, steps)
        per_epoch = len(self.task.data.train.batches(self.task.batch))
        self._moves = int(elapsed_fraction((steps - 1) / per_epoch, self.candidate.epochs) * _MOVES)
