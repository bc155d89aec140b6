"""A graph filled with random trits: how fast a network is depends on where its zeros are, not on what it learned."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from sca_search.export.graph.records import Graph, WeightRecord


def nonzeros_at(graph: Graph, sparsity: float) -> dict[str, int]:
    """Weights that are not zero, by ternary layer, at the same sparsity in each; never none."""
    return {layer.name: max(1, round((1 - sparsity) * layer.weight.size)) for layer in graph.ternary_layers}


def with_random_trits(graph: Graph, nonzeros: Mapping[str, int], seed: int = 0) -> Graph:
    """The graph with so many trits that are not zero, each anywhere in its layer."""
    draws = np.random.default_rng(seed)
    records = tuple(
        _filled(record, nonzeros[record.name], draws) if isinstance(record, WeightRecord) and record.ternary else record
        for record in graph.records
    )
    return replace(graph, records=records)


def _filled(layer: WeightRecord, nonzeros: int, draws: np.random.Generator) -> WeightRecord:
    """Scaled so that values stay near 1 however deep the network; a bias, as trained layers have it, keeps outputs
    without weights from being zero, for which C has a short cut."""
    size, outputs = layer.weight.size, len(layer.weight)
    trits = np.zeros(size, dtype=np.int8)
    trits[draws.choice(size, nonzeros, replace=False)] = draws.choice(np.array([-1, 1], dtype=np.int8), nonzeros)
    scale = np.full(outputs, np.sqrt(2 * outputs / nonzeros), dtype=np.float32)
    bias = 0.1 * draws.standard_normal(outputs).astype(np.float32)
    return replace(layer, weight=trits.reshape(layer.weight.shape), scale=scale, bias=bias)
