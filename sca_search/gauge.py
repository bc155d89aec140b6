"""What a network takes: bytes of its packed weights and file, milliseconds of its C; counted and timed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

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
from sca_search.spec import GoalSpec
from sca_search.task import Task

TAKEN = ("latency_ms", "latency_spread_ms", "packed_bytes", "file_bytes")
# What a file says about its study, which is known only when it is exported: names, figures, versions.
_ABOUT_BYTES = 2048


@dataclass(frozen=True)
class Gauge:
    """Measures what a goal's budgets are about: time by a clock, or by the table of another device."""

    columns: frozenset[str]
    table: LatencyModel | None = None

    def __call__(self, model: nn.Module, task: Task) -> dict[str, float]:
        """By column."""
        graph = graph_of(task, model)
        payload = sum(payload_bytes(graph).values())
        found: dict[str, float] = {"packed_bytes": payload, "file_bytes": payload + rest_bytes(graph)}
        if "latency_ms" not in self.columns:
            return found
        if self.table is not None:
            nonzeros = {layer.name: layer.weight.size - layer.zeros for layer in graph.ternary_layers}
            return found | {"latency_ms": self.table.predict_us(nonzeros) / 1000}
        timed = measure_ms(graph)
        return found | {"latency_ms": timed.latency_ms, "latency_spread_ms": timed.spread * timed.latency_ms}


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
