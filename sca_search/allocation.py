"""Splits the zeros over layers so that their sum is met by construction.

A split is a weighting: one number a layer, the logarithm of how dense it is to be beside the others. A common factor
then scales all densities (shares of non-zeros) until Σ nₗ dₗ = (1 − S) Σ nₗ, layers that reach 1 or their floor staying
there. Every weighting gives a valid split and every split comes from a weighting, so nothing is ever rejected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.interpolate import PchipInterpolator
from sklearn.isotonic import IsotonicRegression

from sca_search.errors import SpecError

# Parts into which a layer's way from one measured density to the next is cut when zeros are handed out.
_STRETCHES = 30
# Loss by one layer alone from which an untrained network is too broken to tell how much worse it gets.
_BROKEN = 0.25
# The loss that a network's non-zeros are worth where the measurement says nothing, times 1 / density.
_EVENNESS = 0.001


@dataclass(frozen=True)
class LayerShape:
    """What a split needs to know of a layer."""

    name: str
    shape: tuple[int, ...]  # of its weight: output channels, input channels, kernel
    least_nonzeros: int = 1

    @property
    def weights(self) -> int:
        return math.prod(self.shape)

    @property
    def least_density(self) -> float:
        return min(1.0, self.least_nonzeros / self.weights)


@dataclass(frozen=True)
class LayerCost:
    """What a layer at a sparsity costs the untrained network."""

    layer: str
    sparsity: float
    loss: float  # above the dense network's
    accuracy: float  # below the dense network's


def split_of_weighting(
    layers: Sequence[LayerShape], weighting: Mapping[str, float], sparsity: float
) -> dict[str, float]:
    """The sparsity a layer: dₗ = clip(c · exp wₗ, floor, 1) with the one c that meets the overall sparsity."""
    _refuse_impossible(layers, sparsity)
    wanted = (1.0 - sparsity) * sum(layer.weights for layer in layers)
    densities = _densities(layers, weighting, _common_factor(layers, weighting, wanted))
    return {layer.name: 1.0 - density for layer, density in zip(layers, densities, strict=True)}


def weighting_of_split(layers: Sequence[LayerShape], split: Mapping[str, float]) -> dict[str, float]:
    """The weighting that gives a split, its mean set to 0: the inverse of `split_of_weighting`."""
    logs = {layer.name: math.log(max(1.0 - split[layer.name], layer.least_density, 1e-26)) for layer in layers}
    mean = sum(logs.values()) / len(logs)
    return {name: log - mean for name, log in logs.items()}


def group_of(layer: str, groups: str) -> str:
    """The name under which a layer's part of a split is searched: its own, its stage's, or one for all."""
    return {"layer": layer, "stage": layer.split(".", maxsplit=1)[0], "all": "all"}[groups]


def grouped(weighting: Mapping[str, float], groups: Mapping[str, str]) -> dict[str, float]:
    """One number a group: the mean over its layers."""
    members: dict[str, list[float]] = {}
    for layer, value in weighting.items():
        members.setdefault(groups[layer], []).append(value)
    return {group: sum(values) / len(values) for group, values in members.items()}


def uniform_weighting(layers: Sequence[LayerShape]) -> dict[str, float]:
    """The same sparsity everywhere."""
    return {layer.name: 0.0 for layer in layers}


def erdos_renyi_weighting(layers: Sequence[LayerShape]) -> dict[str, float]:
    """Densities in proportion to (Σ of the weight's dimensions) / (their product): small layers stay denser.

    The Erdős–Rényi kernel rule of Evci et al., Rigging the Lottery (2020).
    """
    return {layer.name: math.log(sum(layer.shape) / layer.weights) for layer in layers}


def sparing_weighting(costs: Sequence[LayerCost], layers: Sequence[LayerShape], sparsity: float) -> dict[str, float]:
    """The weighting of the split that loses least by these costs.

    Each layer's loss is made convex in its zeros (slopes fitted to rise), so that handing zeros to the flattest
    stretch first, until the budget is used up, is the exact optimum.
    """
    weights = sum(layer.weights for layer in layers)
    stretches = sorted(
        (slope, layer.name, zeros)
        for layer in layers
        for slope, zeros in _stretches(layer, costs, layer.weights / weights)
    )
    left = sparsity * weights
    given = dict.fromkeys((layer.name for layer in layers), 0.0)
    for _, name, zeros in stretches:
        taken = min(left, zeros)
        given[name] += taken
        left -= taken
    return weighting_of_split(layers, {layer.name: given[layer.name] / layer.weights for layer in layers})


def _stretches(layer: LayerShape, costs: Sequence[LayerCost], share: float) -> list[tuple[float, float]]:
    """(loss a zero, zeros) of short stretches of a layer's zeros, the losses a zero rising.

    Between two sparsities measured, the loss follows a monotone cubic in the logarithm of the density: straight lines
    would let every layer stop at the same points of the grid.
    """
    densities, losses = map(np.array, _damage(layer, costs))
    depths = -np.log(densities)
    # Where nothing is lost, or nothing but noise is seen, the even split should come out.
    smooth = PchipInterpolator(depths, losses + _EVENNESS * share / densities)
    parts = [np.linspace(begin, end, _STRETCHES, endpoint=False) for begin, end in pairwise(depths)]
    fine = np.concatenate([*parts, depths[-1:]])
    zeros = np.diff(-np.expm1(-fine)) * layer.weights
    slopes = np.diff(smooth(fine)) / zeros
    rising = IsotonicRegression().fit_transform(np.arange(len(slopes)), slopes, sample_weight=zeros)
    return list(zip(rising.tolist(), zeros.tolist(), strict=True))


def _damage(layer: LayerShape, costs: Sequence[LayerCost]) -> tuple[list[float], list[float]]:
    """Densities from full to the layer's floor, and the loss that each stands for.

    An untrained network's loss stops growing when its answers are chance, the harm done to it does not: from where a
    layer alone costs `_BROKEN`, and beyond what was measured, the loss grows at least as the non-zeros dwindle.
    """
    measured = sorted((1.0 - cost.sparsity, cost.loss) for cost in costs if cost.layer == layer.name)[::-1]
    densities, losses = [measured[0][0]], [measured[0][1]]
    for density, loss in measured[1:]:
        grown = losses[-1] * densities[-1] / density
        losses.append(max(loss, grown) if losses[-1] > _BROKEN else loss)
        densities.append(density)
    while densities[-1] > layer.least_density * 1.000001:  # 1 - 0.99 is a little more than 0.01
        density = max(densities[-1] / 2, layer.least_density)
        losses.append(max(losses[-1], 0.0) * densities[-1] / density)
        densities.append(density)
    return densities, losses


def _densities(layers: Sequence[LayerShape], weighting: Mapping[str, float], log_factor: float) -> list[float]:
    return [
        min(1.0, max(layer.least_density, math.exp(min(0.0, log_factor + weighting[layer.name])))) for layer in layers
    ]


def _common_factor(layers: Sequence[LayerShape], weighting: Mapping[str, float], wanted: float) -> float:
    """ln c by bisection: the sum of non-zeros grows with c, from the floors to everything."""

    def nonzeros(log_factor: float) -> float:
        densities = _densities(layers, weighting, log_factor)
        return math.fsum(layer.weights * density for layer, density in zip(layers, densities, strict=True))

    largest = max(weighting[layer.name] for layer in layers)
    smallest = min(weighting[layer.name] for layer in layers)
    low = -largest - 60.0  # densities of 1e-26: every layer at its floor
    high = -smallest  # every layer full
    for _ in range(200):  # far beyond double precision's 60; stops when nothing lies between
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if nonzeros(middle) < wanted else (low, middle)
    return high


def highest_sparsity(layers: Sequence[LayerShape]) -> float:
    """What is left when every layer keeps its floor and nothing else."""
    return 1.0 - _floors(layers) / sum(layer.weights for layer in layers)


def _floors(layers: Sequence[LayerShape]) -> int:
    return sum(min(layer.least_nonzeros, layer.weights) for layer in layers)


def _refuse_impossible(layers: Sequence[LayerShape], sparsity: float) -> None:
    total, floors = sum(layer.weights for layer in layers), _floors(layers)
    if (1.0 - sparsity) * total < floors - 0.5:  # half a weight is rounding
        raise SpecError(
            f"a sparsity of {sparsity:g} leaves {(1.0 - sparsity) * total:.0f} of {total} weights, fewer than the "
            f"{floors} that the layers' floors keep: the highest possible is {1.0 - floors / total:.5f}"
        )
