"""What a network is asked for: the labels, or partly the answers of the dense network."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TaskLoss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(images, logits, labels) -> loss"""


def cross_entropy(images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001 - a TaskLoss
    return F.cross_entropy(logits, labels)


def distilled(teacher: nn.Module, share: float, temperature: float) -> TaskLoss:
    """(1 − share) · cross-entropy + share · T² · KL(teacher ‖ network), both softened by T.

    T² keeps the gradient's size independent of the temperature (Hinton, Vinyals and Dean, 2015).
    """
    teacher.eval().requires_grad_(False)

    def loss(images: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        with torch.no_grad():
            answers = F.log_softmax(teacher.to(images.device)(images) / temperature, dim=1)
        ours = F.log_softmax(logits / temperature, dim=1)
        mismatch = F.kl_div(ours, answers, log_target=True, reduction="batchmean")
        return (1 - share) * F.cross_entropy(logits, labels) + share * temperature**2 * mismatch

    return loss
