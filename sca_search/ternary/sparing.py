"""The split of the zeros that loses least by the layers' sensitivity, at a sparsity or within limits.

Each layer's loss is a curve over its density. At a sparsity alone, zeros are handed out where they cost least, which is
exact; with limits in milliseconds or bytes, whose amounts are other curves, a solver picks a density a layer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator
from scipy.optimize import Bounds, LinearConstraint, isotonic_regression, milp

from sca_search.ternary.allocation import LayerCost, LayerShape, Limit, refuse_impossible_limits, weighting_of_split

# Parts into which a layer's way from one measured density to the next is cut when zeros are handed out.
_STRETCHES = 30
# Densities that the solver may pick from, a layer, evenly by their logarithms.
_CHOICES = 60
# How far from the best the solver may stop, as a share of the loss, and after how many seconds it must.
_GAP, _SECONDS = 1e-3, 20.0
# Loss by one layer alone from which an untrained network is too broken to tell how much worse it gets.
_BROKEN = 0.25
# The loss that a network's non-zeros are worth where the measurement says nothing, times 1 / density.
_EVENNESS = 0.001

Curve = NDArray[np.float64]


@dataclass(frozen=True)
class Spared:
    """A split with the loss that is expected of it, and how far that may be from the best, as a share of it."""

    split: dict[str, float]
    loss: float
    gap: float


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


def sparing_split(costs: Sequence[LayerCost], layers: Sequence[LayerShape], limits: Sequence[Limit]) -> Spared:
    """One of so many densities for each layer, such that all limits hold and the sum of losses is least."""
    refuse_impossible_limits(layers, limits)
    weights = sum(layer.weights for layer in layers)
    choices = {layer.name: np.geomspace(1.0, _least_density(layer), _CHOICES) for layer in layers}
    losses = [_loss_at(layer, costs, layer.weights / weights, choices[layer.name]) for layer in layers]
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
    split = {name: 1.0 - float(choices[name][place]) for name, place in zip(choices, picked, strict=True)}
    return Spared(split, float(solved.fun), float(solved.mip_gap))


def _least_density(layer: LayerShape) -> float:
    """Of one weight where the floor is none at all, which has no logarithm."""
    return max(layer.least_density, 1.0 / layer.weights)


def _loss_curve(layer: LayerShape, costs: Sequence[LayerCost], share: float) -> tuple[Curve, PchipInterpolator]:
    """The depths (-ln density) that were measured, and the loss over depth.

    Between two sparsities measured, the loss follows a monotone cubic in the logarithm of the density: straight lines
    would let every layer stop at the same points of the grid.
    """
    densities, losses = map(np.array, _damage(layer, costs))
    depths = -np.log(densities)
    # Where nothing is lost, or nothing but noise is seen, the even split should come out.
    return depths, PchipInterpolator(depths, losses + _EVENNESS * share / densities)


def _loss_at(layer: LayerShape, costs: Sequence[LayerCost], share: float, densities: Curve) -> Curve:
    depths, loss = _loss_curve(layer, costs, share)
    found: Curve = loss(np.clip(-np.log(densities), depths[0], depths[-1]))
    return found


def _stretches(layer: LayerShape, costs: Sequence[LayerCost], share: float) -> list[tuple[float, float]]:
    """(loss a zero, zeros) of short stretches of a layer's zeros, the losses a zero rising."""
    depths, loss = _loss_curve(layer, costs, share)
    parts = [np.linspace(begin, end, _STRETCHES, endpoint=False) for begin, end in pairwise(depths)]
    fine = np.concatenate([*parts, depths[-1:]])
    zeros = np.diff(-np.expm1(-fine)) * layer.weights
    slopes = np.diff(loss(fine)) / zeros
    rising = isotonic_regression(slopes, weights=zeros).x
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
    least = _least_density(layer)
    while densities[-1] > least * 1.000001:  # 1 - 0.99 is a little more than 0.01
        density = max(densities[-1] / 2, least)
        losses.append(max(losses[-1], 0.0) * densities[-1] / density)
        densities.append(density)
    return densities, losses
