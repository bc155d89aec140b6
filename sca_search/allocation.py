"""Splits the zeros over layers so that their sum is met by construction.

A split is a weighting: one number a layer, the logarithm of how dense it is to be beside the others. A common factor
then scales all densities (shares of non-zeros) until Σ nₗ dₗ = (1 − S) Σ nₗ, layers that reach 1 or their floor staying
there. Every weighting gives a valid split and every split comes from a weighting, so nothing is ever rejected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import PchipInterpolator
from sklearn.isotonic import IsotonicRegression

from sca_search.errors import SpecError

# Parts into which a layer's way from dense to its floor is cut when zeros are handed out.
_STRETCHES = 100


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
    stretches = sorted((slope, layer.name, zeros) for layer in layers for slope, zeros in _stretches(layer, costs))
    left = sparsity * sum(layer.weights for layer in layers)
    given = dict.fromkeys((layer.name for layer in layers), 0.0)
    for _, name, zeros in stretches:
        taken = min(left, zeros)
        given[name] += taken
        left -= taken
    return weighting_of_split(layers, {layer.name: given[layer.name] / layer.weights for layer in layers})


def _stretches(layer: LayerShape, costs: Sequence[LayerCost]) -> list[tuple[float, float]]:
    """(loss a zero, zeros) of short stretches of a layer's zeros, the losses a zero rising.

    Between two sparsities measured, the loss follows a monotone cubic in the logarithm of the density: straight lines
    would let every layer stop at the same points of the grid.
    """
    points = [(cost.sparsity, cost.loss) for cost in costs if cost.layer == layer.name]
    measured = np.array([-np.log(max(1.0 - sparsity, layer.least_density)) for sparsity, _ in points])
    losses = PchipInterpolator(measured, [loss for _, loss in points])
    depths = np.unique(np.concatenate([np.linspace(measured[0], measured[-1], _STRETCHES + 1), measured]))
    zeros = np.diff(-np.expm1(-depths)) * layer.weights
    slopes = np.diff(losses(depths)) / zeros
    rising = IsotonicRegression().fit_transform(np.arange(len(slopes)), slopes, sample_weight=zeros)
    return list(zip(rising.tolist(), zeros.tolist(), strict=True))


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


def _refuse_impossible(layers: Sequence[LayerShape], sparsity: float) -> None:
    total = sum(layer.weights for layer in layers)
    floors = sum(min(layer.least_nonzeros, layer.weights) for layer in layers)
    if (1.0 - sparsity) * total < floors - 0.5:  # half a weight is rounding
        raise SpecError(
            f"a sparsity of {sparsity:g} leaves {(1.0 - sparsity) * total:.0f} of {total} weights, fewer than the "
            f"{floors} that the layers' floors keep: the highest possible is {1.0 - floors / total:.5f}"
        )
