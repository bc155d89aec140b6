"""Sets α, λ and sharpness of each layer at every step, by a candidate's schedules."""

import math
from statistics import fmean

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.config.schedule import FromPrior, Tracked
from sca_search.ternary.parametrize import latents, ternary_weights, threshold_of_alpha
from sca_search.ternary.prior import alpha_for_sparsity, border


class LayerSchedules:
    """The schedules of all parametrizations of a network."""

    def __init__(self, model: nn.Module, candidate: Candidate) -> None:
        self.candidate = candidate
        self.unit = 1.0  # λ for a strength of 1
        self._weights = ternary_weights(model)
        self._latents = latents(model)
        self._steps = 0
        for layer, weight in self._weights.items():
            weight.gradient_sharpness = candidate.gradient_sharpness or math.inf
            self._set_alpha_by_prior(layer)
        self.update(0.0)

    @property
    def wdr_strength(self) -> float:
        """λ, the mean over the layers."""
        return fmean(weight.wdr_strength for weight in self._weights.values())

    @property
    def sharpness(self) -> float:
        """β, the mean over the layers."""
        return fmean(weight.sharpness for weight in self._weights.values())

    def resume(self, unit: float, alphas: dict[str, float], steps: int) -> None:
        """Restore the state after some steps: α of the prior depends on the weights at the start."""
        self.unit = unit
        self._steps = 1 + steps  # one before the first
        for name, weight in self._weights.items():
            weight.alpha = alphas[name]

    def update(self, epoch: float) -> None:
        """Set every layer to its schedules at a (fractional) epoch."""
        for name, weight in self._weights.items():
            weight.wdr_strength = self.unit * self.candidate.strength_of(name, epoch)
            weight.sharpness = self.candidate.sharpness_of(name, epoch)
        self._update_alpha(epoch)
        self._pin(epoch)
        self._steps += 1

    def _update_alpha(self, epoch: float) -> None:
        for name, weight in self._weights.items():
            alpha = self.candidate.alpha_of(name)
            if isinstance(alpha, Tracked):
                if self._steps % alpha.every == 0:
                    self._set_alpha_by_prior(name, alpha.sparsity_fraction(epoch, self.candidate.epochs))
            elif isinstance(alpha, FromPrior):
                # The prior applies to the weights when the regularizer sets in, not to those before.
                if weight.wdr_strength == 0.0 and self.candidate.strength_of(name, self.candidate.epochs) > 0.0:
                    self._set_alpha_by_prior(name)
            else:
                weight.alpha = alpha.at(epoch, self.candidate.epochs)

    def _set_alpha_by_prior(self, layer: str, fraction: float = 1.0) -> None:
        planned = fraction * self.candidate.sparsity_of(layer)
        weight = self._weights[layer]
        weight.alpha = alpha_for_sparsity(self._latents[layer], planned, near=threshold_of_alpha(weight.alpha))

    def _pin(self, epoch: float) -> None:
        """Pin the smallest weights at 0 and the largest at ±1, both in the proportion of the planned sparsity."""
        fraction = self.candidate.pinned_fraction(epoch)
        if fraction == 0.0:
            return
        for name, weight in self._weights.items():
            planned = self.candidate.sparsity_of(name)
            latent = self._latents[name]
            weight.pinned_below = border(latent, fraction * planned, near=weight.pinned_below)
            weight.pinned_above = border(latent, 1.0 - fraction * (1.0 - planned), near=weight.pinned_above)

    def finish(self) -> None:
        """At the end of training: a tracked α must match the final weights, not those some steps ago."""
        self.update(float(self.candidate.epochs))
        for layer in self._weights:
            if isinstance(self.candidate.alpha_of(layer), Tracked):
                self._set_alpha_by_prior(layer)

    def penalty(self) -> Tensor | float:
        """Σ λ R over the layers, from the last forward pass."""
        terms: list[Tensor] = []
        for weight in self._weights.values():
            if weight.wdr_strength:
                terms.append(weight.wdr_strength * weight.wdr())
            else:
                weight.take_soft()  # not needed, and it would keep the graph of this step alive
        return torch.stack(terms).sum() if terms else 0.0

    def alphas(self) -> dict[str, float]:
        """The current α per layer."""
        return {name: weight.alpha for name, weight in self._weights.items()}
