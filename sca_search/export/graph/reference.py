"""The definition of the records in plain numpy: slow and simple, the reference for all other implementations.

Sums are computed in float64, so that any difference is the rounding of the other implementation.
"""

import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph import records as r

Values = NDArray[np.float64]  # batch first


def evaluate(graph: r.Graph, images: r.Floats) -> r.Floats:
    """The logits of a batch of images before normalization."""
    return every_value(graph, images)[graph.output].astype(np.float32)


def every_value(graph: r.Graph, images: r.Floats) -> dict[str, Values]:
    """The value of each record, and of the input."""
    mean, std = (_by_channel(each, images.ndim) for each in (graph.mean, graph.std))
    values: dict[str, Values] = {r.INPUT: (images.astype(np.float64) - mean) / std}
    for record in graph.records:
        values[record.name] = apply(record, [values[name] for name in record.inputs])
    return values


def apply(record: r.Record, inputs: list[Values]) -> Values:
    """The value of one record from those of its inputs."""
    return _MEANING[type(record)](record, *inputs)


def _by_channel(values: r.Floats, ndim: int) -> Values:
    return values.astype(np.float64).reshape(1, -1, *[1] * (ndim - 2))


def _scaled(record: r.Convolution | r.Linear | r.ChannelAffine, sums: Values) -> Values:
    return sums * _by_channel(record.scale, sums.ndim) + _by_channel(record.bias, sums.ndim)


def _convolution(record: r.Convolution, x: Values) -> Values:
    top, bottom, left, right = record.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, height, width = record.shape
    per_group, each = outputs // record.groups, x.shape[1] // record.groups
    sums = np.zeros((len(x), *record.shape))
    for group in range(record.groups):
        weight = record.weight[group * per_group : (group + 1) * per_group].astype(np.float64)
        source = padded[:, group * each : (group + 1) * each]
        for row in range(weight.shape[2]):
            for column in range(weight.shape[3]):
                rows = row * record.dilation[0] + record.stride[0] * np.arange(height)
                columns = column * record.dilation[1] + record.stride[1] * np.arange(width)
                cells = source[:, :, rows][:, :, :, columns]
                sums[:, group * per_group : (group + 1) * per_group] += np.einsum(
                    "oc,nchw->nohw", weight[:, :, row, column], cells
                )
    return _scaled(record, sums)


def _window_cells(record: r.Pool | r.AdaptivePool, size: int, axis: int) -> Iterator[tuple[slice, int]]:
    """For each window along an axis: the cells of the map in it, and how many its divisor counts."""
    if isinstance(record, r.AdaptivePool):
        yield from ((part, part.stop - part.start) for part in adaptive_windows(size, record.shape[1 + axis]))
        return
    before, after = record.padding[2 * axis : 2 * axis + 2]
    for index in range(record.shape[1 + axis]):
        begin = index * record.stride[axis] - before
        end = begin + record.kernel[axis]
        inside = slice(max(begin, 0), min(end, size))
        counted = min(end, size + after) - begin if record.count_include_pad else inside.stop - inside.start
        yield inside, counted


Numbers = TypeVar("Numbers", bound=NDArray[Any])


def pooled(record: r.Pool | r.AdaptivePool, x: Numbers, average: Callable[[Numbers, int], Numbers]) -> Numbers:
    """The windows of a pool; `average` takes the sum of a window and the number of cells in its divisor."""
    out = np.empty((len(x), *record.shape), dtype=x.dtype)
    for i, (rows, rows_counted) in enumerate(_window_cells(record, x.shape[2], 0)):
        for j, (columns, columns_counted) in enumerate(_window_cells(record, x.shape[3], 1)):
            window = x[:, :, rows, columns]
            if record.kind == "max":
                out[:, :, i, j] = window.max((2, 3))
            else:
                out[:, :, i, j] = average(window.sum((2, 3)), rows_counted * columns_counted)
    return out  # type: ignore[return-value]


def adaptive_windows(size: int, parts: int) -> list[slice]:
    """The windows of an adaptive pool along a side of this size."""
    return [slice(part * size // parts, -(-(part + 1) * size // parts)) for part in range(parts)]


_erf = np.vectorize(math.erf, otypes=[np.float64])  # numpy has none


def _sigmoid(x: Values) -> Values:
    return (1 + np.tanh(x / 2)) / 2  # does not overflow


_FUNCTIONS: dict[str, Callable[[Values], Values]] = {
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "hardsigmoid": lambda x: np.clip(x + 3, 0, 6) / 6,
    "hardswish": lambda x: x * (np.clip(x + 3, 0, 6) / 6),
    "sigmoid": _sigmoid,
    "silu": lambda x: x * _sigmoid(x),
    "gelu": lambda x: x * (1 + _erf(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    "tanh": np.tanh,
}


def _activation(record: r.Activation, x: Values) -> Values:
    if record.kind == "leaky_relu":
        return np.where(x > 0, x, x * np.float64(record.slope))
    return _FUNCTIONS[record.kind](x)


_MEANING: dict[type[r.Record], Callable[..., Values]] = {
    r.Convolution: _convolution,
    r.Linear: lambda record, x: _scaled(record, x @ record.weight.astype(np.float64).T),
    r.Pool: lambda record, x: pooled(record, x, np.divide),
    r.AdaptivePool: lambda record, x: pooled(record, x, np.divide),
    r.Activation: _activation,
    r.Add: lambda _, left, right: left + right,
    r.Multiply: lambda _, value, gate: value * gate,
    r.Concat: lambda _, *parts: np.concatenate(parts, axis=1),
    r.Reshape: lambda record, x: x.reshape(len(x), *record.shape),
    r.ChannelAffine: _scaled,
}
