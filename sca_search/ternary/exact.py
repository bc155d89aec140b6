"""The exact step: trits with a given number of zeros, adjusting as few weights as possible.

Rounding leaves a layer near its planned sparsity, not at it. The weights closest to the border, |W| = ½, cross it
until the total count is exact, in whichever layers they are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from sca_search.ternary.parametrize import signs


@dataclass(frozen=True)
class Floor:
    """Minimum non-zeros of a layer and of each of its output channels, as far as the total count allows."""

    per_layer: int = 1
    per_channel: int = 0


@dataclass(frozen=True)
class ExactTrits:
    """The trits, and how many weights crossed the border for them."""

    trits: dict[str, Tensor]
    adjusted: int

    @property
    def adjusted_fraction(self) -> float:
        return self.adjusted / max(1, sum(layer.numel() for layer in self.trits.values()))


def exact_trits(
    latents: Mapping[str, Tensor],
    softs: Mapping[str, Tensor],
    thresholds: Mapping[str, float],
    zeros: int,
    floor: Floor,
    transposed: Mapping[str, int] = MappingProxyType({}),
) -> ExactTrits:
    """Trits of which exactly `zeros` are 0. `transposed`: the transposed convolutions, with their groups.

    `softs` determine what rounding would give; `latents` minus their layer's threshold determine how far each weight
    is from the border, since in the decoupled form W is a trit nearly everywhere at the end and cannot rank them.
    """
    names = list(latents)
    rounds_to_zero = torch.cat([(softs[name].round() == 0).flatten() for name in names])
    margin = torch.cat([_margin(latents[name], thresholds[name]) for name in names])
    magnitudes = {name: latents[name].abs() for name in names}
    protected = _protected(magnitudes, transposed, floor, rounds_to_zero.numel() - zeros)
    is_zero = _with_count(rounds_to_zero & ~protected, margin, protected, zeros)
    adjusted = int((is_zero != rounds_to_zero).sum())
    sizes = [latents[name].numel() for name in names]
    trits = {
        name: torch.where(layer_zero.view_as(latents[name]), 0.0, signs(latents[name]))
        for name, layer_zero in zip(names, torch.split(is_zero, sizes), strict=True)
    }
    return ExactTrits(trits, adjusted)


def _margin(latent: Tensor, threshold: float) -> Tensor:
    """Distance to the border, negative inside."""
    magnitude = latent.abs().flatten()
    if math.isfinite(threshold):
        return magnitude - threshold
    # α = 2 has an infinite basin: farther than all others, and the largest magnitude is the closest.
    return -1e30 / (1 + magnitude)


def _with_count(is_zero: Tensor, margin: Tensor, protected: Tensor, zeros: int) -> Tensor:
    """`is_zero`, changed for the unprotected weights closest to the border until `zeros` of them are set."""
    missing = zeros - int(is_zero.sum())
    result = is_zero.clone()
    if missing > 0:
        eligible = torch.where(is_zero | protected, torch.inf, margin)
        result[eligible.topk(missing, largest=False).indices] = True
    elif missing < 0:
        eligible = torch.where(is_zero, margin, -torch.inf)
        result[eligible.topk(-missing).indices] = False
    return result


def _protected(magnitudes: Mapping[str, Tensor], transposed: Mapping[str, int], floor: Floor, budget: int) -> Tensor:
    """Flat mask of the largest weights of each channel, and as many more as each layer's floor requires.

    At most `budget`, the number of non-zeros: where they do not all fit, layers take precedence over channels.
    """
    flat = torch.cat([layer.flatten() for layer in magnitudes.values()])
    both = torch.cat([_with_channels(layer, floor, transposed.get(name, 0)) for name, layer in magnitudes.items()])
    if int(both.sum()) <= budget:
        return both
    layers = torch.cat([_largest(layer.reshape(1, -1), floor.per_layer) for layer in magnitudes.values()])
    if int(layers.sum()) <= budget:
        rank = torch.where(layers, torch.inf, torch.where(both, flat, -torch.inf))
    else:
        rank = torch.where(layers, flat, -torch.inf)
    return torch.zeros_like(both).index_fill(0, rank.topk(max(0, budget)).indices, True)


def _with_channels(layer: Tensor, floor: Floor, transposed_groups: int) -> Tensor:
    """Flat mask of a layer's protected weights: the largest of its channels count towards the layer's floor."""
    channels = _largest_of_outputs(layer, floor.per_channel, transposed_groups)
    first_channels = torch.where(channels, torch.inf, layer.flatten()).view(1, -1)
    return channels | _largest(first_channels, floor.per_layer)


def _largest_of_outputs(layer: Tensor, count: int, transposed_groups: int) -> Tensor:
    """Flat mask of the `count` largest of each output channel.

    A transposed convolution has its outputs after its inputs: (groups · inputs of one, outputs of one, kernel).
    """
    if not transposed_groups:
        return _largest(layer.flatten(1), count)
    by_output = layer.reshape(transposed_groups, -1, *layer.shape[1:]).transpose(1, 2)
    mask = _largest(by_output.flatten(0, 1).flatten(1), count).view(by_output.shape)
    return mask.transpose(1, 2).flatten()


def _largest(rows: Tensor, count: int) -> Tensor:
    """Flat mask of the `count` largest of each row."""
    mask = torch.zeros_like(rows, dtype=torch.bool)
    if count:
        mask.scatter_(1, rows.topk(min(count, rows.shape[1]), dim=1).indices, True)
    return mask.flatten()
