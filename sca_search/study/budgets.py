"""Costs of a network: predicted from its layers' densities, measured after training, limited by the goal's budgets.

Costs are bytes of the packed weights and file, and milliseconds of the exported C. Where prediction and measurement
differ, later trials are planned with the measured ratio: a limit is divided by measured / predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd
from torch import nn

from sca_search.config.study import GoalSpec
from sca_search.export.graph.records import Graph, TestVectors
from sca_search.export.graph.trace import record_name
from sca_search.export.latency.calibrate import graph_of, measure_ms
from sca_search.export.latency.model import LatencyModel
from sca_search.export.packed.format import packed_bytes, payload_bytes
from sca_search.export.references import choose_vectors
from sca_search.runs.goal import PREFERRED, limits_of, planned_amount, planned_between
from sca_search.runs.trials import PREDICTED
from sca_search.ternary.allocation import LayerShape, Limit, check_limits, limits_met_without_zeros
from sca_search.training.task import Task

COSTS = ("latency_ms", "latency_spread_ms", "packed_bytes", "file_bytes")
# What a file says about its study, which is known only when it is exported: names, figures, versions.
_METADATA_BYTES = 2048
# Timings are noisy: trials are planned slightly below a latency limit.
_MARGIN = {"latency_ms": 0.02}
# The entropy coder adds at most this fraction to the entropy of a layer's trits, and some bytes of header.
_CODE_FRACTION, _CODE_BYTES = 1 / 128, 16
_MAX_ENTROPY_DENSITY = 2 / 3  # trits have maximum entropy here; at higher density they take fewer bits again


@dataclass(frozen=True)
class Budgets:
    """Predicted cost per metric, as unbounded limits, keyed by CSV column."""

    layers: tuple[LayerShape, ...]
    models: Mapping[str, Limit]

    def predicted(self, split: Mapping[str, float]) -> dict[str, float]:
        """Predicted costs of a network with this allocation, by CSV column."""
        densities = {name: 1.0 - sparsity for name, sparsity in split.items()}
        return {PREDICTED + column: model.amount(densities) for column, model in self.models.items()}

    def refuse_impossible(self, goal: GoalSpec) -> None:
        """Raise for budgets that no allocation can meet, before anything is trained."""
        check_limits(self.layers, self._requested(goal))

    def met_without_zeros(self, goal: GoalSpec) -> list[str]:
        """Names of the budgets that a network without zeros meets."""
        return [limit.what for limit in limits_met_without_zeros(self.layers, self._requested(goal))]

    def limits(self, goal: GoalSpec, trials: pd.DataFrame) -> tuple[Limit, ...]:
        """Limits of the next trial, given all trials so far: the budgets, and the planned sparsity or cost."""
        return (*self._budget_limits(goal, trials), *self._planned_limits(goal, trials))

    def _requested(self, goal: GoalSpec) -> list[Limit]:
        return [replace(self.models[column], most=most) for column, most in limits_of(goal).items()]

    def _budget_limits(self, goal: GoalSpec, trials: pd.DataFrame) -> list[Limit]:
        """Budgets less their margin, corrected by the measured ratio, but never below the minimum possible cost."""
        return [
            replace(
                self.models[column],
                most=max(
                    most * (1.0 - _MARGIN.get(column, 0.0)) / _measured_ratio(trials, column),
                    self.models[column].amount(_floors(self.layers)),
                ),
            )
            for column, most in limits_of(goal).items()
        ]

    def _planned_limits(self, goal: GoalSpec, trials: pd.DataFrame) -> list[Limit]:
        if goal.target_sparsity is not None:
            return [sparsity_limit(self.layers, goal.target_sparsity)]
        if goal.min_accuracy is None:
            return []
        column = PREFERRED[goal.prefer]
        if column == "sparsity":
            return [sparsity_limit(self.layers, planned_between(trials, goal.min_accuracy))]
        model = self.models[column]
        ends = (model.amount(_floors(self.layers)), model.amount(dict.fromkeys(_floors(self.layers), 1.0)))
        ratio = _measured_ratio(trials, column)
        planned = planned_amount(trials, goal.min_accuracy, column, (ends[0] * ratio, ends[1] * ratio)) / ratio
        return [replace(model, most=max(planned, ends[0]))]


def _floors(layers: Sequence[LayerShape]) -> dict[str, float]:
    return {layer.name: layer.least_density for layer in layers}


def _measured_ratio(trials: pd.DataFrame, column: str) -> float:
    """Median of measured / predicted over the trials that have both, clipped to [0.5, 2]."""
    if column not in trials or PREDICTED + column not in trials:
        return 1.0
    ratio = (trials[column] / trials[PREDICTED + column]).median()
    return 1.0 if math.isnan(ratio) else min(max(float(ratio), 0.5), 2.0)


def sparsity_limit(layers: Sequence[LayerShape], sparsity: float) -> Limit:
    """A sparsity as a limit on the number of non-zeros, relaxed to the layers' minimum densities."""
    weights = {layer.name: layer.weights for layer in layers}
    floors = math.fsum(layer.weights * layer.least_density for layer in layers)
    most = max((1.0 - sparsity) * sum(weights.values()), floors)
    return Limit("number of non-zeros", "weights", most, 0.0, lambda name, density: weights[name] * density)


