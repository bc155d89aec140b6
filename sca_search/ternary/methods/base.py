"""What a method is: how the weights of some layers become few-valued while a network trains.

A training makes the method, which attaches itself to the layers, and then calls, at each step, `update` before the
forward pass, `penalty` after it, and `after_backward`; after the last step `finish`, and `ending` for the weights that
stay. Everything around that, data, warm start, optimizer, distillation, frozen phase, is the same for all methods.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from torch import Tensor, nn

from sca_search.candidate import Candidate
from sca_search.levels import Levels
from sca_search.task import Task
from sca_search.ternary import ZeroCount, total, zero_counts


@dataclass(frozen=True)
class Ending:
    """The weights that stay, and what it took to get the planned number of zeros."""

    levels: dict[str, Levels]
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

    def __init__(self, model: nn.Module, candidate: Candidate, task: Task) -> None:
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
