"""Losses: on the targets, and partly on a teacher's logits."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sca_search.config.names import LOSSES
from sca_search.config.references import USER_ERRORS, describe_error, is_reference, load_object
from sca_search.errors import CodeError, SpecError

if TYPE_CHECKING:
    from sca_search.data import DataSet

PlainLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> loss"""
TaskLoss = Callable[..., Tensor]
"""(outputs, targets, and teacher logits where the batch has them) -> loss"""


_LOSSES: dict[str, PlainLoss] = {
    "cross-entropy": F.cross_entropy,
    "binary-cross-entropy": F.binary_cross_entropy_with_logits,
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "huber": F.huber_loss,
}


def named_function(what: str, chosen: object, known: Sequence[str], data: "DataSet") -> tuple[str, Any]:
    """The name of a loss or metric; and the user's function, or that of a reference, or None for a known name."""
    if chosen is None:
        return known[0], None  # the default of the data's kind
    name = chosen if isinstance(chosen, str) else getattr(chosen, "__name__", type(chosen).__name__)
    if isinstance(chosen, str) and not is_reference(chosen):
        if chosen not in known:
            raise SpecError(
                f"the {what} {name} is not for targets that are {data.kind}, as those of {data.name}: "
                f"known are {', '.join(known)}"
            )
        return name, None
    function = load_object(chosen, f"the {what}") if isinstance(chosen, str) else chosen
    if not callable(function):
        raise SpecError(f"the {what} {name} must be a function of (outputs, targets), got {function!r}")
    return name, function


def loss_of(loss: str | PlainLoss | None, data: "DataSet") -> PlainLoss:
    """The loss of that name, or the user's function or a reference to it; default: that of the data's kind."""
    name, function = named_function("loss", loss, LOSSES[data.kind], data)
    if function is not None:
        return _checked(name, function, data)
    return _balanced(data) if name == "balanced-cross-entropy" else _LOSSES[name]


def _balanced(data: "DataSet") -> PlainLoss:
    """Cross-entropy in which every class has the same total weight."""
    counts = torch.bincount(data.train.labels, minlength=data.num_classes)
    weights = len(data.train) / (data.num_classes * counts.clamp(min=1).float())

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, weight=weights.to(logits.device))

    return loss


def _checked(reference: str, function: PlainLoss, data: "DataSet") -> PlainLoss:
    """The user's loss, called once; later failures are reported as errors in the user's code."""

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            value = function(outputs, targets)
        except USER_ERRORS as error:
            raise CodeError(f"the loss {reference} failed with {describe_error(error)}") from error
        if not isinstance(value, Tensor) or value.ndim != 0:
            got = f"tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise CodeError(f"the loss {reference} must return a tensor with a single number (shape ()), got a {got}")
        return value

    targets = data.val.labels[:64]
    try:
        tried = loss(torch.zeros(len(targets), data.num_classes, requires_grad=True), targets)
    except CodeError as error:
        raise SpecError(str(error)) from error
    if not tried.requires_grad:
        raise SpecError(f"the loss {reference} must be differentiable in the outputs, it has no gradient")
    return loss


def distillation(fraction: float, loss: PlainLoss, mismatch: PlainLoss) -> TaskLoss:
    """(1 − fraction) · loss + fraction · mismatch between the network's and the teacher's logits."""

    def both(outputs: Tensor, targets: Tensor, teacher_logits: Tensor) -> Tensor:
        return (1 - fraction) * loss(outputs, targets) + fraction * mismatch(outputs, teacher_logits)

    return both


def mismatch_of(kind: str, temperature: float) -> PlainLoss:
    """The distillation loss of a kind of task, of the network's and the teacher's outputs, both softened by T.

    Classes: T² · KL(teacher ‖ network); labels: T² · cross-entropy of each label's logit with the teacher's
    probability; numbers: MSE. T² makes the gradient's size independent of the temperature (Hinton, Vinyals and Dean,
    2015).
    """

    def of_classes(logits: Tensor, teacher_logits: Tensor) -> Tensor:
        teacher = F.log_softmax(teacher_logits / temperature, dim=1)
        network = F.log_softmax(logits / temperature, dim=1)
        return temperature**2 * F.kl_div(network, teacher, log_target=True, reduction="batchmean")

    def of_labels(logits: Tensor, teacher_logits: Tensor) -> Tensor:
        teacher = torch.sigmoid(teacher_logits / temperature)
        return temperature**2 * F.binary_cross_entropy_with_logits(logits / temperature, teacher)

    if kind == "regression":
        return F.mse_loss
    return of_classes if kind == "classes" else of_labels