def size_limit(layers: Sequence[LayerShape], what: str, fixed_bytes: float) -> Limit:
    """Bytes of the packed weights plus a constant for everything that is not ternary."""
    weights = {layer.name: layer.weights for layer in layers}
    return Limit(what, "bytes", math.inf, fixed_bytes, lambda name, density: packed_layer_bytes(weights[name], density))


def packed_layer_bytes(weights: int, density: float) -> float:
    """Bytes of a layer's packed trits: entropy of the positions of the non-zeros, and one bit per sign.

    Grows with the density up to two thirds and is constant above. In fact trits take fewer bits again there, but a
    limit must be monotone in the density for the tightest one to be found.
    """
    nonzero = min(density, _MAX_ENTROPY_DENSITY)
    zeros = 1.0 - nonzero
    entropy = -sum(p * math.log2(p) for p in (nonzero, zeros) if p > 0)
    return weights * (entropy + nonzero) / 8 * (1 + _CODE_FRACTION) + _CODE_BYTES


@dataclass(frozen=True)
class Costs:
    """Costs of a trained network by CSV column, and the milliseconds per ternary layer by the calibration."""

    figures: Mapping[str, float] = field(default_factory=dict)
    layer_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class CostMeter:
    """Measures the costs of a trained network; latency is timed, or for another device predicted by its calibration."""

    latency: LatencyModel | None = None  # only where the goal involves latency
    is_timed: bool = True  # False: predicted by the calibration of another device

    def __call__(self, model: nn.Module, task: Task) -> Costs:
        graph = graph_of(task, model)
        payload = sum(payload_bytes(graph).values())
        sizes: dict[str, float] = {"packed_bytes": payload, "file_bytes": payload + rest_bytes(graph)}
        if self.latency is None:
            return Costs(sizes)
        nonzeros = {layer.name: layer.weight.size - layer.zeros for layer in graph.ternary_layers}
        curves = {name: self.latency.layers[record_name(name)] for name in task.ternary_layers}
        layer_ms = {name: curve.at(nonzeros[record_name(name)]) / 1000 for name, curve in curves.items()}
        if not self.is_timed:
            return Costs(sizes | {"latency_ms": self.latency.predict_us(nonzeros) / 1000}, layer_ms)
        timed = measure_ms(graph)
        times = {"latency_ms": timed.latency_ms, "latency_spread_ms": timed.spread * timed.latency_ms}
        return Costs(sizes | times, layer_ms)


def columns_of(goal: GoalSpec) -> frozenset[str]:
    """CSV columns of the costs that must be measured for this goal."""
    preferred = {PREFERRED[goal.prefer]} if goal.min_accuracy is not None else set()
    return frozenset({*limits_of(goal), *preferred} - {"sparsity"})


def rest_bytes(graph: Graph) -> int:
    """Bytes of a packed file without its packed weights."""
    images = choose_vectors(graph, None)
    vectors = TestVectors(images, np.zeros((len(images), len(graph.class_names)), np.float32))
    return len(packed_bytes(graph, vectors)) - sum(payload_bytes(graph).values()) + _METADATA_BYTES


def budgets_of(task: Task, graph: Graph, latency: LatencyModel | None) -> Budgets:
    """Build the cost predictions of this network."""
    layers = task.layer_shapes
    models = {
        "packed_bytes": size_limit(layers, "size of the packed weights", 0.0),
        "file_bytes": size_limit(layers, "size of the packed file", rest_bytes(graph)),
    }
    if latency is not None:
        models["latency_ms"] = latency_limit(latency, {layer.name: layer.weights for layer in layers})
    return Budgets(layers, models)


def latency_limit(latency: LatencyModel, weights: Mapping[str, int]) -> Limit:
    """Milliseconds of the exported C, by the calibration."""

    def of_layer(name: str, density: float) -> float:
        return latency.layers[record_name(name)].at(weights[name] * density) / 1000

    return Limit("latency", "ms", math.inf, latency.fixed_us / 1000, of_layer)
