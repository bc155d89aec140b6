"""How a training's weights are distributed on their way to -1, 0 and +1: small histograms at some of its epochs."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# Odd, so that one bin is around zero; the outermost ones hold ±1.
BINS = 41
# However long a training is, about so many epochs are kept of it.
MOST_LOOKS = 24


@dataclass(frozen=True)
class Snapshot:
    """All ternary weights of a network after some epochs, counted in equal bins from -1 to 1."""

    epoch: int  # how many are over
    tanh: tuple[int, ...]  # of tanh Θ, what is trained; of other methods' latent weights
    soft: tuple[int, ...]  # of W, what the network computes with; in the paper's form it is the same
    alphas: dict[str, float]  # a layer

    @classmethod
    def of(cls, told: dict[str, Any]) -> "Snapshot":
        """From a file's JSON."""
        return cls(
            int(told["epoch"]),
            tuple(int(count) for count in told["tanh"]),
            tuple(int(count) for count in told["soft"]),
            {str(layer): float(alpha) for layer, alpha in told["alphas"].items()},
        )


def is_kept(epoch: int, epochs: int) -> bool:
    """Whether this epoch of so many is one to keep: the start, the end, and even steps between."""
    return epoch == epochs or epoch % math.ceil(epochs / MOST_LOOKS) == 0


@torch.no_grad()
def snapshot(epoch: int, trained: list[Tensor], used: list[Tensor], alphas: dict[str, float]) -> Snapshot:
    """Weights as they are now: what is trained, and what the network computes with, a layer each."""
    return Snapshot(epoch, _counts(trained), _counts(used), alphas)


def _counts(layers: Any) -> tuple[int, ...]:
    counted = [torch.histc(_inside(layer), bins=BINS, min=-1.0, max=1.0) for layer in layers]
    return tuple(int(count) for count in torch.stack(counted).sum(0))


def _inside(layer: Tensor) -> Tensor:
    """Straight-through, ±1 may come out a last digit larger, and would not be counted."""
    return layer.float().clamp(-1.0, 1.0)
