"""Steers a ternarized network along a candidate's schedules: α, λ and sharpness of each layer at each moment."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.candidate import Candidate
from sca_search.prior import alpha_for_sparsity
from sca_search.schedule import FromPrior, Tracked
from sca_search.ternary import latents, ternary_weights


class SparsityControl:
    """Holds each layer's λ and sets α and sharpness on its parametrization."""

    def __init__(self, model: nn.Module, candidate: Candidate) -> None:
        self.candidate = candidate
        self.unit = 1.0  # λ for a strength of 1
        self.strength = 0.0
        self.sharpness = 1.0
        self._weights = ternary_weights(model)
        self._latents = latents(model)
        self._steps = 0
        self._set_alpha_by_prior()
        self.update(0.0)

    def update(self, epoch: float) -> None:
        """Moves every layer to where its schedules are at a (fractional) epoch."""
        candidate = self.candidate
        self.strength = self.unit * candidate.strength.at(epoch, candidate.epochs)
        if candidate.form == "sharpened":
            self.sharpness = candidate.sharpness.at(epoch, candidate.epochs)
        for weight in self._weights.values():
            weight.sharpness = self.sharpness
        self._update_alpha(epoch)
        self._steps += 1

    def _update_alpha(self, epoch: float) -> None:
        alpha = self.candidate.alpha
        if isinstance(alpha, Tracked):
            if self._steps % alpha.every == 0:
                self._set_alpha_by_prior()
        elif not isinstance(alpha, FromPrior):
            for weight in self._weights.values():
                weight.alpha = alpha.at(epoch, self.candidate.epochs)

    def _set_alpha_by_prior(self) -> None:
        for name, weight in self._weights.items():
            weight.alpha = alpha_for_sparsity(self._latents[name], self.candidate.layer_sparsity(name))

    def finish(self) -> None:
        """The end of training: a tracked α must match the last weights, not those some steps ago."""
        self.update(float(self.candidate.epochs))
        if isinstance(self.candidate.alpha, Tracked):
            self._set_alpha_by_prior()

    def penalty(self) -> Tensor | float:
        """λ R, summed over the layers, from the forward pass that has just run."""
        if self.strength == 0.0:
            for weight in self._weights.values():
                weight.take_soft()
            return 0.0
        return self.strength * torch.stack([weight.wdr() for weight in self._weights.values()]).sum()

    def alphas(self) -> dict[str, float]:
        """α a layer, now."""
        return {name: weight.alpha for name, weight in self._weights.items()}


def strength_unit(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    """λ for a strength of 1: ‖∇ task loss‖ / ‖∇ R‖ over Θ.

    λ ranges over ten decades between networks; in this unit the same number means the same balance. The task's
    gradient is taken with the batch's labels rolled by half: that is how hard the task can pull where the network is
    wrong. With the true labels it is next to nothing at a trained start, and says only how long the start trained.
    """
    thetas = list(latents(model).values())
    task = torch.autograd.grad(F.cross_entropy(model(images), labels.roll(len(labels) // 2)), thetas, retain_graph=True)
    pull = torch.stack([weight.wdr() for weight in ternary_weights(model).values()]).sum()
    norm_of_pull = _norm(torch.autograd.grad(pull, thetas))
    return _norm(task) / norm_of_pull if norm_of_pull > 0 else 0.0


def _norm(gradients: tuple[Tensor, ...]) -> float:
    return float(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt())
