"""The rules of a graph: names, order, shapes, values. Every format can express a graph that satisfies them."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.graph import records as r

# No network needs more values than this in one map; a file with more is damaged or hostile.
MOST_VALUES = 2**26
# Names go into C comments and file keys.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,199}")
_LARGEST = 4096  # of any single stride, padding, dilation or window

Shapes = tuple[r.Shape, ...]


def check_graph(graph: r.Graph) -> None:
    """Raises ExportError unless every rule of the records holds."""
    _check_sizes("the input", graph.input_shape, (1, 2, 3))
    for what, values in (("mean", graph.mean), ("std", graph.std)):
        _check_floats(f"the input's {what}", values, (graph.input_shape[0],))
    if not (graph.std > 0).all():
        raise ExportError("the input's std must be above 0 in every channel")
    shapes: dict[str, r.Shape] = {r.INPUT: graph.input_shape}
    for record in graph.records:
        _check_record(record, shapes)
        shapes[record.name] = record.shape
    if graph.output not in shapes or graph.output == r.INPUT:
        raise ExportError(f"the output {graph.output[:200]!r} is the name of no record")
    if shapes[graph.output] != (len(graph.class_names),):
        raise ExportError(
            f"the output {graph.output!r} has shape {shapes[graph.output]}, there are {len(graph.class_names)} classes"
        )


def output_shape(record: r.Record, inputs: Shapes) -> r.Shape:
    """The shape of a record's value from those of its inputs; ExportError if they do not fit."""
    return _RULES[type(record)](record, inputs)


