"""Sparsity-Control Ternary Weight Networks, in the paper's form and ours: the formulas are in parametrize.py.

    W = tanh Θ,  R = Σ (α - W²) W²                                   the paper's
    W = ½ [tanh(β(θ - t)) + tanh(β(θ + t))],  t = atanh √(α/2)       sharpened

Deng & Zhang, Sparsity-Control Ternary Weight Networks.

And the straight-through estimator at the quantile that gives each layer its planned sparsity, the baseline at a chosen
sparsity; not one of the paper's methods. Bengio, Léonard & Courville, Estimating or Propagating Gradients Through
Stochastic Neurons for Conditional Computation.

    W = sign θ where |θ| > t, else 0,  t the planned quantile of |θ|;  ∂W/∂θ = 1
"""

import math
from contextlib import AbstractContextManager
from statistics import fmean
from typing import cast

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate, Constant, FromPrior, Tracked
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.exact import ExactTrits, exact_trits
from sca_search.ternary.methods.base import FinalWeights, Method, MethodTask
from sca_search.ternary.parametrize import (
    latents,
    nearest_trits,
    nearest_trits_of,
    parametrize_layers,
    rounding,
    soft_weights,
    ternary_weights,
    threshold_of_alpha,
    total,
    zero_counts,
)
from sca_search.ternary.prior import alpha_for_sparsity, zeros_for_sparsity


class LayerSchedules:
    """Sets α, λ and sharpness of each layer of a network at every step, by a candidate's schedules."""

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
            alpha = self.candidate.alpha_of(name)
            if isinstance(alpha, Tracked):
                if self._steps % alpha.every == 0:
                    self._set_alpha_by_prior(name, alpha.sparsity_fraction(epoch, self.candidate.epochs))
            elif isinstance(alpha, FromPrior):
                # The prior applies to the weights at the time when the regularizer starts, not to earlier ones.
                if weight.wdr_strength == 0.0 and self.candidate.strength_of(name, self.candidate.epochs) > 0.0:
                    self._set_alpha_by_prior(name)
            else:
                weight.alpha = alpha.at(epoch, self.candidate.epochs)
        self._steps += 1

    def _set_alpha_by_prior(self, layer: str, fraction: float = 1.0) -> None:
        planned = fraction * self.candidate.sparsity_of(layer)
        weight = self._weights[layer]
        weight.alpha = alpha_for_sparsity(self._latents[layer], planned, near=threshold_of_alpha(weight.alpha))

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
                weight.pop_soft_weight()  # not needed, and it would keep the graph of this step alive
        return torch.stack(terms).sum() if terms else 0.0

    def alphas(self) -> dict[str, float]:
        """The current α per layer."""
        return {name: weight.alpha for name, weight in self._weights.items()}


class Sca(LayerSchedules, Method):  # type: ignore[override]  # strength and sharpness are properties
    """Latents, the regularizer and a threshold, on a candidate's schedules."""

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        Method.__init__(self, model, candidate, task)
        parametrize_layers(model, spreads_of(model, candidate, task), candidate.form)
        LayerSchedules.__init__(self, model, candidate)
        if not candidate.strength_is_lambda:
            self.unit = self.strength_unit(lambda: regularizer(model))

    def latents(self) -> dict[str, nn.Parameter]:
        return latents(self.model)

    def rounded(self) -> AbstractContextManager[None]:
        return rounding(ternary_weights(self.model).values())

    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        return weights_of(self.model)

    def sparsity(self) -> float:
        return total(zero_counts(nearest_trits_of(self.model))).sparsity

    def final_weights(self) -> FinalWeights:
        softs = soft_weights(self.model)
        achieved = {name: float((soft.round() == 0).float().mean()) for name, soft in softs.items()}
        if self.candidate.exact:
            thetas = {name: latent.detach() for name, latent in self.latents().items()}
            thresholds = {name: weight.threshold for name, weight in ternary_weights(self.model).items()}
            zeros = zeros_for_sparsity(self.candidate.sparsity, sum(latent.numel() for latent in thetas.values()))
            exact = exact_trits(thetas, softs, thresholds, zeros, self.task.floor, self.task.transposed)
        else:  # by rounding alone, with whatever number of zeros results
            exact = ExactTrits({name: nearest_trits(soft) for name, soft in softs.items()}, adjusted=0)
        levels = {name: ScaledTrits(trits) for name, trits in exact.trits.items()}
        return FinalWeights(levels, exact.adjusted_fraction, achieved)


class StraightThrough(Sca):
    """SCA's latents and tracked threshold, with an estimator instead of a gradient."""

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        fixed = {"form": "straight-through", "alpha": Tracked(), "strength": Constant(value=0.0)}
        super().__init__(model, candidate.model_copy(update=fixed), task)


def regularizer(model: nn.Module) -> Tensor:
    """Σ R over the layers, from the last forward pass."""
    return torch.stack([weight.wdr() for weight in ternary_weights(model).values()]).sum()


def weights_of(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """tanh Θ and W per layer."""
    trained = [torch.tanh(latent.detach()) for latent in latents(model).values()]
    return trained, list(soft_weights(model).values())


def spreads_of(model: nn.Module, candidate: Candidate, task: MethodTask) -> dict[str, float | None]:
    """The root mean square of Θ at the start per layer; None where the weights are not rescaled."""
    if candidate.spread is None or candidate.rescaling == 1.0:
        return dict.fromkeys(task.ternary_layers, candidate.spread)
    own = {name: cast(Tensor, model.get_submodule(name).weight).detach() for name in task.ternary_layers}
    means = {name: float(weight.square().mean().sqrt()) for name, weight in own.items()}
    return {
        name: mean ** (1.0 - candidate.rescaling) * candidate.spread**candidate.rescaling if mean else candidate.spread
        for name, mean in means.items()
    }
