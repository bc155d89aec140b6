"""The task that all trainings of a study share: data, network, their source; and the results of training."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.config.references import PYTHON_OBJECT
from sca_search.config.study import DataSpec, StudySpec
from sca_search.data import Batch, DataSet, from_objects, load_study_data
from sca_search.errors import DataError, ModelError
from sca_search.models import Maker, find_maker, maker_of
from sca_search.models.layers import LayerChoice
from sca_search.models.scales import baked_layers, shaped_like_state
from sca_search.ternary.allocation import LayerShape
from sca_search.ternary.exact import Floor
from sca_search.ternary.parametrize import ZeroCount
from sca_search.training.evaluate import EVALUATION_BATCH, Score, score
from sca_search.training.losses import PlainLoss
from sca_search.training.metrics import ACCURACY_METRIC, Metric

# Odd, so that one bin is around zero; the outermost ones contain ±1.
BINS = 41
# The approximate number of epochs that are recorded, however long a training is.
MOST_SNAPSHOTS = 24


@dataclass(frozen=True)
class Snapshot:
    """All ternary weights of a network after some epochs, counted in equal bins from -1 to 1."""

    epoch: int  # completed epochs
    tanh: tuple[int, ...]  # of tanh Θ; of the latents of other methods
    soft: tuple[int, ...]  # of W, with which the network computes; in the paper's form the same
    alphas: dict[str, float]  # per layer

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Snapshot":
        """From a file's JSON."""
        return cls(
            int(entry["epoch"]),
            tuple(int(count) for count in entry["tanh"]),
            tuple(int(count) for count in entry["soft"]),
            {str(layer): float(alpha) for layer, alpha in entry["alphas"].items()},
        )


def is_recorded(epoch: int, epochs: int) -> bool:
    """Whether an epoch of a training is recorded: the start, the end, and even steps between."""
    return epoch == epochs or epoch % math.ceil(epochs / MOST_SNAPSHOTS) == 0


@torch.no_grad()
def snapshot(epoch: int, trained: list[Tensor], used: list[Tensor], alphas: dict[str, float]) -> Snapshot:
    """The current weights per layer: latents, and those that the network computes with."""
    return Snapshot(epoch, _counts(trained), _counts(used), alphas)


def _counts(layers: list[Tensor]) -> tuple[int, ...]:
    # In the straight-through form ±1 may be one rounding error larger, and would not be counted.
    inside = [layer.float().clamp(-1.0, 1.0) for layer in layers]
    counted = [torch.histc(layer, bins=BINS, min=-1.0, max=1.0) for layer in inside]
    return tuple(int(count) for count in torch.stack(counted).sum(0))


State = dict[str, Tensor]
# Parts of a study that may be Python objects instead of names.
OBJECTS = ("model", "data", "loss", "metric")


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
    loss: PlainLoss = F.cross_entropy
    metric: Metric = ACCURACY_METRIC
    make_start: Callable[[], nn.Module] | None = None  # where the dense network has weights to start from
    trainer: Mapping[str, Any] = field(default_factory=dict)  # Lightning's settings

    @property
    def ternary_layers(self) -> tuple[str, ...]:
        return tuple(choice.layer.name for choice in self.choices if choice.ternary)

    @property
    def last_layer(self) -> str:
        return [choice.layer.name for choice in self.choices if choice.layer.executed][-1]

    @property
    def layer_shapes(self) -> tuple[LayerShape, ...]:
        """The ternary layers for an allocation, with the least number of non-zeros per layer."""
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
        """The dense network before training: with weights that the user provided, or initialized."""
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
class Source:
    """Where a study's data and network come from: Python objects, or None for the names in its spec."""

    model: Any = None
    data: Any = None
    loss: Any = None  # functions of (outputs, targets), as is the metric
    metric: Any = None

    @property
    def has_objects(self) -> bool:
        return any(getattr(self, name) is not None for name in OBJECTS)

    def load(self, spec: StudySpec, *, check_test: bool = True) -> DataSet:
        """The data set."""
        data, seed = spec.data, spec.seed
        if self.data is not None:
            if data.skip_unreadable:
                raise DataError(f"data set {data.name!r}: skip_unreadable needs data that is read from files")
            made = from_objects(data.name, self.data, seed=seed, train_limit=data.train_limit, normalize=data.normalize)
            return made.augmented_by(data.augment)
        if data.name.startswith(PYTHON_OBJECT):
            raise DataError(f"data set {data.name!r} is a Python object, which cannot be loaded by name")
        return load_study_data(data, seed, check_test=check_test)

    def maker(self, spec: StudySpec, outputs: int, input_shape: Sequence[int]) -> Maker:
        """A function that makes the network."""
        name, shape = spec.model.name, tuple(input_shape)
        if self.model is not None:
            return maker_of(self.model, outputs, shape, name)
        if name.startswith(PYTHON_OBJECT):
            raise ModelError(
                f"model {name!r} is a Python object, which cannot be loaded by name: export it in Python "
                "(result.chosen.export), or name a function as file.py:function"
            )
        return find_maker(name, num_classes=outputs, input_shape=shape, dropout=spec.model.dropout)


