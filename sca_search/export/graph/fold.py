"""Folds each ChannelAffine into a layer: a BatchNorm into the preceding one, an output scale into the following one."""

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph.records import ChannelAffine, Floats, Graph, Record, WeightRecord


def fold_affines(graph: Graph) -> Graph:
    """A graph that computes the same with fewer records.

    s·(scale·x + bias) + b = (s·scale)·x + (s·bias + b): one layer absorbs the other's constants if the value in between
    has no other use. A single factor before a layer, w·(f·x) = f·w·x, goes into its scale.
    """
    return _fold_into_front(_fold_into_behind(graph))


def _fold_into_behind(graph: Graph) -> Graph:
    uses = _uses(graph)
    factors = {
        record.name: record
        for record in graph.records
        if isinstance(record, ChannelAffine) and uses[record.name] == 1 and _is_one_factor(record)
    }
    folded: set[str] = set()
    records: list[Record] = []
    for record in graph.records:
        front = factors.get(record.inputs[0]) if isinstance(record, WeightRecord) else None
        if front is not None and isinstance(record, WeightRecord):
            scale = _floats(record.scale.astype(np.float64) * front.scale[0])
            folded.add(front.name)
            records.append(replace(record, inputs=front.inputs, scale=scale))
        else:
            records.append(record)
    return replace(graph, records=tuple(record for record in records if record.name not in folded))


def _is_one_factor(record: ChannelAffine) -> bool:
    return not record.bias.any() and bool((record.scale == record.scale[0]).all())


def _uses(graph: Graph) -> Counter[str]:
    uses = Counter(name for record in graph.records for name in record.inputs)
    uses[graph.output] += 1
    return uses


def _fold_into_front(graph: Graph) -> Graph:
    uses = _uses(graph)
    records: dict[str, Record] = {}
    names: dict[str, str] = {}  # of folded records -> of those that absorbed them
    for record in graph.records:
        current = replace(record, inputs=tuple(names.get(name, name) for name in record.inputs))
        front = records.get(current.inputs[0])
        alone = uses[record.inputs[0]] == 1
        if alone and isinstance(current, ChannelAffine) and isinstance(front, WeightRecord | ChannelAffine):
            records[front.name] = _folded(front, current)
            names[record.name] = front.name
        else:
            records[current.name] = current
    return replace(graph, records=tuple(records.values()), output=names.get(graph.output, graph.output))


def _folded(front: WeightRecord | ChannelAffine, behind: ChannelAffine) -> WeightRecord | ChannelAffine:
    scale = behind.scale.astype(np.float64)
    return replace(front, scale=_floats(scale * front.scale), bias=_floats(scale * front.bias + behind.bias))


def _floats(values: NDArray[np.float64]) -> Floats:
    return values.astype(np.float32)
