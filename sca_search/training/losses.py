"""Losses: on the targets, and partly on a teacher's logits."""

from collections.abc import Callable
from typing import TYPE_CHECKING

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


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, targets)


_LOSSES: dict[str, PlainLoss] = {
    "cross-entropy": cross_entropy,
    "binary-cross-entropy": binary_cross_entropy,
    "mse": F.mse_loss,
    "mae": F.l1_loss,
    "huber": F.huber_loss,
}


def loss_of(loss: str | PlainLoss | None, data: "DataSet") -> PlainLoss:
    """The loss of that name, or the user's function or a reference to it; default: that of the data's kind."""
    known = LOSSES[data.kind]
    if not isinstance(loss, str | None):
        return _checked(getattr(loss, "__name__", type(loss).__name__), loss, data)
    if loss is not None and is_reference(loss):
        return _checked(loss, load_object(loss, "the loss"), data)
    name = loss or known[0]
    if name not in known:
        raise SpecError(
            f"the loss {name} is not for targets that are {data.kind}, as those of {data.name}: "
            f"known are {', '.join(known)}"
        )
    return _balanced(data) if name == "balanced-cross-entropy" else _LOSSES[name]


def _balanced(data: "DataSet") -> PlainLoss:
    """Cross-entropy in which every class has the same total weight."""
    counts = torch.bincount(data.train.labels, minlength=data.num_classes)
    weights = len(data.train) / (data.num_classes * counts.clamp(min=1).float())

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, weight=weights.to(logits.device))

    return loss


def _checked(reference: str, function: object, data: "DataSet") -> PlainLoss:
    """The user's loss, called once; later failures are reported as errors in the user's code."""
    if not callable(function):
        raise SpecError(f"the loss {reference} must be a function of (outputs, targets), got {function!r}")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            value = function(outputs, targets)
        except USER_ERRORS as error:
            raise CodeError(f"the loss {reference} failed with {describe_error(error)}") from error
        if not isinstance(value, Tensor) or value.ndim != 0:
            kind = type(value).__name__
            got = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {kind}"
            raise CodeError(f"the loss {reference} must return a tensor with a single number (shape ()), got {got}")
        return value

    _try_loss(loss, reference, data)
    return loss


def _try_loss(loss: PlainLoss, reference: str, data: "DataSet") -> None:
    targets = data.val.labels[:64]
    outputs = torch.zeros(len(targets), data.num_classes, requires_grad=True)
    try:
        value = loss(outputs, targets)
    except CodeError as error:
        raise SpecError(str(error)) from error
    if not value.requires_grad:
        raise SpecError(f"the loss {reference} must be differentiable in the outputs, it has no gradient")


def distillation(
    fraction: float, temperature: float, loss: PlainLoss = cross_entropy, mismatch: PlainLoss | None = None
) -> TaskLoss:
    """(1 − fraction) · loss + fraction · mismatch between the network's and the teacher's logits."""
    teacher_loss = mismatch or softened_kl(temperature)

    def both(outputs: Tensor, targets: Tensor, teacher_logits: Tensor) -> Tensor:
        return (1 - fraction) * loss(outputs, targets) + fraction * teacher_loss(outputs, teacher_logits)

    return both


def mismatch_of(kind: str, temperature: float) -> PlainLoss:
    """The distillation loss of a kind of task: KL of softened classes, cross-entropy of softened labels, or MSE."""
    if kind == "classes":
        return softened_kl(temperature)
    return F.mse_loss if kind == "regression" else softened_labels(temperature)


def softened_kl(temperature: float) -> PlainLoss:
    """T² · KL(teacher ‖ network), both softened by T.

    T² makes the gradient's size independent of the temperature (Hinton, Vinyals and Dean, 2015).
    """

    def mismatch(logits: Tensor, teacher_logits: Tensor) -> Tensor:
        teacher = F.log_softmax(teacher_logits / temperature, dim=1)
        network = F.log_softmax(logits / temperature, dim=1)
        return temperature**2 * F.kl_div(network, teacher, log_target=True, reduction="batchmean")

    return mismatch


def softened_labels(temperature: float) -> PlainLoss:
    """T² · cross-entropy of each label's logit with the teacher's probability, both softened by T."""

    def mismatch(logits: Tensor, teacher_logits: Tensor) -> Tensor:
        teacher = torch.sigmoid(teacher_logits / temperature)
        return temperature**2 * F.binary_cross_entropy_with_logits(logits / temperature, teacher)

    return mismatch
