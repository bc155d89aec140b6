"""Budgets in milliseconds and bytes as limits on a split of the zeros.

What a network takes is foretold from its layers' densities, limited by the goal, and measured when it is trained. Where
the two differ, later trials are planned with what was seen: a limit is divided by the ratio of measured to foretold.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from sca_search.allocation import LayerShape, Limit, limits_without_zeros, refuse_impossible_limits
from sca_search.goal import PREFERRED, limits_of, planned_amount, planned_between
from sca_search.spec_tables import GoalSpec

PREDICTED = "predicted_"
# Trials are planned a little below a limit that a clock decides, so that a noisy one does not break it.
_MARGIN = {"latency_ms": 0.02}
# A code adds to the entropy of a layer's trits at most this share (see export/trit_code.py) and some bytes of header.
_CODE_SHARE, _CODE_BYTES = 1 / 128, 16
_DENSEST = 2 / 3  # where trits have most entropy: with fewer zeros they take fewer bits again


@dataclass(frozen=True)
class Budgets:
    """What is foretold of each thing that is measured, as limits without end, by the name of its column."""

    layers: tuple[LayerShape, ...]
    models: Mapping[str, Limit]

    def predicted(self, split: Mapping[str, float]) -> dict[str, float]:
        """What a network with this split will take, by column."""
        densities = {name: 1.0 - sparsity for name, sparsity in split.items()}
        return {PREDICTED + column: model.amount(densities) for column, model in self.models.items()}

    def refuse_impossible(self, goal: GoalSpec) -> None:
        """Raises for budgets that cannot be met, before anything is trained."""
        refuse_impossible_limits(self.layers, self._asked(goal))

    def met_without_zeros(self, goal: GoalSpec) -> list[str]:
        """Which budgets hold with no zeros at all."""
        return [limit.what for limit in limits_without_zeros(self.layers, self._asked(goal))]

    def limits(self, goal: GoalSpec, seen: pd.DataFrame) -> tuple[Limit, ...]:
        """For the next trial, given all trials so far: the budgets, and where the goal says what lies between."""
        return (*self._aimed(goal, seen), *self._planned(goal, seen))

    def _asked(self, goal: GoalSpec) -> list[Limit]:
        return [replace(self.models[column], most=most) for column, most in limits_of(goal).items()]

    def _aimed(self, goal: GoalSpec, seen: pd.DataFrame) -> list[Limit]:
        """A little below what is asked, by what was seen; but never below what is possible."""
        return [
            replace(
                self.models[column],
                most=max(
                    most * (1.0 - _MARGIN.get(column, 0.0)) / _seen_ratio(seen, column),
                    self.models[column].amount(_floors(self.layers)),
                ),
            )
            for column, most in limits_of(goal).items()
        ]

    def _planned(self, goal: GoalSpec, seen: pd.DataFrame) -> list[Limit]:
        if goal.target_sparsity is not None:
            return [sparsity_limit(self.layers, goal.target_sparsity)]
        if goal.min_accuracy is None:
            return []
        column = PREFERRED[goal.prefer]
        if column == "sparsity":
            return [sparsity_limit(self.layers, planned_between(seen, goal.min_accuracy))]
        model = self.models[column]
        ends = (model.amount(_floors(self.layers)), model.amount(dict.fromkeys(_floors(self.layers), 1.0)))
        ratio = _seen_ratio(seen, column)
        planned = planned_amount(seen, goal.min_accuracy, column, (ends[0] * ratio, ends[1] * ratio)) / ratio
        return [replace(model, most=max(planned, ends[0]))]


def _floors(layers: Sequence[LayerShape]) -> dict[str, float]:
    return {layer.name: layer.least_density for layer in layers}


def _seen_ratio(seen: pd.DataFrame, column: str) -> float:
    """Measured to foretold, in the median of the trials that tell of both; at most twice or half."""
    if column not in seen or PREDICTED + column not in seen:
        return 1.0
    ratio = (seen[column] / seen[PREDICTED + column]).median()
    return 1.0 if math.isnan(ratio) else min(max(float(ratio), 0.5), 2.0)


def sparsity_limit(layers: Sequence[LayerShape], sparsity: float) -> Limit:
    """A sparsity, or the highest that the layers' floors allow, as a limit of the non-zeros."""
    weights = {layer.name: layer.weights for layer in layers}
    floors = math.fsum(layer.weights * layer.least_density for layer in layers)
    most = max((1.0 - sparsity) * sum(weights.values()), floors)
    return Limit("number of non-zeros", "weights", most, 0.0, lambda name, density: weights[name] * density)


def size_limit(layers: Sequence[LayerShape], what: str, fixed_bytes: float) -> Limit:
    """Bytes of the packed weights and of what is not ternary."""
    weights = {layer.name: layer.weights for layer in layers}
    return Limit(what, "bytes", math.inf, fixed_bytes, lambda name, density: packed_layer_bytes(weights[name], density))


def packed_layer_bytes(weights: int, density: float) -> float:
    """Of a layer's packed trits: the entropy of where the non-zeros are, and a bit for each sign.

    It grows with the density up to two thirds and stays there. Beyond, trits take less again, but what is limited must
    grow with the density for the tightest limit to be found.
    """
    kept = min(density, _DENSEST)
    zeros = 1.0 - kept
    entropy = -sum(share * math.log2(share) for share in (kept, zeros) if share > 0)
    return weights * (entropy + kept) / 8 * (1 + _CODE_SHARE) + _CODE_BYTES
