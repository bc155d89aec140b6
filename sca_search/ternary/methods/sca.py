"""Sparsity-Control Ternary Weight Networks, in the paper's form and ours: see ternary.py for the formulas.

    W = tanh Θ,  R = Σ (α - W²) W²                                   the paper's
    W = ½ [tanh(β(θ - t)) + tanh(β(θ + t))],  t = atanh √(α/2)       sharpened

Deng & Zhang, Sparsity-Control Ternary Weight Networks.
"""

from contextlib import AbstractContextManager
from typing import cast

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.control import SparsityControl
from sca_search.ternary.exact import ExactTrits, exact_trits, rounded_trits
from sca_search.ternary.methods.base import Ending, Method, MethodTask, strength_unit
from sca_search.ternary.parametrize import (
    bake,
    latents,
    rounded,
    soft_weights,
    sparsity,
    ternarize,
    ternary_weights,
)
from sca_search.ternary.prior import zeros_for_sparsity


class Sca(Method):
    """Latent weights, a pull and a threshold, steered along a candidate's schedules."""

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        super().__init__(model, candidate, task)
        ternarize(model, spreads_of(model, candidate, task), candidate.form)
        self._control = SparsityControl(model, candidate)
        if not candidate.strength_is_lambda:
            self._control.unit = self._strength_unit()

    def _strength_unit(self) -> float:
        """λ for a strength of 1, on the first training batch with the schedules at their start."""
        return strength_unit(self.model.train(), *self.first_batch(), self.task.loss)

    def latents(self) -> dict[str, nn.Parameter]:
        return latents(self.model)

    @property
    def unit(self) -> float:  # type: ignore[override]
        return self._control.unit

    @property
    def strength(self) -> float:  # type: ignore[override]
        return self._control.strength

    @property
    def sharpness(self) -> float:  # type: ignore[override]
        return self._control.sharpness

    def alphas(self) -> dict[str, float]:
        return self._control.alphas()

    def update(self, epoch: float) -> None:
        self._control.update(epoch)

    def penalty(self) -> Tensor | float:
        return self._control.penalty()

    def finish(self) -> None:
        self._control.finish()

    def rounded(self) -> AbstractContextManager[None]:
        return rounded(self.model)

    def go_on(self, unit: float, alphas: dict[str, float], steps: int) -> None:
        self._control.go_on(unit, alphas, steps)

    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        return weights_of(self.model)

    def sparsity(self) -> float:
        return sparsity(self.model).sparsity

    def ending(self) -> Ending:
        softs = soft_weights(self.model)
        reached = {name: float((soft.round() == 0).float().mean()) for name, soft in softs.items()}
        exact = self._exact_trits(softs)
        return Ending({name: ScaledTrits(trits) for name, trits in exact.trits.items()}, exact.moved_share, reached)

    def _exact_trits(self, softs: dict[str, Tensor]) -> ExactTrits:
        if not self.candidate.exact:
            return rounded_trits(softs)
        thetas = {name: latent.detach() for name, latent in latents(self.model).items()}
        thresholds = {name: weight.threshold for name, weight in ternary_weights(self.model).items()}
        zeros = zeros_for_sparsity(self.candidate.sparsity, sum(latent.numel() for latent in thetas.values()))
        return exact_trits(thetas, softs, thresholds, zeros, self.task.floor, self.task.transposed)

    def detach(self, ending: Ending) -> None:
        bake(self.model, {name: levels.trits for name, levels in ending.levels.items()})


def weights_of(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """tanh Θ and W, a layer each."""
    trained = [torch.tanh(latent.detach()) for latent in latents(model).values()]
    return trained, list(soft_weights(model).values())


def spreads_of(model: nn.Module, candidate: Candidate, task: MethodTask) -> dict[str, float | None]:
    """The root mean square of Θ at the start, a layer; None where the weights stay as they are."""
    if candidate.spread is None:
        return dict.fromkeys(task.ternary_layers, None)
    if candidate.rescaling == 1.0:
        return dict(task.spreads(candidate.spread))
    own = {name: cast(Tensor, model.get_submodule(name).weight).detach() for name in task.ternary_layers}
    means = {name: float(weight.square().mean().sqrt()) for name, weight in own.items()}
    return {
        name: mean ** (1.0 - candidate.rescaling) * candidate.spread**candidate.rescaling if mean else candidate.spread
        for name, mean in means.items()
    }
