"""Sparsity-Control Ternary Weight Networks, in the paper's form and ours: the formulas are in parametrize.py.

    W = tanh Θ,  R = Σ (α - W²) W²                                   the paper's
    W = ½ [tanh(β(θ - t)) + tanh(β(θ + t))],  t = atanh √(α/2)       sharpened

Deng & Zhang, Sparsity-Control Ternary Weight Networks.

And the straight-through estimator at the quantile that gives each layer its planned sparsity, the baseline at a chosen
sparsity; not one of the paper's methods. Bengio, Léonard & Courville, Estimating or Propagating Gradients Through
Stochastic Neurons for Conditional Computation.

    W = sign θ where |θ| > t, else 0,  t the planned quantile of |θ|;  ∂W/∂θ = 1
"""

from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.config.schedule import Constant, Tracked
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.control import LayerSchedules
from sca_search.ternary.exact import ExactTrits, exact_trits
from sca_search.ternary.methods.base import FinalWeights, Method, MethodTask
from sca_search.ternary.parametrize import (
    bake_trits,
    latents,
    nearest_trits,
    nearest_trits_of,
    parametrize_layers,
    rounding,
    soft_weights,
    ternary_weights,
    total,
    zero_counts,
)
from sca_search.ternary.prior import zeros_for_sparsity


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
        exact = self._exact_trits(softs)
        levels = {name: ScaledTrits(trits) for name, trits in exact.trits.items()}
        return FinalWeights(levels, exact.adjusted_fraction, achieved)

    def _exact_trits(self, softs: dict[str, Tensor]) -> ExactTrits:
        if not self.candidate.exact:  # by rounding alone, with whatever number of zeros results
            return ExactTrits({name: nearest_trits(soft) for name, soft in softs.items()}, adjusted=0)
        thetas = {name: latent.detach() for name, latent in self.latents().items()}
        thresholds = {name: weight.threshold for name, weight in ternary_weights(self.model).items()}
        zeros = zeros_for_sparsity(self.candidate.sparsity, sum(latent.numel() for latent in thetas.values()))
        return exact_trits(thetas, softs, thresholds, zeros, self.task.floor, self.task.transposed)

    def detach(self, final: FinalWeights) -> None:
        bake_trits(self.model, {name: levels.trits for name, levels in final.levels.items()})


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
    if candidate.spread is None:
        return dict.fromkeys(task.ternary_layers, None)
    if candidate.rescaling == 1.0:
        return dict.fromkeys(task.ternary_layers, candidate.spread)
    own = {name: cast(Tensor, model.get_submodule(name).weight).detach() for name in task.ternary_layers}
    means = {name: float(weight.square().mean().sqrt()) for name, weight in own.items()}
    return {
        name: mean ** (1.0 - candidate.rescaling) * candidate.spread**candidate.rescaling if mean else candidate.spread
        for name, mean in means.items()
    }
