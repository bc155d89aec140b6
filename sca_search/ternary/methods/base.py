"""What a method is: how the weights of some layers become few-valued while a network trains.

A training makes the method, which attaches itself to the layers, and then calls, at each step, `update` before the
forward pass, `penalty` after it, and `after_backward`; after the last step `finish`, and `ending` for the weights that
stay. Everything around that, data, warm start, optimizer, distillation, frozen phase, is the same for all methods.
"""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.config.candidate import Candidate
from sca_search.data import DataSet
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.exact import Floor
from sca_search.ternary.parametrize import ZeroCount, latents, ternary_weights, total, zero_counts

PlainLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> loss"""


class MethodTask(Protocol):
    """The part of a training task that methods use."""

    @property
    def data(self) -> DataSet: ...
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
class Ending:
    """The weights that stay, and what it took to get the planned number of zeros."""

    levels: dict[str, ScaledTrits]
    moved_share: float = 0.0
    reached: dict[str, float] = field(default_factory=dict)  # sparsity a layer, before zeros were counted out

    @property
    def counts(self) -> dict[str, ZeroCount]:
        return zero_counts({name: levels.trits for name, levels in self.levels.items()})

    @property
    def dead_layers(self) -> tuple[str, ...]:
        return tuple(name for name, levels in self.levels.items() if not levels.trits.any())


class Method:
    """One method at work on one network. What a method does not need, it inherits: nothing happens there."""

    unit = 1.0  # λ for a strength of 1
    strength = 0.0  # λ now, where there is a term of the loss
    sharpness = 1.0

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        self.model = model
        self.candidate = candidate
        self.task = task

    def first_batch(self) -> tuple[Tensor, Tensor]:
        """What the strength of a term of the loss is measured on."""
        images, targets = next(iter(self.task.data.train.batches(self.task.batch, seed=self.candidate.seed)))
        return images, targets

    def latents(self) -> dict[str, nn.Parameter]:
        """What is trained instead of the weights, with a learning rate of its own."""
        raise NotImplementedError

    def trains_itself(self) -> Iterable[nn.Parameter]:
        """Parameters that the optimizer must leave alone: the method moves them after each backward pass."""
        return ()

    def update(self, epoch: float) -> None:
        """Before each step, at a (fractional) epoch."""

    def penalty(self) -> Tensor | float:
        """The method's term of the loss, after the forward pass."""
        return 0.0

    def after_backward(self) -> None:
        """Gradients are there, the optimizer has not moved yet."""

    def finish(self) -> None:
        """After the last step."""

    def rounded(self) -> AbstractContextManager[None]:
        """Within it, the network computes with the weights that it would end with now."""
        return nullcontext()

    def ending(self) -> Ending:
        """The weights if training ended now."""
        raise NotImplementedError

    def detach(self, ending: Ending) -> None:
        """Takes the method off the network and leaves plain, frozen weights."""
        raise NotImplementedError

    def alphas(self) -> dict[str, float]:
        """SCA's α a layer; other methods have none."""
        return {}

    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        """For pictures of their distribution: what is trained, and what the network computes with, from -1 to 1."""
        trits = [levels.trits for levels in self.ending().levels.values()]
        return [latent.detach() for latent in self.latents().values()], trits

    def sparsity(self) -> float:
        """If training ended now."""
        return total(self.ending().counts).sparsity

    def go_on(self, unit: float, alphas: dict[str, float], steps: int) -> None:  # noqa: ARG002
        """As a checkpoint left it; the network's own state is loaded already."""
        self.unit = unit


def strength_unit(model: nn.Module, images: Tensor, labels: Tensor, loss: PlainLoss = F.cross_entropy) -> float:
    """λ for a strength of 1: ‖∇ task loss‖ / ‖∇ R‖ over Θ.

    λ ranges over ten decades between networks; in this unit the same number means the same balance.
    """
    task = hard_loss(model, images, labels, loss)
    pull = torch.stack([weight.wdr() for weight in ternary_weights(model).values()]).sum()
    return gradient_ratio(task, pull, list(latents(model).values()))


def hard_loss(model: nn.Module, images: Tensor, labels: Tensor, loss: PlainLoss) -> Tensor:
    """The task's loss with the batch's targets rolled by half: that is how hard the task can pull where the network is
    wrong. With the true ones it is next to nothing at a trained start, and says only how long the start trained.
    """
    return loss(model(images), labels.roll(len(labels) // 2, 0))


def gradient_ratio(task: Tensor, pull: Tensor, thetas: list[nn.Parameter]) -> float:
    """How much larger the first gradient is than the second; 0 where that is none."""
    norm_of_task = _norm(torch.autograd.grad(task, thetas, retain_graph=True))
    norm_of_pull = _norm(torch.autograd.grad(pull, thetas))
    return norm_of_task / norm_of_pull if norm_of_pull > 0 else 0.0


def _norm(gradients: tuple[Tensor, ...]) -> float:
    return float(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt())
