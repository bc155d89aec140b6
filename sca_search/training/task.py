"""What all trainings of a study share, and the records that they give."""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from sca_search.data import Batch, DataSet
from sca_search.models.layers import LayerChoice
from sca_search.models.scales import baked_layers, shaped_like_state
from sca_search.ternary.allocation import LayerShape
from sca_search.ternary.exact import Floor
from sca_search.ternary.histogram import Snapshot
from sca_search.ternary.parametrize import ZeroCount
from sca_search.training.evaluate import EVALUATION_BATCH, Score, score
from sca_search.training.losses import PlainLoss, cross_entropy
from sca_search.training.metrics import ACCURACY_METRIC, Metric

State = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """Data, network, which of its layers are ternary, and the settings that no candidate changes."""

    data: DataSet
    make_model: Callable[[], nn.Module]
    choices: tuple[LayerChoice, ...]
    batch: int = 64
    learning_rate_steps: tuple[tuple[float, float], ...] = ()
    last_layer_weight_decay: float = 0.0
    weight_decay: float = 0.0
    floor: Floor = field(default_factory=Floor)
    loss: PlainLoss = cross_entropy
    metric: Metric = ACCURACY_METRIC
    make_start: Callable[[], nn.Module] | None = None  # where the dense network has weights to start from
    trainer: Mapping[str, Any] = field(default_factory=dict)  # Lightning's settings

    @property
    def ternary_layers(self) -> tuple[str, ...]:
        return tuple(choice.layer.name for choice in self.choices if choice.ternary)

    @property
    def last_layer(self) -> str:
        return [choice.layer.name for choice in self.choices if choice.layer.executed][-1]

    def spreads(self, spread: float) -> dict[str, float]:
        """The spread of Θ for each ternary layer."""
        return dict.fromkeys(self.ternary_layers, spread)

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """The ternary layers as a split of the zeros sees them, with the non-zeros that each must keep."""
        layers = [choice.layer for choice in self.choices if choice.ternary]
        return tuple(
            LayerShape(layer.name, layer.shape, max(1, self.floor.per_layer, self.floor.per_channel * layer.outputs))
            for layer in layers
        )

    @property
    def transposed(self) -> dict[str, int]:
        """The ternary layers that are transposed convolutions, with their groups."""
        layers = [choice.layer for choice in self.choices if choice.ternary]
        return {layer.name: layer.transposed_groups for layer in layers if layer.transposed_groups}

    def start_model(self) -> nn.Module:
        """The dense network before its training: with the weights that the user gave, or as it is initialised."""
        return (self.make_start or self.make_model)()

    def model_with(self, state: State) -> nn.Module:
        model = shaped_like_state(self.make_model(), state)
        model.load_state_dict(state)
        return model

    def validate(self, model: nn.Module, *, with_error: bool = False) -> Score:
        return self.score(model, self.data.val.batches(EVALUATION_BATCH), with_error=with_error)

    def score(self, model: nn.Module, batches: Iterable[Batch], *, with_error: bool = False) -> Score:
        """The study's metric and loss on some batches."""
        return score(model, batches, self.metric, self.loss, with_error=with_error)


@dataclass(frozen=True)
class Epoch:
    """One line of a training's history."""

    phase: str  # "dense", "ternary" or "frozen"
    epoch: int
    epochs: int
    soft_metric: float  # the study's metric, here and below
    rounded_metric: float
    sparsity: float = 0.0
    alpha: float = 0.0  # mean over the layers
    strength: float = 0.0  # λ
    sharpness: float = 1.0

    @property
    def gap(self) -> float:
        """What rounding costs now."""
        return self.soft_metric - self.rounded_metric


@dataclass(frozen=True)
class Progress:
    """How a training talks to the outside."""

    on_epoch: Callable[[Epoch], None] = field(default=lambda _epoch: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    on_note: Callable[[str], None] = field(default=lambda _sentence: None)


@dataclass(frozen=True)
class Keeping:
    """Where a training is kept while it lasts, and how often: it is killed, and another goes on from there."""

    checkpoint: Path | None = None
    every: float = math.inf  # seconds, counted from epoch to epoch
    on_kept: Callable[[], None] = field(default=lambda: None)

    def due(self) -> Callable[[], bool]:
        """A clock of its own for one training: whether it is time to keep it."""
        last = time.monotonic()

        def is_due() -> bool:
            nonlocal last
            now = time.monotonic()
            if self.checkpoint is None or now - last < self.every:
                return False
            last = now
            return True

        return is_due


NOT_KEPT = Keeping()


@dataclass(frozen=True)
class Rungs:
    """Where a training is looked at on its way, and whether it goes on from there.

    `passes` is told the epoch and the score that the network would have if training ended there. The training is kept
    at each rung, and begins from what was kept where there is something.
    """

    epochs: tuple[int, ...] = ()
    passes: Callable[[int, Score], bool] = field(default=lambda _epoch, _score: True)
    checkpoint: Path | None = None
    every: float = math.inf
    on_kept: Callable[[], None] = field(default=lambda: None)

    @property
    def keeping(self) -> Keeping:
        """Between rungs the training is kept as well, from time to time."""
        return Keeping(self.checkpoint, self.every, self.on_kept)


class PausedError(Exception):
    """A training did not pass a rung; its checkpoint is written."""


@dataclass(frozen=True)
class WarmStart:
    """The dense network that all candidates start from."""

    state: State
    score: Score
    answers: Tensor  # its outputs on the training split, for candidates that distil; none where inputs change


@dataclass(frozen=True)
class Settled:
    """A candidate at its end: plain weights, and what the way there was."""

    model: nn.Module
    score: Score
    counts: dict[str, ZeroCount]
    moved_share: float
    reached: dict[str, float]  # sparsity a layer by rounding alone, before the exact step
    sparsity_before: float  # the same overall
    soft_metric: float
    rounded_metric: float
    dead_layers: tuple[str, ...]
    unit: float  # λ for a strength of 1
    alphas: dict[str, float]
    history: tuple[Epoch, ...]
    snapshots: tuple[Snapshot, ...] = ()

    @property
    def baked_layers(self) -> tuple[str, ...]:
        """The layers of the plain network that hold trits."""
        return baked_layers(self.model, self.counts)

    def baked_trits(self) -> dict[str, Tensor]:
        return {name: self.model.get_parameter(f"{name}.weight") for name in self.baked_layers}
