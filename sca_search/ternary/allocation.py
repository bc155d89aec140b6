"""Allocates zeros to layers so that the total sparsity, or limits in milliseconds and bytes, are met by construction.

An allocation comes from a weighting: one number per layer, the logarithm of its relative density. A common factor
scales all densities (fractions of non-zeros) until Σ nₗ dₗ = (1 − S) Σ nₗ; layers that reach 1 or their floor stay
there. Every weighting gives a valid allocation and every allocation comes from a weighting, so that none is rejected.
With limits instead, the factor is the largest for which all of them hold.

The least-loss allocation uses the layers' sensitivity: each layer's loss is a curve over its density. For a sparsity
alone, zeros go where they cost least, which is exact; with limits in milliseconds or bytes, whose amounts are other
curves, a mixed-integer solver picks a density per layer.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import Bounds, LinearConstraint, isotonic_regression, milp

from sca_search.errors import SpecError

# Pieces between two measured densities of a layer when zeros are allocated greedily.
_PIECES = 30
# Densities per layer that the solver may choose from, evenly spaced in their logarithms.
_CHOICES = 60
# Relative gap at which the solver may stop, and the time in seconds after which it must.
_GAP, _SECONDS = 1e-3, 20.0
# Loss increase by one layer alone, without retraining, above which further damage cannot be measured.
_BROKEN = 0.25
# The loss that is assumed where nothing was measured, times 1 / density.
_EVENNESS = 0.001

Curve = NDArray[np.float64]


@dataclass(frozen=True)
class LayerShape:
    """The properties of a layer that an allocation depends on."""

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
    """The cost of one layer at one sparsity, without retraining."""

    layer: str
    sparsity: float
    loss: float  # above the dense network's
    accuracy: float  # below the dense network's


@dataclass(frozen=True)
class Limit:
    """An upper limit of a cost: a fixed part, and a part per layer that grows with its density."""

    what: str
    unit: str
    most: float
    fixed: float
    of_layer: Callable[[str, float], float]  # (layer name, density) -> cost

    def amount(self, densities: Mapping[str, float]) -> float:
        """The cost of a network with these densities."""
        return self.fixed + math.fsum(self.of_layer(name, density) for name, density in densities.items())

    def holds(self, densities: Mapping[str, float]) -> bool:
        return self.amount(densities) <= self.most


def allocate(layers: Sequence[LayerShape], weighting: Mapping[str, float], sparsity: float) -> dict[str, float]:
    """The sparsity per layer: dₗ = clip(c · exp wₗ, floor, 1) with the c that gives the total sparsity."""
    weights, floors = sum(layer.weights for layer in layers), _floors(layers)
    nonzeros = (1.0 - sparsity) * weights
    if nonzeros < floors - 0.5:  # half a weight is rounding
        raise SpecError(
            f"a sparsity of {sparsity:g} leaves {nonzeros:.0f} of {weights} weights, fewer than the "
            f"{floors} of the layers' floors: the highest possible is {1.0 - floors / weights:.5f}"
        )

    def too_few(densities: Mapping[str, float]) -> bool:
        return math.fsum(layer.weights * densities[layer.name] for layer in layers) < nonzeros

    _, enough = _turning_point(layers, weighting, too_few)
    return {name: 1.0 - density for name, density in _densities(layers, weighting, enough).items()}


def allocate_within(
    layers: Sequence[LayerShape], weighting: Mapping[str, float], limits: Sequence[Limit]
) -> dict[str, float]:
    """The sparsity per layer with the largest c for which every limit holds: the tightest decides."""
    check_limits(layers, limits)
    full = {layer.name: 1.0 for layer in layers}
    if all(limit.holds(full) for limit in limits):
        return dict.fromkeys(full, 0.0)
    most, _ = _turning_point(layers, weighting, lambda densities: all(limit.holds(densities) for limit in limits))
    return {name: 1.0 - density for name, density in _densities(layers, weighting, most).items()}


def check_limits(layers: Sequence[LayerShape], limits: Sequence[Limit]) -> None:
    """SpecError for a limit that no allocation meets, with the possible range and the largest parts."""
    floors = {layer.name: layer.least_density for layer in layers}
    for limit in limits:
        if limit.holds(floors):
            continue
        least, most = limit.amount(floors), limit.amount(dict.fromkeys(floors, 1.0))
        parts = sorted(((limit.of_layer(name, floor), name) for name, floor in floors.items()), reverse=True)
        rest = [f"{name} {part:.4g}" for part, name in parts[:3]]
        raise SpecError(
            f"a {limit.what} of {limit.most:g} {limit.unit} cannot be met: with every ternary layer at its floor it is "
            f"{least:.4g} {limit.unit}, without zeros {most:.4g}; the largest parts are the dense layers with "
            f"{limit.fixed:.4g}, then {', '.join(rest)}"
        )


def limits_met_without_zeros(layers: Sequence[LayerShape], limits: Sequence[Limit]) -> list[Limit]:
    """The limits that hold without any zeros."""
    return [limit for limit in limits if limit.holds({layer.name: 1.0 for layer in layers})]


def total_sparsity(layers: Sequence[LayerShape], allocation: Mapping[str, float]) -> float:
    """The sparsity of all layers together."""
    zeros = math.fsum(layer.weights * allocation[layer.name] for layer in layers)
    return zeros / sum(layer.weights for layer in layers)


def weighting_of(layers: Sequence[LayerShape], allocation: Mapping[str, float]) -> dict[str, float]:
    """The weighting that gives an allocation, with mean 0: the inverse of `allocate`."""
    logs = {layer.name: math.log(max(1.0 - allocation[layer.name], layer.least_density, 1e-26)) for layer in layers}
    mean = sum(logs.values()) / len(logs)
    return {name: log - mean for name, log in logs.items()}


def group_of(layer: str, groups: str) -> str:
    """The group that a layer's weighting is searched in: the layer, its stage, or one for all."""
    return {"layer": layer, "stage": layer.split(".", maxsplit=1)[0], "all": "all"}[groups]