@dataclass(frozen=True)
class CachedSource(Source):
    """A source for several studies on the same data, which is read once."""

    _cache: dict[tuple[DataSpec, int], DataSet] = field(default_factory=dict)

    def load(self, spec: StudySpec, *, check_test: bool = True) -> DataSet:
        key = (spec.data, spec.seed)
        if key not in self._cache:
            self._cache.clear()  # another data set takes its place in memory
            self._cache[key] = super().load(spec, check_test=check_test)
        return self._cache[key]


BY_NAME = Source()


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
    strength: float = 0.0  # λ, mean over the layers
    # Of the decoupled form, see GradientAgreement.
    soft_fraction: float | None = None
    cosine_exact: float | None = None
    cosine_straight_through: float | None = None

    @property
    def gap(self) -> float:
        """Loss of the metric by rounding."""
        return self.soft_metric - self.rounded_metric


@dataclass(frozen=True)
class Rungs:
    """Where a training writes checkpoints, and the epochs at which `passes` decides whether it continues.

    `passes` gets the epoch and the score that the network would have if training ended there. A checkpoint is written
    at each rung and periodically between them; training resumes from it if it exists.
    """

    epochs: tuple[int, ...] = ()
    passes: Callable[[int, Score], bool] = field(default=lambda _epoch, _score: True)
    checkpoint: Path | None = None
    every: float = math.inf  # seconds between two checkpoints
    on_checkpoint: Callable[[], None] = field(default=lambda: None)


class PausedError(Exception):
    """A training did not pass a rung. Its checkpoint is written."""


@dataclass(frozen=True)
class WarmStart:
    """The dense network that all candidates start from."""

    state: State
    score: Score
    teacher_logits: Tensor  # its outputs on the training split, for distillation; empty where inputs change


@dataclass(frozen=True)
class TrainedCandidate:
    """A trained candidate: plain weights, metrics and the history of its training."""

    model: nn.Module
    score: Score
    counts: dict[str, ZeroCount]
    adjusted_fraction: float
    achieved: dict[str, float]  # achieved sparsity per layer, by rounding alone before the exact step
    sparsity_before: float  # the same, overall
    soft_metric: float
    rounded_metric: float
    dead_layers: tuple[str, ...]
    has_trits: bool  # or float weights, of which some are 0
    unit: float  # λ for a strength of 1
    alphas: dict[str, float]
    history: tuple[Epoch, ...]
    snapshots: tuple[Snapshot, ...] = ()

    @property
    def baked_layers(self) -> tuple[str, ...]:
        """The layers of the plain network that hold trits."""
        return baked_layers(self.model, self.counts) if self.has_trits else ()

    @property
    def pruned_layers(self) -> tuple[str, ...]:
        """The layers that hold float weights with a planned number of zeros."""
        return () if self.has_trits else tuple(self.counts)

    def baked_trits(self) -> dict[str, Tensor]:
        return {name: self.model.get_parameter(f"{name}.weight") for name in self.baked_layers}
