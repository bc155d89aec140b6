"""What a network is asked for: the targets, or partly the answers of the dense network."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from sca_search.config.names import LOSSES
from sca_search.config.references import USER_ERRORS, describe_error, is_reference, load_object
from sca_search.data import DataSet
from sca_search.errors import CodeError, SpecError

PlainLoss = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> loss"""
TaskLoss = Callable[..., Tensor]
"""(outputs, targets, a teacher's outputs where the batch has them) -> loss"""


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


def loss_of(given: str | PlainLoss | None, data: DataSet) -> PlainLoss:
    """The loss of that name, or a user's function, by its name or itself; by default that of the data's kind."""
    known = LOSSES[data.kind]
    if not isinstance(given, str | None):
        return _checked(getattr(given, "__name__", type(given).__name__), given, data)
    if given is not None and is_reference(given):
        return _checked(given, load_object(given, "the loss"), data)
    name = given or known[0]
    if name not in known:
        raise SpecError(
            f"the loss {name} is not for targets that are {data.kind}, as those of {data.name}: "
            f"known are {', '.join(known)}"
        )
    return _balanced(data) if name == "balanced-cross-entropy" else _LOSSES[name]


def _balanced(data: DataSet) -> PlainLoss:
    """Cross-entropy in which every class weighs the same, however many examples it has."""
    counts = torch.bincount(data.train.labels, minlength=data.num_classes)
    weights = len(data.train) / (data.num_classes * counts.clamp(min=1).float())

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, weight=weights.to(logits.device))

    return loss


def _checked(reference: str, function: object, data: DataSet) -> PlainLoss:
    """A user's loss, tried once; where it fails later, the failure is told as theirs."""
    if not callable(function):
        raise SpecError(f"the loss {reference} must be a function of (outputs, targets), got {function!r}")

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        try:
            value = function(outputs, targets)
        except USER_ERRORS as error:
            raise CodeError(f"the loss {reference} failed with {describe_error(error)}") from error
        if not isinstance(value, Tensor) or value.ndim != 0:
            came = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {_kind(value)}"
            raise CodeError(f"the loss {reference} must give a tensor with a single number (shape ()), it gave {came}")
        return value

    _try_loss(loss, reference, data)
    return loss


def _kind(value: object) -> str:
    return type(value).__name__


def _try_loss(loss: PlainLoss, reference: str, data: DataSet) -> None:
    targets = data.val.labels[:64]
    outputs = torch.zeros(len(targets), data.num_classes, requires_grad=True)
    try:
        value = loss(outputs, targets)
    except CodeError as error:
        raise SpecError(str(error)) from error
    if not value.requires_grad:
        raise SpecError(f"the loss {reference} must depend on the outputs by torch's operations, it has no gradient")


def distillation(
    share: float, temperature: float, loss: PlainLoss = cross_entropy, mismatch: PlainLoss | None = None
) -> TaskLoss:
    """(1 − share) · loss + share · mismatch between the network's and the teacher's outputs."""
    differ = mismatch or softened_kl(temperature)

    def both(outputs: Tensor, targets: Tensor, answers: Tensor) -> Tensor:
        return (1 - share) * loss(outputs, targets) + share * differ(outputs, answers)

    return both


def mismatch_of(kind: str, temperature: float) -> PlainLoss:
    """How far outputs are from a teacher's: KL of softened classes, cross-entropy of softened labels, squares."""
    if kind == "classes":
        return softened_kl(temperature)
    return F.mse_loss if kind == "regression" else softened_labels(temperature)


def softened_kl(temperature: float) -> PlainLoss:
    """T² · KL(teacher ‖ network), both softened by T.

    T² keeps the gradient's size independent of the temperature (Hinton, Vinyals and Dean, 2015).
    """

    def mismatch(logits: Tensor, answers: Tensor) -> Tensor:
        theirs = F.log_softmax(answers / temperature, dim=1)
        ours = F.log_softmax(logits / temperature, dim=1)
        return temperature**2 * F.kl_div(ours, theirs, log_target=True, reduction="batchmean")

    return mismatch


def softened_labels(temperature: float) -> PlainLoss:
    """T² · cross-entropy of each label's logit with the teacher's probability of it, both softened by T."""

    def mismatch(logits: Tensor, answers: Tensor) -> Tensor:
        theirs = torch.sigmoid(answers / temperature)
        return temperature**2 * F.binary_cross_entropy_with_logits(logits / temperature, theirs)

    return mismatch
