"""Steers a ternarized network along a candidate's schedules: α, λ and sharpness of each layer at each moment."""

import math
from statistics import fmean

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.config.schedule import FromPrior, Tracked
from sca_search.ternary.parametrize import latents, ternary_weights, threshold_of_alpha
from sca_search.ternary.prior import alpha_for_sparsity, border


class SparsityControl:
    """Sets α, λ and sharpness on each layer's parametrization."""

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
    def strength(self) -> float:
        """λ, the mean over the layers."""
        return fmean(weight.strength for weight in self._weights.values())

    @property
    def sharpness(self) -> float:
        """β, the mean over the layers."""
        return fmean(weight.sharpness for weight in self._weights.values())

    def go_on(self, unit: float, alphas: dict[str, float], steps: int) -> None:
        """As a training left it after some steps: α of the prior belongs to the weights that it began with."""
        self.unit = unit
        self._steps = 1 + steps  # one before the first
        for name, weight in self._weights.items():
            weight.alpha = alphas[name]

    def update(self, epoch: float) -> None:
        """Moves every layer to where its schedules are at a (fractional) epoch."""
        for name, weight in self._weights.items():
            weight.strength = self.unit * self.candidate.strength_of(name, epoch)
            weight.sharpness = self.candidate.sharpness_of(name, epoch)
        self._update_alpha(epoch)
        self._hold(epoch)
        self._steps += 1

    def _update_alpha(self, epoch: float) -> None:
        for name, weight in self._weights.items():
            alpha = self.candidate.alpha_of(name)
            if isinstance(alpha, Tracked):
                if self._steps % alpha.every == 0:
                    self._set_alpha_by_prior(name, alpha.sparsity_fraction(epoch, self.candidate.epochs))
            elif isinstance(alpha, FromPrior):
                # The prior speaks of the weights that the pull finds when it begins, not of those before.
                if weight.strength == 0.0 and self.candidate.strength_of(name, self.candidate.epochs) > 0.0:
                    self._set_alpha_by_prior(name)
            else:
                weight.alpha = alpha.at(epoch, self.candidate.epochs)

    def _set_alpha_by_prior(self, layer: str, share: float = 1.0) -> None:
        asked = share * self.candidate.asked_of(layer)
        weight = self._weights[layer]
        weight.alpha = alpha_for_sparsity(self._latents[layer], asked, near=threshold_of_alpha(weight.alpha))

    def _hold(self, epoch: float) -> None:
        """Holds the smallest weights at 0 and the largest at ±1, both in the proportion that the plan has them."""
        share = self.candidate.pinned_fraction(epoch)
        if share == 0.0:
            return
        for name, weight in self._weights.items():
            planned = self.candidate.sparsity_of(name)
            latent = self._latents[name]
            weight.held_below = border(latent, share * planned, near=weight.held_below)
            weight.held_above = border(latent, 1.0 - share * (1.0 - planned), near=weight.held_above)

    def finish(self) -> None:
        """The end of training: a tracked α must match the last weights, not those some steps ago."""
        self.update(float(self.candidate.epochs))
        for layer in self._weights:
            if isinstance(self.candidate.alpha_of(layer), Tracked):
                self._set_alpha_by_prior(layer)

    def penalty(self) -> Tensor | float:
        """Σ λ R over the layers, from the forward pass that has just run."""
        pulls: list[Tensor] = []
        for weight in self._weights.values():
            if weight.strength:
                pulls.append(weight.strength * weight.wdr())
            else:
                weight.take_soft()  # kept for nothing, and it holds the graph of this step
        return torch.stack(pulls).sum() if pulls else 0.0

    def alphas(self) -> dict[str, float]:
        """α a layer, now."""
        return {name: weight.alpha for name, weight in self._weights.items()}
