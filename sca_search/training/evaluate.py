"""Metric and loss of a network on a split, its logits, and its normalization statistics."""

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
def reestimate_normalization(model: nn.Module, batches: "Iterable[Batch]") -> None:
    """Replace BatchNorm's running statistics by the mean over some batches, with the current weights.

    Rounding changes every layer's output distribution; the statistics of the soft network are wrong for it by up
    to tens of points of accuracy. Only the normalizations are set to training mode: dropout must stay off.
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
