"""Metric and loss of a network on a split, its logits, and its normalisation statistics."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.config.references import user_code_errors
from sca_search.system.machine import oom_as_limit_error, trim_heap
from sca_search.training.losses import PlainLoss
from sca_search.training.metrics import ACCURACY_METRIC, Metric

if TYPE_CHECKING:
    from sca_search.data import Batch

import math
from collections.abc import Callable
from itertools import islice

from sca_search.ternary.allocation import LayerCost
from sca_search.ternary.parametrize import trits_at
from sca_search.ternary.prior import border
from sca_search.training.fit import layout
from sca_search.training.task import Task, WarmStart

# Evaluation needs no gradients, so its batches may be larger than in training; this one still fits a small cache.
EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Score:
    """The study's metric and its loss on a split."""

    accuracy: float  # the value of the study's metric
    loss: float
    error: float | None = None  # the metric's standard error, if requested and not determined by the value


@torch.no_grad()
def score(
    model: nn.Module,
    batches: "Iterable[Batch]",
    metric: Metric = ACCURACY_METRIC,
    loss: PlainLoss = F.cross_entropy,
    *,
    with_error: bool = False,
) -> Score:
    """Metric and loss of a network in evaluation mode; its mode is restored."""
    trim_heap()
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    with user_code_errors("the network"), oom_as_limit_error():
        outputs, targets = concatenated((model(inputs.to(device)).cpu(), targets) for inputs, targets, *_ in batches)
    model.train(was_training)
    error = metric.standard_error(outputs, targets) if with_error else None
    return Score(metric(outputs, targets), float(loss(outputs, targets)), error)


@torch.no_grad()
def logits_of(model: nn.Module, batches: "Iterable[Batch]") -> Tensor:
    """The logits of a network in evaluation mode, one row per input."""
    trim_heap()
    model.eval()
    with user_code_errors("the network"), oom_as_limit_error():
        (rows,) = concatenated((model(images),) for images, *_ in batches)
    return rows


def concatenated(parts: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """The parts' tensors concatenated along their rows, one result per position in the tuples.

    Not `torch.cat` of a list: small tensors that stay allocated between large ones fragment the heap, by hundreds of
    megabytes after a data set.
    """
    buffers: list[Tensor] = []
    count = 0
    for part in parts:
        end = count + len(part[0])
        buffers = buffers or [rows.new_empty((0, *rows.shape[1:])) for rows in part]
        if end > len(buffers[0]):
            buffers = [torch.cat([old[:count], old.new_empty((2 * end - count, *old.shape[1:]))]) for old in buffers]
        for buffer, rows in zip(buffers, part, strict=True):
            buffer[count:end] = rows
        count = end
    return [buffer[:count].clone() for buffer in buffers]


def has_initial_statistics(model: nn.Module, steps: int) -> bool:
    """Whether more than a hundredth of some BatchNorm's running statistics is still their initial value.

    Some networks have a momentum of a hundredth: after a short training the statistics are nearly initial.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms if norm.track_running_stats and norm.momentum is not None]
    return any((1.0 - momentum) ** steps > 0.01 for momentum in momenta)


@torch.no_grad()
def reestimate_normalisation(model: nn.Module, batches: "Iterable[Batch]") -> None:
    """Replace BatchNorm's running statistics by the mean over some batches, with the current weights.

    Rounding changes every layer's output distribution; the statistics of the soft network are wrong for it by up
    to tens of points of accuracy. Only the normalisations are set to training mode: dropout must stay off.
    """
    model.eval()
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a cumulative mean
        norm.train()
    trim_heap()
    device = next(model.parameters()).device
    with user_code_errors("the network"), oom_as_limit_error():
        for images, *_ in batches:
            model(images.to(device))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    model.eval()


GRID = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
COARSE_GRID = (0.0, 0.8, 0.95, 0.99)
# Two thousand images give statistics and losses within a few percent, far below the differences compared.
_BATCHES = 8


def measure_sensitivity(
    task: Task,
    start: WarmStart,
    most_images: float = math.inf,
    on_layer: Callable[[int, int], None] = lambda _layer, _layers: None,
) -> list[LayerCost]:
    """The cost of every ternary layer at every sparsity of the grid, up to the layer's floor.

    About `most_images` are evaluated, but at least one batch each time and four sparsities per layer. `on_layer` is
    called with the number of layers done and their total.
    """
    layers = task.layer_shapes
    a_batch = 2 * EVALUATION_BATCH  # for the statistics, and for the loss
    grid = GRID if most_images >= a_batch * len(layers) * len(GRID) else COARSE_GRID
    batches = max(1, math.floor(min(_BATCHES, most_images / (a_batch * len(layers) * len(grid)))))
    dense = _score(task, task.model_with(start.state), batches)
    costs = []
    for number, layer in enumerate(layers, start=1):
        for sparsity in (sparsity for sparsity in grid if sparsity <= 1.0 - layer.least_density):
            model = task.model_with(start.state)
            weight = model.get_parameter(f"{layer.name}.weight").data
            weight.copy_(scaled_trits(weight, sparsity))
            rounded = _score(task, model, batches)
            cost = LayerCost(layer.name, sparsity, rounded.loss - dense.loss, dense.accuracy - rounded.accuracy)
            costs.append(cost)
        on_layer(number, len(layers))
    return costs


def _score(task: Task, model: nn.Module, batches: int) -> Score:
    model.to(memory_format=layout(model))  # type: ignore[call-overload]
    reestimate_normalisation(model, islice(task.data.training.batches(EVALUATION_BATCH, seed=0), batches))
    # Batches of a long split are shuffled: its first ones might be all of one class.
    seed = 0 if len(task.data.val) > batches * EVALUATION_BATCH else None
    return task.score(model, islice(task.data.val.batches(EVALUATION_BATCH, seed=seed), batches))


def scaled_trits(weight: Tensor, sparsity: float) -> Tensor:
    """Trits of a dense weight at a sparsity, times the mean magnitude of the non-zeros.

    Before a normalisation the factor changes nothing; elsewhere it preserves the magnitude of the layer's output.
    """
    trits = trits_at(weight, border(weight, sparsity))
    return trits * weight.abs()[trits != 0].mean() if bool(trits.any()) else trits
