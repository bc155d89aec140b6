"""Splits the zeros over layers so that their sum, or limits in milliseconds and bytes, are met by construction.

A split is a weighting: one number a layer, the logarithm of how dense it is to be beside the others. A common factor
then scales all densities (shares of non-zeros) until Σ nₗ dₗ = (1 − S) Σ nₗ, layers that reach 1 or their floor staying
there. Every weighting gives a valid split and every split comes from a weighting, so nothing is ever rejected. Where
there are limits instead, the factor is the largest with which all of them hold.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sca_search.errors import SpecError


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


@dataclass(frozen=True)
class Limit:
    """What a network may have at most: a fixed part, and one of each layer that grows with its density."""

    what: str
    unit: str
    most: float
    fixed: float
    of_layer: Callable[[str, float], float]  # of a layer, by name, at a density

    def amount(self, densities: Mapping[str, float]) -> float:
        """What a network of these densities has."""
        return self.fixed + math.fsum(self.of_layer(name, density) for name, density in densities.items())

    def holds(self, densities: Mapping[str, float]) -> bool:
        """Whether that is no more than allowed."""
        return self.amount(densities) <= self.most


def split_of_weighting(
    layers: Sequence[LayerShape], weighting: Mapping[str, float], sparsity: float
) -> dict[str, float]:
    """The sparsity a layer: dₗ = clip(c · exp wₗ, floor, 1) with the one c that meets the overall sparsity."""
    _refuse_impossible(layers, sparsity)
    wanted = (1.0 - sparsity) * sum(layer.weights for layer in layers)

    def too_few(densities: Mapping[str, float]) -> bool:
        return math.fsum(layer.weights * densities[layer.name] for layer in layers) < wanted

    _, enough = _turning_point(layers, weighting, too_few)
    return _sparsities(_densities(layers, weighting, enough))


def split_within(
    layers: Sequence[LayerShape], weighting: Mapping[str, float], limits: Sequence[Limit]
) -> dict[str, float]:
    """The same with the largest c with which every limit holds: the tightest decides."""
    refuse_impossible_limits(layers, limits)
    full = {layer.name: 1.0 for layer in layers}
    if all(limit.holds(full) for limit in limits):
        return _sparsities(full)
    most, _ = _turning_point(layers, weighting, lambda densities: all(limit.holds(densities) for limit in limits))
    return _sparsities(_densities(layers, weighting, most))


def refuse_impossible_limits(layers: Sequence[LayerShape], limits: Sequence[Limit]) -> None:
    """Says of a limit that nothing meets which ones can be met, and what stands in the way."""
    floors = {layer.name: layer.least_density for layer in layers}
    for limit in limits:
        if limit.holds(floors):
            continue
        least, most = limit.amount(floors), limit.amount(dict.fromkeys(floors, 1.0))
        parts = sorted(((limit.of_layer(name, floor), name) for name, floor in floors.items()), reverse=True)
        rest = [f"{name} {part:.4g}" for part, name in parts[:3]]
        raise SpecError(
            f"a {limit.what} of {limit.most:g} {limit.unit} cannot be met: with every ternary layer at its floor it is "
            f"{least:.4g} {limit.unit}, without zeros {most:.4g}; in the way are what is not ternary with "
            f"{limit.fixed:.4g}, then {', '.join(rest)}"
        )


def limits_without_zeros(layers: Sequence[LayerShape], limits: Sequence[Limit]) -> list[Limit]:
    """Those that hold with no zeros at all."""
    return [limit for limit in limits if limit.holds({layer.name: 1.0 for layer in layers})]


def sparsity_of_split(layers: Sequence[LayerShape], split: Mapping[str, float]) -> float:
    """Of all layers together."""
    zeros = math.fsum(layer.weights * split[layer.name] for layer in layers)
    return zeros / sum(layer.weights for layer in layers)


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


def _densities(layers: Sequence[LayerShape], weighting: Mapping[str, float], log_factor: float) -> dict[str, float]:
    return {
        layer.name: min(1.0, max(layer.least_density, math.exp(min(0.0, log_factor + weighting[layer.name]))))
        for layer in layers
    }


def _sparsities(densities: Mapping[str, float]) -> dict[str, float]:
    return {name: 1.0 - density for name, density in densities.items()}


def _turning_point(
    layers: Sequence[LayerShape], weighting: Mapping[str, float], before: Callable[[Mapping[str, float]], bool]
) -> tuple[float, float]:
    """ln c by bisection, just before and just behind the point where growing densities are no longer `before`."""
    largest = max(weighting[layer.name] for layer in layers)
    smallest = min(weighting[layer.name] for layer in layers)
    low = -largest - 60.0  # densities of 1e-26: every layer at its floor
    high = -smallest  # every layer full
    for _ in range(200):  # far beyond double precision's 60; stops when nothing lies between
        middle = (low + high) / 2
        if middle in {low, high}:
            break
        low, high = (middle, high) if before(_densities(layers, weighting, middle)) else (low, middle)
    return low, high


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
