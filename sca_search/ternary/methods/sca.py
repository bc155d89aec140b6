"""Sparsity-Control Ternary Weight Networks: schedules of α, λ and the allocation. The formulas are in parametrize.py.

Deng & Zhang, Sparsity-Control Ternary Weight Networks.

And the straight-through estimator at the quantile that gives each layer its planned sparsity, the baseline at a chosen
sparsity; not one of the paper's methods. Bengio, Léonard & Courville, Estimating or Propagating Gradients Through
Stochastic Neurons for Conditional Computation.

    W = sign θ where |θ| > t, else 0,  t the planned quantile of |θ|;  ∂W/∂θ = 1

In the decoupled form a schedule gives u, from which a layer's λ follows: λ = u / 4α for its planned α at the start. In
units of u layers are comparable: the flow moves weights away from the border of the basin at the rate 4α.

With an adaptive allocation, the zeros move between layers during training. Each layer's |Θ| is divided by its border at
the start, and one threshold on these ratios for all layers gives the total number of zeros. So training starts from the
planned allocation, and the layers' shares change with their weights.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from statistics import fmean
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate, FromPrior, Tracked
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.exact import ExactTrits, exact_trits
from sca_search.ternary.methods.base import FinalWeights, Method, MethodTask
from sca_search.ternary.parametrize import (
    LOSS_TERM_FORMS,
    GradientAgreement,
    TernaryWeight,
    alpha_of_threshold,
    gradient_agreement,
    latents,
    nearest_trits,
    parametrize_layers,
    rounding,
    soft_weights,
    ternary_weights,
    total,
    zero_counts,
)
from sca_search.ternary.prior import border, zeros_for_sparsity

# Steps between two computations of an adaptive allocation, which takes as long as all layers' thresholds together.
_ALLOCATION_STEPS = 10
# Layers with a smaller 4α at the start, which have next to no zeros, get the λ of this one. At 1e-3, weights near 0
# were still soft at the end, and 1.3 % of a network's weights were adjusted at sparsity 0.
_LEAST_RATE = 1e-6


class LayerSchedules:
    """Sets α and λ of each layer of a network at every step, by a candidate's schedules."""

    def __init__(self, model: nn.Module, candidate: Candidate, least_nonzeros: int = 1) -> None:
        self.candidate = candidate
        self.unit = 1.0  # λ for a strength of 1 in the paper's form
        self._weights = ternary_weights(model)
        self._latents = latents(model)
        self._least_nonzeros = least_nonzeros
        self._steps = 0
        self._planned = {layer: candidate.sparsity_of(layer) for layer in self._weights}
        for layer, weight in self._weights.items():
            weight.gradient = candidate.gradient
            self._set_threshold_by_prior(layer)
        self._borders = {layer: weight.threshold for layer, weight in self._weights.items()}  # at the start
        self.update(0.0)

    @property
    def strength(self) -> float:
        """λ, the mean over the layers."""
        return fmean(weight.wdr_strength for weight in self._weights.values())

    def state(self) -> dict[str, float]:
        """What a checkpoint has to hold: the thresholds depend on the weights of earlier steps."""
        state = {"unit": self.unit, "steps": float(self._steps)}
        for name, weight in self._weights.items():
            state |= {
                f"threshold of {name}": weight.threshold,
                f"threshold at the start of {name}": self._borders[name],
                f"planned sparsity of {name}": self._planned[name],
                f"strength of {name}": weight.wdr_strength,
            }
        return state

    def resume(self, state: Mapping[str, float], steps: int) -> None:  # noqa: ARG002 - other methods use it
        """Restore the state after some steps."""
        self.unit = state["unit"]
        self._steps = int(state["steps"])
        for name, weight in self._weights.items():
            weight.set_threshold(state[f"threshold of {name}"])
            weight.wdr_strength = state[f"strength of {name}"]
            self._borders[name] = state[f"threshold at the start of {name}"]
            self._planned[name] = state[f"planned sparsity of {name}"]

    def update(self, epoch: float) -> None:
        """Set every layer to its schedules at a (fractional) epoch."""
        if self.candidate.adaptive and self._steps % _ALLOCATION_STEPS == 0:
            self._reallocate()
        for name, weight in self._weights.items():
            strength = self._strength_of(name, epoch)
            alpha = self.candidate.alpha_of(name)
            if isinstance(alpha, Tracked):
                if self._steps % alpha.every == 0:
                    self._set_threshold_by_prior(name, alpha.sparsity_fraction(epoch, self.candidate.epochs))
            elif isinstance(alpha, FromPrior):
                # The prior applies to the weights at the time when the regularizer starts, not to earlier ones.
                if strength == 0.0 and self.candidate.strength_of(name, self.candidate.epochs) > 0.0:
                    self._set_threshold_by_prior(name)
            else:
                weight.set_alpha(alpha.at(epoch, self.candidate.epochs))
            weight.wdr_strength = strength
        self._steps += 1

    def _strength_of(self, layer: str, epoch: float) -> float:
        """λ."""
        strength = self.unit * self.candidate.strength_of(layer, epoch)
        if self.candidate.form != "decoupled":
            return strength
        return strength / max(4.0 * alpha_of_threshold(self._borders[layer]), _LEAST_RATE)

    def _set_threshold_by_prior(self, layer: str, fraction: float = 1.0) -> None:
        weight = self._weights[layer]
        near = weight.threshold / weight.gain
        weight.set_threshold(border(self._latents[layer], fraction * self._planned[layer], near) * weight.gain)

    @torch.no_grad()
    def _reallocate(self) -> None:
        """The layers' planned sparsities, by one threshold on |Θ| relative to the borders at the start."""
        gains = {name: weight.gain / max(self._borders[name], 1e-9) for name, weight in self._weights.items()}
        ratios = {name: (latent.abs() * gains[name]).flatten() for name, latent in self._latents.items()}
        threshold = border(torch.cat(list(ratios.values())), self.candidate.sparsity)
        for name, ratio in ratios.items():
            most = 1.0 - min(self._least_nonzeros, len(ratio)) / len(ratio)
            self._planned[name] = min(most, int((ratio < threshold).sum()) / len(ratio))

    def finish(self) -> None:
        """At the end of training: a tracked threshold must match the final weights, not those some steps ago."""
        if self.candidate.adaptive:
            self._reallocate()
        self.update(float(self.candidate.epochs))
        for layer in self._weights:
            if isinstance(self.candidate.alpha_of(layer), Tracked):
                self._set_threshold_by_prior(layer)

    def penalty(self) -> Tensor | float:
        """Σ λ R over the layers, from the last forward pass; the decoupled form has no such term."""
        if self.candidate.form not in LOSS_TERM_FORMS:
            return 0.0
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