def grouped(weighting: Mapping[str, float], groups: Mapping[str, str]) -> dict[str, float]:
    """One number per group: the mean over its layers."""
    members: dict[str, list[float]] = {}
    for layer, value in weighting.items():
        members.setdefault(groups[layer], []).append(value)
    return {group: sum(values) / len(values) for group, values in members.items()}


def uniform_weighting(layers: Sequence[LayerShape]) -> dict[str, float]:
    """The same sparsity everywhere."""
    return {layer.name: 0.0 for layer in layers}


def highest_sparsity(layers: Sequence[LayerShape]) -> float:
    """The sparsity with every layer at its floor."""
    return 1.0 - _floors(layers) / sum(layer.weights for layer in layers)


def _densities(layers: Sequence[LayerShape], weighting: Mapping[str, float], log_factor: float) -> dict[str, float]:
    return {
        layer.name: min(1.0, max(layer.least_density, math.exp(min(0.0, log_factor + weighting[layer.name]))))
        for layer in layers
    }


def _turning_point(
    layers: Sequence[LayerShape], weighting: Mapping[str, float], before: Callable[[Mapping[str, float]], bool]
) -> tuple[float, float]:
    """ln c by bisection: the adjacent numbers at which `before` last holds and first fails as densities grow."""
    weights = [weighting[layer.name] for layer in layers]
    low = -max(weights) - 60.0  # densities of 1e-26: every layer at its floor
    high = -min(weights)  # every layer full
    for _ in range(200):  # far beyond the 60 of double precision; stops when nothing lies between
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if before(_densities(layers, weighting, middle)) else (low, middle)
    return low, high


def _floors(layers: Sequence[LayerShape]) -> int:
    return sum(min(layer.least_nonzeros, layer.weights) for layer in layers)


def least_loss_weighting(costs: Sequence[LayerCost], layers: Sequence[LayerShape], sparsity: float) -> dict[str, float]:
    """The weighting of the allocation with the least loss at a sparsity.

    Each layer's loss is made convex in its zeros (slopes fitted to increase), so that filling the pieces of least
    slope first, until the budget is used up, is the exact optimum.
    """
    weights = sum(layer.weights for layer in layers)
    pieces = sorted(
        (slope, layer.name, zeros)
        for layer in layers
        for slope, zeros in _pieces(layer, costs, layer.weights / weights)
    )
    left = sparsity * weights
    allocated = dict.fromkeys((layer.name for layer in layers), 0.0)
    for _, name, zeros in pieces:
        used = min(left, zeros)
        allocated[name] += used
        left -= used
    return weighting_of(layers, {layer.name: allocated[layer.name] / layer.weights for layer in layers})


