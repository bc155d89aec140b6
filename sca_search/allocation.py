"""Splits the zeros over layers so that their sum is met by construction.

A split is a weighting: one number a layer, the logarithm of how dense it is to be beside the others. A common factor
then scales all densities (shares of non-zeros) until Σ nₗ dₗ = (1 − S) Σ nₗ, layers that reach 1 or their floor staying
there. Every weighting gives a valid split and every split comes from a weighting, so nothing is ever rejected.
"""

import math
from collections.abc import Mapping, Sequence
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