def windows(size: int, kernel: int, stride: int, padding: tuple[int, ...], *, ceil_mode: bool = False) -> int:
    """Number of windows along a side; with `ceil_mode` one may extend over the edge, but must begin before it."""
    rest = size + sum(padding) - kernel
    if rest < 0 and not (ceil_mode and rest > -stride):
        return 0
    count = (-(-rest // stride) if ceil_mode else rest // stride) + 1
    if ceil_mode and (count - 1) * stride >= size + padding[0]:
        count -= 1
    return count


def _check_record(record: r.Record, shapes: Mapping[str, r.Shape]) -> None:
    if not _NAME.fullmatch(record.name):
        raise ExportError(f"a record's name must be letters, digits and ._-, at most 200, got {record.name[:300]!r}")
    if record.name in shapes:
        raise ExportError(f"{record.name}: an earlier record has the same name")
    for name in record.inputs:
        if name not in shapes:
            raise ExportError(f"{record.name}: its input {name[:200]!r} is no earlier record")
    _check_sizes(record.name, record.shape)
    expected = output_shape(record, tuple(shapes[name] for name in record.inputs))
    if expected != record.shape:
        raise ExportError(f"{record.name}: its value has shape {expected}, the record says {record.shape}")


def _check_sizes(where: str, shape: r.Shape, ranks: tuple[int, ...] = (1, 3)) -> None:
    if len(shape) not in ranks or min(shape) < 1 or math.prod(shape) > MOST_VALUES:
        may = f"{', '.join(map(str, ranks[:-1]))} or {ranks[-1]}"
        raise ExportError(f"{where}: a shape must have {may} sizes above 0 and at most 2^26 values, got {shape}")


def _check_floats(where: str, values: Any, shape: r.Shape) -> None:
    if values.dtype != np.float32 or values.shape != shape or not np.isfinite(values).all():
        raise ExportError(f"{where} must be {shape} finite float32 values, got {values.dtype} {values.shape}")


def _require(record: r.Record, rule: bool, text: str) -> None:
    if not rule:
        raise ExportError(f"{record.name}: {type(record).__name__} {text}")


def _one_input(record: r.Record, inputs: Shapes, *, rank: int | None = None) -> r.Shape:
    _require(record, len(inputs) == 1, f"takes one value, got {len(inputs)}")
    kind = {1: "a vector", 3: "a map", None: ""}[rank]
    _require(record, rank is None or len(inputs[0]) == rank, f"takes {kind}, got shape {inputs[0]}")
    return inputs[0]


def _check_weight(record: r.WeightRecord, shape: r.Shape) -> None:
    weight = record.weight
    _require(record, weight.shape == shape, f"has a weight of shape {weight.shape}, its inputs ask for {shape}")
    if weight.dtype == np.int8:
        # Not through abs(): in int8, that of -128 is -128.
        _require(record, bool(((weight >= -1) & (weight <= 1)).all()), "has a weight that is no trit")
    else:
        _check_floats(f"{record.name}: the weight", weight, shape)
    _check_constants(record, shape)


def _check_constants(record: r.WeightRecord | r.ChannelAffine, shape: r.Shape) -> None:
    _check_floats(f"{record.name}: the scale", record.scale, shape[:1])
    _check_floats(f"{record.name}: the bias", record.bias, shape[:1])


def _sane(record: r.Record, least: int, *values: int) -> None:
    _require(record, all(least <= value <= _LARGEST for value in values), f"needs sizes from {least}, got {values}")


def _convolution(record: r.Convolution, inputs: Shapes) -> r.Shape:
    channels, height, width = _one_input(record, inputs, rank=3)
    _require(record, record.weight.ndim == 4 and min(record.weight.shape) > 0, "needs a weight of four sizes")
    _sane(record, 1, *record.stride, *record.dilation, record.groups)
    _sane(record, 0, *record.padding)
    outputs, _, *kernel = record.weight.shape
    fits = channels % record.groups == 0 and outputs % record.groups == 0
    _require(record, fits, f"cannot divide {channels} inputs and {outputs} outputs into {record.groups} groups")
    _check_weight(record, (outputs, channels // record.groups, *kernel))
    spans = [(size - 1) * step + 1 for size, step in zip(kernel, record.dilation, strict=True)]
    sides = (record.padding[:2], record.padding[2:])
    counts = map(windows, (height, width), spans, record.stride, sides)
    return (outputs, *counts)


def _linear(record: r.Linear, inputs: Shapes) -> r.Shape:
    (features,) = _one_input(record, inputs, rank=1)
    _require(record, record.weight.ndim == 2 and min(record.weight.shape) > 0, "needs a weight of two sizes")
    _check_weight(record, (record.weight.shape[0], features))
    return record.weight.shape[:1]


def _pool(record: r.Pool, inputs: Shapes) -> r.Shape:
    channels, *sizes = _one_input(record, inputs, rank=3)
    _sane(record, 1, *record.kernel, *record.stride)
    _sane(record, 0, *record.padding)
    sides = (record.padding[:2], record.padding[2:])
    # torch's rule; it also means that no window misses the map altogether
    fits = all(side[0] == side[1] <= kernel // 2 for side, kernel in zip(sides, record.kernel, strict=True))
    _require(record, fits, f"is padded alike on both sides by at most half of {record.kernel}, got {record.padding}")
    counts = [
        windows(size, kernel, stride, side, ceil_mode=record.ceil_mode)
        for size, kernel, stride, side in zip(sizes, record.kernel, record.stride, sides, strict=True)
    ]
    return (channels, *counts)


def _adaptive_pool(record: r.AdaptivePool, inputs: Shapes) -> r.Shape:
    channels, *_ = _one_input(record, inputs, rank=3)
    _require(record, len(record.shape) == 3, "gives a map")
    return (channels, *record.shape[1:])


def _activation(record: r.Activation, inputs: Shapes) -> r.Shape:
    _require(record, abs(record.slope) < 1e30, f"has the slope {record.slope}")
    return _one_input(record, inputs)


def _add(record: r.Add, inputs: Shapes) -> r.Shape:
    _require(record, len(inputs) == 2 and inputs[0] == inputs[1], f"takes two values of one shape, got {inputs}")
    return inputs[0]


def _multiply(record: r.Multiply, inputs: Shapes) -> r.Shape:
    _require(record, len(inputs) == 2, f"takes two values, got {len(inputs)}")
    value, gate = inputs
    fits = gate in (value, (value[0], 1, 1)) and len(gate) == len(value)
    _require(record, fits, f"takes two values of one shape, or a map and a gate, got {inputs}")
    return value


def _concat(record: r.Concat, inputs: Shapes) -> r.Shape:
    _require(record, len(inputs) >= 2, f"takes two or more values, got {len(inputs)}")
    _require(record, len({shape[1:] for shape in inputs}) == 1, f"takes values that differ in channels, got {inputs}")
    return (sum(shape[0] for shape in inputs), *inputs[0][1:])


def _reshape(record: r.Reshape, inputs: Shapes) -> r.Shape:
    shape = _one_input(record, inputs)
    _require(record, math.prod(shape) == math.prod(record.shape), f"cannot make {record.shape} of {shape}")
    return record.shape


def _channel_affine(record: r.ChannelAffine, inputs: Shapes) -> r.Shape:
    shape = _one_input(record, inputs)
    _check_constants(record, shape)
    return shape


_RULES: dict[type[r.Record], Callable[[Any, Shapes], r.Shape]] = {
    r.Convolution: _convolution,
    r.Linear: _linear,
    r.Pool: _pool,
    r.AdaptivePool: _adaptive_pool,
    r.Activation: _activation,
    r.Add: _add,
    r.Multiply: _multiply,
    r.Concat: _concat,
    r.Reshape: _reshape,
    r.ChannelAffine: _channel_affine,
}