class Sca(LayerSchedules, Method):  # type: ignore[override]  # strength is a property
    """Latents, the regularizer and a threshold, on a candidate's schedules."""

    weight_class: ClassVar[type[TernaryWeight]] = TernaryWeight

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        Method.__init__(self, model, candidate, task)
        parametrize_layers(model, spreads_of(model, candidate, task), candidate.form, self.weight_class)
        LayerSchedules.__init__(self, model, candidate, max(1, task.floor.per_layer))
        if candidate.form == "paper" and not candidate.strength_is_lambda:
            self.unit = self.strength_unit(lambda: regularizer(model))

    def latents(self) -> dict[str, nn.Parameter]:
        return latents(self.model)

    def rounded(self) -> AbstractContextManager[None]:
        return rounding(ternary_weights(self.model).values())

    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        return weights_of(self.model)

    def sparsity(self) -> float:
        return total(zero_counts({name: nearest_trits(soft) for name, soft in self.before_rounding().items()})).sparsity

    def gradient_agreement(self) -> GradientAgreement | None:
        return gradient_agreement(self.model)

    def before_rounding(self) -> dict[str, Tensor]:
        """The weights whose rounding decides what is zero."""
        return soft_weights(self.model)

    def final_weights(self) -> FinalWeights:
        softs = self.before_rounding()
        achieved = {name: float((soft.round() == 0).float().mean()) for name, soft in softs.items()}
        if self.candidate.exact:
            thetas = {name: latent.detach() for name, latent in self.latents().items()}
            thresholds = {
                name: weight.forward_threshold / weight.gain for name, weight in ternary_weights(self.model).items()
            }
            zeros = zeros_for_sparsity(self.candidate.sparsity, sum(latent.numel() for latent in thetas.values()))
            exact = exact_trits(thetas, softs, thresholds, zeros, self.task.floor, self.task.transposed)
        else:  # by rounding alone, with whatever number of zeros results
            exact = ExactTrits({name: nearest_trits(soft) for name, soft in softs.items()}, adjusted=0)
        levels = {name: ScaledTrits(trits) for name, trits in exact.trits.items()}
        return FinalWeights(levels, exact.adjusted_fraction, achieved)


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
