"""Which weights of the ternary layers have an effect: at high sparsity some outputs are zero or never used.

A forward pass finds channels that are zero everywhere (all weights zero, and a bias that a ReLU cuts off): the weights
that read them have no effect. A backward pass finds outputs that no weight, residual or logit uses: they need not be
computed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph import records as r
from sca_search.export.graph.reference import apply

_Mask = NDArray[np.bool_]
_Constants = NDArray[np.float64]  # a value for each channel that has it in all its cells; NaN for the others


@dataclass(frozen=True)
class Living:
    """The part of a ternary layer with an effect: its weight, zero where inputs are zero, and the outputs in use."""

    weight: r.Trits
    outputs: _Mask


def living(graph: r.Graph) -> dict[str, Living]:
    """By the names of the ternary layers."""
    shapes = {r.INPUT: graph.input_shape} | {record.name: record.shape for record in graph.records}
    weights = _effective_weights(graph, shapes)
    needed = {name: np.zeros(shape[0], dtype=bool) for name, shape in shapes.items()}
    needed[graph.output][:] = True
    for record in reversed(graph.records):
        for name, mask in _needed_inputs(record, needed[record.name], weights, shapes).items():
            needed[name] |= mask
    return {name: Living(weight, needed[name]) for name, weight in weights.items()}


def _effective_weights(graph: r.Graph, shapes: Mapping[str, r.Shape]) -> dict[str, r.Trits]:
    constants: dict[str, _Constants] = {r.INPUT: np.full(graph.input_shape[0], np.nan)}
    weights: dict[str, r.Trits] = {}
    for record in graph.records:
        inputs = [constants[name] for name in record.inputs]
        if isinstance(record, r.WeightRecord):
            weight = _without_inputs(record, inputs[0] == 0)
            if record.ternary:
                weights[record.name] = weight
            nothing = ~weight.reshape(len(weight), -1).any(axis=1)
            constants[record.name] = np.where(nothing, record.bias, np.nan)
        else:
            rule = _CONSTANTS.get(type(record))
            with np.errstate(invalid="ignore"):
                known = None if rule is None else rule(record, *inputs, shapes[record.inputs[0]])
            constants[record.name] = np.full(record.shape[0], np.nan) if known is None else known
    return weights


def _without_inputs(record: r.WeightRecord, zero: _Mask) -> Any:
    if not zero.any() or (isinstance(record, r.Convolution) and record.groups > 1):
        return record.weight
    weight = record.weight.copy()
    weight[:, zero] = 0
    return weight


def _reshaped(record: r.Reshape, values: _Constants, source: r.Shape) -> _Constants:
    cells = np.broadcast_to(values.reshape(-1, *[1] * (len(source) - 1)), source).reshape(record.shape[0], -1)
    return np.where((cells == cells[:, :1]).all(axis=1), cells[:, 0], np.nan)


_CONSTANTS: dict[type[r.Record], Callable[..., _Constants]] = {
    r.Activation: lambda record, values, _: apply(record, [values]),
    # the mean of others may count a border of zeros
    r.Pool: lambda _, values, *__: np.where(values == 0, 0.0, np.nan),
    r.AdaptivePool: lambda _, values, *__: np.where(values == 0, 0.0, np.nan),
    r.Reshape: _reshaped,
    r.Add: lambda _, left, right, *__: left + right,
    r.Concat: lambda _, *parts: np.concatenate(parts[:-1]),
    r.ChannelAffine: lambda record, values, *_: values * record.scale + record.bias,
}


def _needed_inputs(
    record: r.Record, needed: _Mask, weights: Mapping[str, r.Trits], shapes: Mapping[str, r.Shape]
) -> dict[str, _Mask]:
    """Which channels of its inputs a record needs, from which of its own are needed."""
    if record.name in weights and not (isinstance(record, r.Convolution) and record.groups > 1):
        weight = weights[record.name][needed]
        return {record.inputs[0]: np.asarray(weight.any(axis=(0, *range(2, weight.ndim))))}
    if isinstance(record, r.Reshape):
        source = shapes[record.inputs[0]]
        cells = np.broadcast_to(needed.reshape(-1, *[1] * (len(record.shape) - 1)), record.shape)
        return {record.inputs[0]: np.asarray(cells.reshape(source[0], -1).any(axis=1))}
    if isinstance(record, r.Concat):
        ends = np.cumsum([shapes[name][0] for name in record.inputs])
        result: dict[str, _Mask] = {}
        for name, mask in zip(record.inputs, np.split(needed, ends[:-1]), strict=True):
            result[name] = result.get(name, False) | mask
        return result
    if record.channelwise:
        return dict.fromkeys(record.inputs, needed)
    # A float times what was never computed could be anything.
    return {name: np.ones(shapes[name][0], dtype=bool) for name in record.inputs}
