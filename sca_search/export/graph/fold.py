"""Folds each ChannelAffine into a layer: a BatchNorm into the preceding one, an output scale into the following one."""

from dataclasses import replace

import numpy as np

from sca_search.export.graph.records import ChannelAffine, Graph, Record, WeightRecord


def fold_affines(graph: Graph) -> Graph:
    """A graph that computes the same with fewer records.

    s·(scale·x + bias) + b = (s·scale)·x + (s·bias + b): one layer absorbs the other's constants if the value in between
    has no other use. A single factor before a layer, w·(f·x) = f·w·x, goes into its scale.
    """
    return _fold_into_front(_fold_into_behind(graph))


def _fold_into_behind(graph: Graph) -> Graph:
    uses = graph.uses()
    factors = {
        record.name: record
        for record in graph.records
        if isinstance(record, ChannelAffine) and uses[record.name] == 1
        if not record.bias.any() and bool((record.scale == record.scale[0]).all())
    }
    folded: set[str] = set()
    records: list[Record] = []
    for record in graph.records:
        if isinstance(record, WeightRecord) and record.inputs[0] in factors:
            front = factors[record.inputs[0]]
            scale = (record.scale.astype(np.float64) * front.scale[0]).astype(np.float32)
            folded.add(front.name)
            records.append(replace(record, inputs=front.inputs, scale=scale))
        else:
            records.append(record)
    return replace(graph, records=tuple(record for record in records if record.name not in folded))


def _fold_into_front(graph: Graph) -> Graph:
    uses = graph.uses()
    records: dict[str, Record] = {}
    names: dict[str, str] = {}  # of folded records -> of those that absorbed them
    for record in graph.records:
        current = replace(record, inputs=tuple(names.get(name, name) for name in record.inputs))
        front = records.get(current.inputs[0])
        alone = uses[record.inputs[0]] == 1
        if alone and isinstance(current, ChannelAffine) and isinstance(front, WeightRecord | ChannelAffine):
            factor = current.scale.astype(np.float64)
            scale, bias = factor * front.scale, factor * front.bias + current.bias
            records[front.name] = replace(front, scale=scale.astype(np.float32), bias=bias.astype(np.float32))
            names[record.name] = front.name
        else:
            records[current.name] = current
    return replace(graph, records=tuple(records.values()), output=names.get(graph.output, graph.output))
