"""The interface of a quantization method.

A training creates the method, which attaches itself to the layers, and then calls, at each step, `update` before the
forward pass, `penalty` after it, and `after_backward`; after the last step `finish` and `final_weights`. Data, warm
start, optimizer, distillation and frozen phase are the same for all methods.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import remove_parametrizations

from sca_search.config.candidate import Candidate
from sca_search.models.scales import ScaledTrits, set_trits
from sca_search.ternary.exact import Floor
from sca_search.ternary.parametrize import GradientAgreement, ZeroCount, total, zero_counts

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


@dataclass(frozen=True)
class FinalWeights:
    """The weights at the end of training, and how the planned number of zeros was obtained."""

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

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        self.model = model
        self.candidate = candidate
        self.task = task

    def strength_unit(self, regularizer: Callable[[], Tensor]) -> float:
        """λ for a strength of 1, on the first training batch; `regularizer`: R, after a forward pass."""
        batch = next(iter(self.task.data.train.batches(self.task.batch, seed=self.candidate.seed)))
        return strength_unit(self.model.train(), batch, self.task.loss, regularizer, list(self.latents().values()))

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

    def second_pass(self, loss: Tensor, again: Callable[[], Tensor]) -> Tensor | float:  # noqa: ARG002
        """A term of the loss that takes another forward pass; `loss` is the task's, `again` computes it once more."""
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
        """Remove the method's parametrizations from the network and leave plain, frozen weights."""
        for name in final.levels:
            # With gradients enabled, else torch leaves a plain tensor instead of a parameter.
            remove_parametrizations(self.model.get_submodule(name), "weight", leave_parametrized=True)
        set_trits(self.model, final.levels)

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

    def gradient_agreement(self) -> GradientAgreement | None:
        """How the gradient of the last step was estimated, for methods that report it."""
        return None

    def state(self) -> dict[str, float]:
        """What a checkpoint has to hold besides the network."""
        return {"unit": self.unit}

    def resume(self, state: Mapping[str, float], steps: int) -> None:  # noqa: ARG002
        """Restore the state of a checkpoint, after that of the network."""
        self.unit = state["unit"]


class FullPrecision(Method):
    """No quantization: the dense network is trained for as many epochs as the others."""

    def latents(self) -> dict[str, nn.Parameter]:
        return {}

    def final_weights(self) -> FinalWeights:
        return FinalWeights({})


def strength_unit(
    model: nn.Module, batch: Sequence[Tensor], loss: PlainLoss, regularizer: Callable[[], Tensor], thetas: list[Tensor]
) -> float:
    """λ for a strength of 1: ‖∇ task loss‖ / ‖∇ R‖ over Θ; 0 where R has no gradient.

    λ ranges over ten decades between networks; in this unit the same number means the same balance. The batch's targets
    are rolled by half, so that the task's gradient is typical where the network is wrong: with the true targets it is
    nearly 0 for a trained network, and depends only on how long that was trained.
    """
    images, targets = batch
    task, wdr = loss(model(images), targets.roll(len(targets) // 2, 0)), regularizer()
    gradients = torch.autograd.grad(task, thetas, retain_graph=True), torch.autograd.grad(wdr, thetas)
    of_task, of_wdr = (float(torch.stack([g.square().sum() for g in each]).sum().sqrt()) for each in gradients)
    return of_task / of_wdr if of_wdr > 0 else 0.0
