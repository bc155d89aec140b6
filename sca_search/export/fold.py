"""Folds each ChannelAffine, such as a BatchNorm, into the layer in front of it."""

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sca_search.export.records import ChannelAffine, Floats, Graph, Record, WeightRecord


def fold_affines(graph: Graph) -> Graph:
    """A graph that computes the same with fewer records.

    s·(scale·x + bias) + b = (s·scale)·x + (s·bias + b): one layer takes over the other's constants where nobody else
    uses its value in between.
    """
    uses = Counter(name for record in graph.records for name in record.inputs)
    uses[graph.output] += 1
    kept: dict[str, Record] = {}
    names: dict[str, str] = {}  # of folded records -> of those that took them over
    for record in graph.records:
        current = replace(record, inputs=tuple(names.get(name, name) for name in record.inputs))
        front = kept.get(current.inputs[0])
        alone = uses[record.inputs[0]] == 1
        if alone and isinstance(current, ChannelAffine) and isinstance(front, WeightRecord | ChannelAffine):
            kept[front.name] = _folded(front, current)
            names[record.name] = front.name
        else:
            kept[current.name] = current
    return replace(graph, records=tuple(kept.values()), output=names.get(graph.output, graph.output))


def _folded(front: WeightRecord | ChannelAffine, behind: ChannelAffine) -> WeightRecord | ChannelAffine:
    scale = behind.scale.astype(np.float64)
    return replace(front, scale=_floats(scale * front.scale), bias=_floats(scale * front.bias + behind.bias))


def _floats(values: NDArray[np.float64]) -> Floats:
    return values.astype(np.float32)
