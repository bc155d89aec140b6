"""Costs of a network: predicted from its layers' densities, measured after training, limited by the goal's budgets.

Costs are bytes of the packed weights and file, and milliseconds of the exported C. Where prediction and measurement
differ, later trials are planned with the measured ratio: a limit is divided by measured / predicted.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd
from torch import nn

from sca_search.config.costs import COST_METRICS, FILE_SIZE, LATENCY, TERNARY_SIZE, CostMetric
from sca_search.config.study import GoalSpec, StudySpec
from sca_search.export.graph.records import Graph, TestVectors
from sca_search.export.graph.trace import record_name
from sca_search.export.latency.calibrate import Say, calibration_graph, calibration_of, graph_of, measure_ms
from sca_search.export.latency.model import Calibration, LatencyModel, latency_model
from sca_search.export.latency.table import read_calibration
from sca_search.export.packed.format import packed_bytes, payload_bytes
from sca_search.export.verify import choose_vectors
from sca_search.runs.goal import PREFERRED, limits_of, planned_amount, planned_between
from sca_search.runs.trials import PREDICTED
from sca_search.ternary.allocation import LayerShape, Limit, check_limits, limits_met_without_zeros
from sca_search.training.task import Task

# Metadata about the study in a file, which is known only at the export: names, figures, versions.
_METADATA_BYTES = 2048
# The entropy coder adds at most this fraction to the entropy of a layer's trits, and some bytes of header.
_CODE_FRACTION, _CODE_BYTES = 1 / 128, 16
_MAX_ENTROPY_DENSITY = 2 / 3  # trits have maximum entropy here; at higher density they take fewer bits again
_METRICS = {metric.key: metric for metric in COST_METRICS}


@dataclass(frozen=True)
class Budgets:
    """Predicted cost per metric, as unbounded limits, keyed by CSV column."""

    layers: tuple[LayerShape, ...]
    models: Mapping[str, Limit]

    def predicted(self, allocation: Mapping[str, float]) -> dict[str, float]:
        """Predicted costs of a network with this allocation, by CSV column."""
        densities = {name: 1.0 - sparsity for name, sparsity in allocation.items()}
        return {PREDICTED + column: model.amount(densities) for column, model in self.models.items()}

    def met_without_zeros(self, goal: GoalSpec) -> tuple[str, ...]:
        """Names of the budgets that a network without zeros meets. Raises for budgets that no allocation can meet."""
        requested = [replace(self.models[column], most=most) for column, most in limits_of(goal).items()]
        check_limits(self.layers, requested)
        return tuple(limit.what for limit in limits_met_without_zeros(self.layers, requested))

    def limits(self, goal: GoalSpec, trials: pd.DataFrame) -> tuple[Limit, ...]:
        """Limits of the next trial, given all trials so far: the budgets, and the planned sparsity or cost."""
        floors = _floors(self.layers)
        budgets = []
        for column, most in limits_of(goal).items():
            # Less the margin, corrected by the measured ratio, but never below the minimum possible cost.
            corrected = most * (1.0 - _METRICS[column].margin) / _measured_ratio(trials, column)
            model = self.models[column]
            budgets.append(replace(model, most=max(corrected, model.amount(floors))))
        return (*budgets, *self._planned_limits(goal, trials))

    def _planned_limits(self, goal: GoalSpec, trials: pd.DataFrame) -> list[Limit]:
        if goal.target_sparsity is not None:
            return [sparsity_limit(self.layers, goal.target_sparsity)]
        if goal.min_accuracy is None:
            return []
        column = PREFERRED[goal.prefer]
        if column == "sparsity":
            return [sparsity_limit(self.layers, planned_between(trials, goal.min_accuracy))]
        model = self.models[column]
        floors, ratio = _floors(self.layers), _measured_ratio(trials, column)
        least, most = model.amount(floors), model.amount(dict.fromkeys(floors, 1.0))
        planned = planned_amount(trials, goal.min_accuracy, column, (least * ratio, most * ratio)) / ratio
        return [replace(model, most=max(planned, least))]


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


def size_limit(layers: Sequence[LayerShape], metric: CostMetric, fixed_bytes: float) -> Limit:
    """Bytes of the ternary weights plus a constant for everything that is not ternary."""
    weights = {layer.name: layer.weights for layer in layers}
    return Limit(
        metric.label, "bytes", math.inf, fixed_bytes, lambda name, density: packed_layer_bytes(weights[name], density)
    )


def packed_layer_bytes(weights: int, density: float) -> float:
    """Bytes of a layer's packed trits: entropy of the positions of the non-zeros, and one bit per sign.

    Grows with the density up to two thirds and is constant above. In fact trits take fewer bits again there, but a
    limit must be monotone in the density for the tightest one to be found.
    """
    nonzero = min(density, _MAX_ENTROPY_DENSITY)
    zeros = 1.0 - nonzero
    entropy = -sum(p * math.log2(p) for p in (nonzero, zeros) if p > 0)
    return weights * (entropy + nonzero) / 8 * (1 + _CODE_FRACTION) + _CODE_BYTES


def latency_limit(latency: LatencyModel, weights: Mapping[str, int]) -> Limit:
    """Milliseconds of the exported C, by the calibration."""

    def of_layer(name: str, density: float) -> float:
        return latency.layers[record_name(name)].at(weights[name] * density) / 1000

    return Limit(LATENCY.label, "ms", math.inf, latency.fixed_us / 1000, of_layer)


@dataclass(frozen=True)
class Costs:
    """Costs of a trained network by CSV column, and those of its ternary layers by name and column."""

    figures: Mapping[str, float] = field(default_factory=dict)
    layers: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class CostMeter:
    """Measures the costs of a trained network; latency is timed, or for another device predicted by its calibration."""

    latency: LatencyModel | None = None  # only where the goal involves latency
    is_timed: bool = True

    def __call__(self, model: nn.Module, task: Task) -> Costs:
        graph = graph_of(task, model)
        latency = Costs() if self.latency is None else self._latency(graph, self.latency, task.ternary_layers)
        ternary_bytes = sum(payload_bytes(graph).values())
        sizes = {TERNARY_SIZE.key: ternary_bytes, FILE_SIZE.key: ternary_bytes + rest_bytes(graph)}
        return Costs({**latency.figures, **sizes}, latency.layers)

    def _latency(self, graph: Graph, latency: LatencyModel, layers: Sequence[str]) -> Costs:
        nonzeros = {layer.name: layer.weight.size - layer.zeros for layer in graph.ternary_layers}
        names = {layer: record_name(layer) for layer in layers}
        us = {layer: latency.layers[name].at(nonzeros[name]) for layer, name in names.items()}
        layer_ms = {layer: {LATENCY.key: each / 1000} for layer, each in us.items()}
        if not self.is_timed:
            return Costs({LATENCY.key: latency.predict_us(nonzeros) / 1000}, layer_ms)
        timed = measure_ms(graph)
        return Costs({LATENCY.key: timed.latency_ms, LATENCY.spread_key: timed.spread * timed.latency_ms}, layer_ms)


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
    """The cost predictions of this network; latency is predicted with a model only."""
    layers = task.layer_shapes
    weights = {layer.name: layer.weights for layer in layers}
    predicted = {} if latency is None else {LATENCY.key: latency_limit(latency, weights)}
    sizes = {TERNARY_SIZE: 0.0, FILE_SIZE: rest_bytes(graph)}
    return Budgets(layers, predicted | {metric.key: size_limit(layers, metric, rest) for metric, rest in sizes.items()})


@dataclass(frozen=True)
class CostSetup:
    """Predicted and measured costs of a study with budgets; nothing for other studies."""

    calibration: Calibration | None = None
    budgets: Budgets | None = None
    meter: CostMeter | None = None
    met_without_zeros: tuple[str, ...] = ()  # budgets that a network without zeros meets


def prepare_costs(spec: StudySpec, task: Task, known: Path | None, say: Say = lambda _line: None) -> CostSetup:
    """Calibrate if the goal involves latency and no table is known, and reject budgets that cannot be met."""
    columns = columns_of(spec.goal)
    if not columns:
        return CostSetup()
    graph, calibration, meter = calibration_graph(task), None, CostMeter()
    if any(_METRICS[column].is_calibrated for column in columns):
        table = known if known and known.exists() else spec.search.latency_table
        calibration = read_calibration(table, graph) if table else calibration_of(graph, say)
        # A table of another device predicts latency; it cannot be timed here.
        meter = CostMeter(latency_model(calibration), is_timed=spec.search.latency_table is None)
    budgets = budgets_of(task, graph, meter.latency)
    return CostSetup(calibration, budgets, meter, budgets.met_without_zeros(spec.goal))
