"""What a network is asked for: the labels, or partly the answers of the dense network."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

TaskLoss = Callable[..., Tensor]
"""(logits, labels, a teacher's logits where the batch has them) -> loss"""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels)


def distillation(share: float, temperature: float) -> TaskLoss:
    """(1 − share) · cross-entropy + share · T² · KL(teacher ‖ network), both softened by T.

    T² keeps the gradient's size independent of the temperature (Hinton, Vinyals and Dean, 2015).
    """

    def loss(logits: Tensor, labels: Tensor, answers: Tensor) -> Tensor:
        theirs = F.log_softmax(answers / temperature, dim=1)
        ours = F.log_softmax(logits / temperature, dim=1)
        mismatch = F.kl_div(ours, theirs, log_target=True, reduction="batchmean")
        return (1 - share) * F.cross_entropy(logits, labels) + share * temperature**2 * mismatch

    return loss
