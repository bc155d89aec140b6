"""Histograms of the weights at some epochs of a training, as they approach -1, 0 and +1."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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
