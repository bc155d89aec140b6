"""What a network takes: bytes of its packed weights and file, milliseconds of its C; counted and timed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import nn

from sca_search.allocation import Limit
from sca_search.budget import Budgets, size_limit
from sca_search.calibrate import graph_of, measure_ms
from sca_search.export.packed import packed_bytes, payload_bytes
from sca_search.export.records import Graph, TestVectors
from sca_search.export.references import choose_vectors
from sca_search.export.trace import record_name
from sca_search.goal import PREFERRED, limits_of
from sca_search.latency import LatencyModel
from sca_search.spec_tables import GoalSpec
from sca_search.task import Task

TAKEN = ("latency_ms", "latency_spread_ms", "packed_bytes", "file_bytes")
# What a file says about its study, which is known only when it is exported: names, figures, versions.
_ABOUT_BYTES = 2048


@dataclass(frozen=True)
class Taken:
    """What a network takes, by column, and the milliseconds of its ternary layers by the calibration."""

    figures: Mapping[str, float] = field(default_factory=dict)
    layer_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Gauge:
    """Measures what a goal's budgets are about: time by a clock, or by the calibration of another device."""

    latency: LatencyModel | None = None  # where the goal is about time
    has_clock: bool = True

    def __call__(self, model: nn.Module, task: Task) -> Taken:
        graph = graph_of(task, model)
        payload = sum(payload_bytes(graph).values())
        sizes: dict[str, float] = {"packed_bytes": payload, "file_bytes": payload + rest_bytes(graph)}
        if self.latency is None:
            return Taken(sizes)
        nonzeros = {layer.name: layer.weight.size - layer.zeros for layer in graph.ternary_layers}
        curves = {name: self.latency.layers[record_name(name)] for name in task.ternary_layers}
        layer_ms = {name: curve.at(nonzeros[record_name(name)]) / 1000 for name, curve in curves.items()}
        if not self.has_clock:
            return Taken(sizes | {"latency_ms": self.latency.predict_us(nonzeros) / 1000}, layer_ms)
        timed = measure_ms(graph)
        times = {"latency_ms": timed.latency_ms, "latency_spread_ms": timed.spread * timed.latency_ms}
        return Taken(sizes | times, layer_ms)


def columns_of(goal: GoalSpec) -> frozenset[str]:
    """What must be measured of each network."""
    preferred = {PREFERRED[goal.prefer]} if goal.min_accuracy is not None else set()
    return frozenset({*limits_of(goal), *preferred} - {"sparsity"})


def rest_bytes(graph: Graph) -> int:
    """Of a packed file, all but the packed weights."""
    images = choose_vectors(graph, None)
    vectors = TestVectors(images, np.zeros((len(images), len(graph.class_names)), np.float32))
    return len(packed_bytes(graph, vectors)) - sum(payload_bytes(graph).values()) + _ABOUT_BYTES


def budgets_of(task: Task, graph: Graph, latency: LatencyModel | None) -> Budgets:
    """What is foretold of this network's splits."""
    layers = task.layer_shapes
    models = {
        "packed_bytes": size_limit(layers, "size of the packed weights", 0.0),
        "file_bytes": size_limit(layers, "size of the packed file", rest_bytes(graph)),
    }
    if latency is not None:
        models["latency_ms"] = latency_limit(latency, {layer.name: layer.weights for layer in layers})
    return Budgets(layers, models)


def latency_limit(latency: LatencyModel, weights: Mapping[str, int]) -> Limit:
    """Milliseconds of the exported C."""

    def of_layer(name: str, density: float) -> float:
        return latency.layers[record_name(name)].at(weights[name] * density) / 1000

    return Limit("latency", "ms", math.inf, latency.fixed_us / 1000, of_layer)
