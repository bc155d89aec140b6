"""A network and a split -> figures: metric, loss; and normalisation statistics, on which both depend."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sca_search.config.references import user_code_errors
from sca_search.data import Batch
from sca_search.system.memory import oom_as_limit_error, trim_heap
from sca_search.training.losses import PlainLoss, cross_entropy
from sca_search.training.metrics import ACCURACY_METRIC, Metric

# Evaluation needs no gradients, so its batches may be larger than training's; this one still fits a small cache.
EVALUATION_BATCH = 256


@dataclass(frozen=True)
class Score:
    """The study's metric and its loss on a split."""

    accuracy: float  # the metric's value, whatever it is called
    loss: float
    error: float | None = None  # the metric's standard error, where it was asked for and does not follow from it


@torch.no_grad()
def score(
    model: nn.Module,
    batches: Iterable[Batch],
    metric: Metric = ACCURACY_METRIC,
    loss: PlainLoss = cross_entropy,
    *,
    with_error: bool = False,
) -> Score:
    """Metric and loss of a network in evaluation mode; its mode is put back."""
    trim_heap()
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    with user_code_errors("the network"), oom_as_limit_error():
        outputs, targets = one_below_another(
            (model(inputs.to(device)).cpu(), targets) for inputs, targets, *_ in batches
        )
    model.train(was_training)
    error = metric.standard_error(outputs, targets) if with_error else None
    return Score(metric(outputs, targets), float(loss(outputs, targets)), error)


@torch.no_grad()
def answers(model: nn.Module, batches: Iterable[Batch]) -> Tensor:
    """The logits of a network in evaluation mode, a row an image."""
    trim_heap()
    model.eval()
    with user_code_errors("the network"), oom_as_limit_error():
        (rows,) = one_below_another((model(images),) for images, *_ in batches)
    return rows


def one_below_another(parts: Iterable[tuple[Tensor, ...]]) -> list[Tensor]:
    """The rows of all parts, a tensor for each place in them.

    Not a list that is joined in the end: small tensors that stay between large ones which go leave holes that the C
    library does not fill again, hundreds of megabytes of them after a data set.
    """
    rooms: list[Tensor] = []
    count = 0
    for part in parts:
        end = count + len(part[0])
        rooms = rooms or [rows.new_empty((0, *rows.shape[1:])) for rows in part]
        if end > len(rooms[0]):
            rooms = [torch.cat([room[:count], room.new_empty((2 * end - count, *room.shape[1:]))]) for room in rooms]
        for room, rows in zip(rooms, part, strict=True):
            room[count:end] = rows
        count = end
    return [room[:count].clone() for room in rooms]


def remembers_its_beginning(model: nn.Module, steps: int) -> bool:
    """Whether more than a hundredth of some BatchNorm's running statistics is still what it was made with.

    Some networks move them by a hundredth a step: after a short training they are all but untouched.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms if norm.track_running_stats and norm.momentum is not None]
    return any((1.0 - momentum) ** steps > 0.01 for momentum in momenta)


@torch.no_grad()
def reestimate_normalisation(model: nn.Module, batches: Iterable[Batch]) -> None:
    """Replaces BatchNorm's running statistics by the mean over some batches of the network as it is now.

    Rounding changes every layer's output distribution; the statistics of the soft network are wrong for it by up
    to tens of points of accuracy. Only the normalisations are put in training mode: dropout must stay off.
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
