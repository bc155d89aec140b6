"""The interface of a quantization method.

A training creates the method, which attaches itself to the layers, and then calls, at each step, `update` before the
forward pass, `penalty` after it, and `after_backward`; after the last step `finish` and `final_weights`. Data, warm
start, optimizer, distillation and frozen phase are the same for all methods.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.config.candidate import Candidate
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.exact import Floor
from sca_search.ternary.parametrize import ZeroCount, latents, ternary_weights, total, zero_counts

if TYPE_CHECKING:
    from sca_search.data import DataSet

PlainLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> loss"""


class MethodTask(Protocol):
    """The part of a training task that methods use."""

    @property
    def data(self) -> "DataSet": ...
    @property
    def batch(self) -> int: ...
    @property
    def loss(self) -> PlainLoss: ...
    @property
    def floor(self) -> Floor: ...
    @property
    def ternary_layers(self) -> tuple[str, ...]: ...
    @property
    def transposed(self) -> dict[str, int]: ...
    def spreads(self, spread: float) -> dict[str, float]: ...


@dataclass(frozen=True)
class FinalWeights:
    """The weights at the end of training, and how the planned number of zeros came about."""

    levels: dict[str, ScaledTrits]
    adjusted_fraction: float = 0.0  # of the weights, by the exact step
    achieved: dict[str, float] = field(default_factory=dict)  # sparsity per layer before the exact step

    @property
    def counts(self) -> dict[str, ZeroCount]:
        return zero_counts({name: levels.trits for name, levels in self.levels.items()})

    @property
    def dead_layers(self) -> tuple[str, ...]:
        return tuple(name for name, levels in self.levels.items() if not levels.trits.any())


class Method:
    """A method on one network. The inherited hooks do nothing."""

    unit = 1.0  # λ for a strength of 1
    strength = 0.0  # the current λ, if the method adds a term to the loss
    sharpness = 1.0

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        self.model = model
        self.candidate = candidate
        self.task = task

    def first_batch(self) -> tuple[Tensor, Tensor]:
        """The batch on which the unit of the strength is measured."""
        images, targets = next(iter(self.task.data.train.batches(self.task.batch, seed=self.candidate.seed)))
        return images, targets

    def latents(self) -> dict[str, nn.Parameter]:
        """The parameters that are trained instead of the weights, with a separate learning rate."""
        raise NotImplementedError

    def self_updated(self) -> Iterable[nn.Parameter]:
        """Parameters that the optimizer must not update: the method does, after each backward pass."""
        return ()

    def update(self, epoch: float) -> None:
        """Before each step, at a (fractional) epoch."""

    def penalty(self) -> Tensor | float:
        """The method's term of the loss, after the forward pass."""
        return 0.0

    def after_backward(self) -> None:
        """Between the backward pass and the optimizer step."""

    def finish(self) -> None:
        """After the last step."""

    def rounded(self) -> AbstractContextManager[None]:
        """Inside the block, the network computes with its current final weights."""
        return nullcontext()

    def final_weights(self) -> FinalWeights:
        """The weights if training ended now."""
        raise NotImplementedError

    def detach(self, final: FinalWeights) -> None:
        """Remove the method from the network and leave plain, frozen weights."""
        raise NotImplementedError

    def alphas(self) -> dict[str, float]:
        """The α per layer of SCA; other methods have none."""
        return {}

    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        """For histograms: the latents, and the weights that the network computes with, from -1 to 1."""
        trits = [levels.trits for levels in self.final_weights().levels.values()]
        return [latent.detach() for latent in self.latents().values()], trits

    def sparsity(self) -> float:
        """The sparsity if training ended now."""
        return total(self.final_weights().counts).sparsity

    def resume(self, unit: float, alphas: dict[str, float], steps: int) -> None:  # noqa: ARG002
        """Restore the state of a checkpoint, after that of the network."""
        self.unit = unit


def strength_unit(model: nn.Module, images: Tensor, labels: Tensor, loss: PlainLoss = F.cross_entropy) -> float:
    """λ for a strength of 1: ‖∇ task loss‖ / ‖∇ R‖ over Θ.

    λ ranges over ten decades between networks; in this unit the same number means the same balance.
    """
    task = wrong_target_loss(model, images, labels, loss)
    regularizer = torch.stack([weight.wdr() for weight in ternary_weights(model).values()]).sum()
    return gradient_ratio(task, regularizer, list(latents(model).values()))


def wrong_target_loss(model: nn.Module, images: Tensor, labels: Tensor, loss: PlainLoss) -> Tensor:
    """The task's loss with the batch's targets rolled by half: its gradient is typical where the network is wrong.

    With the true targets it is nearly 0 for a trained network, and depends only on how long that was trained.
    """
    return loss(model(images), labels.roll(len(labels) // 2, 0))


def gradient_ratio(task: Tensor, regularizer: Tensor, thetas: list[nn.Parameter]) -> float:
    """The ratio of the gradients' norms; 0 where the second is 0."""
    norm_of_task = _norm(torch.autograd.grad(task, thetas, retain_graph=True))
    norm_of_regularizer = _norm(torch.autograd.grad(regularizer, thetas))
    return norm_of_task / norm_of_regularizer if norm_of_regularizer > 0 else 0.0


def _norm(gradients: tuple[Tensor, ...]) -> float:
    return float(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt())