def least_loss_within(
    costs: Sequence[LayerCost], layers: Sequence[LayerShape], limits: Sequence[Limit]
) -> dict[str, float]:
    """The sparsity per layer with the least sum of losses within all limits, of a grid of densities for each layer."""
    check_limits(layers, limits)
    weights = sum(layer.weights for layer in layers)
    choices = {layer.name: np.geomspace(1.0, _least_density(layer), _CHOICES) for layer in layers}
    losses = []
    for layer in layers:
        depths, loss = _loss_curve(layer, costs, layer.weights / weights)
        losses.append(loss(np.clip(-np.log(choices[layer.name]), depths[0], depths[-1])))
    amounts = [[limit.of_layer(name, float(each)) for name in choices for each in choices[name]] for limit in limits]
    one_each = np.kron(np.eye(len(layers)), np.ones(_CHOICES))
    solved = milp(
        np.concatenate(losses),
        integrality=1,
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(np.array(amounts), -np.inf, np.array([limit.most - limit.fixed for limit in limits])),
        ],
        options={"mip_rel_gap": _GAP, "time_limit": _SECONDS},
    )
    picked = np.reshape(solved.x, (len(layers), _CHOICES)).argmax(axis=1)
    return {name: 1.0 - float(choices[name][index]) for name, index in zip(choices, picked, strict=True)}


def _least_density(layer: LayerShape) -> float:
    """The density of one weight where the floor is 0, which has no logarithm."""
    return max(layer.least_density, 1.0 / layer.weights)


def _loss_curve(layer: LayerShape, costs: Sequence[LayerCost], fraction: float) -> tuple[Curve, PchipInterpolator]:
    """The measured depths (-ln density), and the loss over depth; `fraction`: of all weights that are this layer's.

    Between two measured sparsities, the loss is a monotone cubic in the logarithm of the density: linear pieces would
    let every layer stop at the same points of the grid.
    """
    densities, losses = map(np.array, _extended_losses(layer, costs))
    depths = -np.log(densities)
    # Where nothing is lost, or only noise is measured, the uniform allocation should result.
    return depths, PchipInterpolator(depths, losses + _EVENNESS * fraction / densities)


def _pieces(layer: LayerShape, costs: Sequence[LayerCost], fraction: float) -> list[tuple[float, float]]:
    """(loss per zero, zeros) of short pieces of a layer's zeros, with increasing loss per zero."""
    depths, loss = _loss_curve(layer, costs, fraction)
    parts = [np.linspace(begin, end, _PIECES, endpoint=False) for begin, end in pairwise(depths)]
    fine = np.concatenate([*parts, depths[-1:]])
    zeros = np.diff(-np.expm1(-fine)) * layer.weights
    slopes = np.diff(loss(fine)) / zeros
    rising = isotonic_regression(slopes, weights=zeros).x
    return list(zip(rising.tolist(), zeros.tolist(), strict=True))


def _extended_losses(layer: LayerShape, costs: Sequence[LayerCost]) -> tuple[list[float], list[float]]:
    """Densities from full to the layer's floor, and the loss at each.

    The loss of a network without retraining saturates when its outputs become random, although the damage continues:
    above `_BROKEN` by one layer alone, and beyond the measured range, the loss grows at least inversely to the density.
    """
    measured = sorted((1.0 - cost.sparsity, cost.loss) for cost in costs if cost.layer == layer.name)[::-1]
    densities, losses = [measured[0][0]], [measured[0][1]]
    for density, loss in measured[1:]:
        grown = losses[-1] * densities[-1] / density
        losses.append(max(loss, grown) if losses[-1] > _BROKEN else loss)
        densities.append(density)
    least = _least_density(layer)
    while densities[-1] > least * 1.000001:  # 1 - 0.99 is a little more than 0.01
        density = max(densities[-1] / 2, least)
        losses.append(max(losses[-1], 0.0) * densities[-1] / density)
        densities.append(density)
    return densities, losses
