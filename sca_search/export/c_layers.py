"""Each step as a call of a kernel, with the constants that it reads.

A kernel is the file of its name in kernels/.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from sca_search.export.c_call import Call, pairs, struct
from sca_search.export.c_liveness import Living
from sca_search.export.c_options import COptions
from sca_search.export.c_steps import Step
from sca_search.export.c_weights import Given, weight_call
from sca_search.export.records import (
    Activation,
    AdaptivePool,
    Add,
    ChannelAffine,
    Concat,
    Multiply,
    Pool,
    Record,
    Reshape,
    Shape,
    WeightRecord,
)


@dataclass(frozen=True)
class Surroundings:
    """What the call of a step depends on besides the step itself, values and layers by their names."""

    shapes: Mapping[str, Shape]
    channel_steps: Mapping[str, int]
    live: Mapping[str, Living]
    options: COptions


def call_of(step: Step, place: int, around: Surroundings) -> Call | None:
    """How to compute a step; None where its value is its input under another shape."""
    name, record = f"layer_{place}", step.record
    inputs = tuple(around.shapes[name] for name in step.inputs)
    if isinstance(record, WeightRecord):
        steps = [around.channel_steps[value] for value in (step.inputs[0], step.name, step.inputs[-1])]
        return weight_call(step, name, Given(inputs[0], *steps), around.live, around.options)
    if isinstance(record, Pool | AdaptivePool):
        steps = [around.channel_steps[value] for value in (step.inputs[0], step.name)]
        return _pool_call(record, name, inputs[0], steps)
    return _CALLS[type(record)](record, name, inputs)


def _pool_call(record: Pool | AdaptivePool, name: str, given: Shape, steps: list[int]) -> Call:
    kernel = f"adaptive_{record.kind}_pool" if isinstance(record, AdaptivePool) else f"{record.kind}_pool"
    if isinstance(record, Pool) and record.kind == "max" and _halves(record, given):
        kernel = "max_pool_halves"
    fields = pool_fields(record, given, steps)
    return Call(f"{kernel}(&{name}, {{in0}}, {{out}});", kernel, constants=(struct("pool", name, fields),))


def _halves(record: Pool, given: Shape) -> bool:
    """Whether its windows are 2 x 2, side by side, and all of them in the map."""
    inside = all(2 * windows <= size for windows, size in zip(record.shape[1:], given[1:], strict=True))
    return record.kernel == record.stride == (2, 2) and record.padding == (0, 0, 0, 0) and inside


def pool_fields(record: Pool | AdaptivePool, given: Shape, steps: list[int]) -> dict[str, object]:
    """Of a `struct pool`, for steps from channel to channel of input and output."""
    sizes = ("channels", "in_height", "in_width", "out_height", "out_width", "in_step", "out_step")
    fields: dict[str, object] = dict(zip(sizes, (*given, *record.shape[1:], *steps), strict=True))
    return fields | _windows(record) if isinstance(record, Pool) else fields


def _windows(record: Pool) -> dict[str, object]:
    sides: dict[str, object] = dict(
        zip(("pad_top", "pad_bottom", "pad_left", "pad_right"), record.padding, strict=True)
    )
    return sides | {
        "kernel_y": record.kernel[0],
        "kernel_x": record.kernel[1],
        "stride_y": record.stride[0],
        "stride_x": record.stride[1],
        "count_padding": int(record.count_include_pad),
    }


def _activation(record: Activation, _: str, inputs: tuple[Shape, ...]) -> Call:
    # tanh is the name of a function in math.h
    kernel = "hyperbolic_tangent" if record.kind == "tanh" else record.kind
    slope = f", {np.float32(record.slope)!s}f" if record.kind == "leaky_relu" else ""
    return Call(f"{kernel}({{in0}}, {{out}}, {math.prod(inputs[0])}{slope});", kernel)


def _add(_: Add, __: str, inputs: tuple[Shape, ...]) -> Call:
    return Call(f"add({{in0}}, {{in1}}, {{out}}, {math.prod(inputs[0])});", "add")


def _multiply(_: Multiply, __: str, inputs: tuple[Shape, ...]) -> Call:
    value, gate = inputs
    if value == gate:
        return Call(f"multiply({{in0}}, {{in1}}, {{out}}, {math.prod(value)});", "multiply")
    sizes = f"{value[0]}, {math.prod(value[1:])}"
    return Call(f"gate_channels({{in0}}, {{in1}}, {{out}}, {sizes});", "gate_channels")


def _concat(_: Concat, __: str, inputs: tuple[Shape, ...]) -> Call:
    sizes = [math.prod(shape) for shape in inputs]
    starts = np.cumsum(sizes) - sizes
    copies = [
        f"memcpy({{out}} + {start}, {{in{index}}}, {size} * sizeof(float));"
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    return Call("\n".join(copies))


def _channel_affine(record: ChannelAffine, name: str, inputs: tuple[Shape, ...]) -> Call:
    affine = pairs(name, record.scale, record.bias)
    sizes = f"{inputs[0][0]}, {math.prod(inputs[0][1:])}"
    return Call(f"channel_affine({name}, {{in0}}, {{out}}, {sizes});", "channel_affine", constants=(affine,))


_CALLS: dict[type[Record], Callable[..., Call | None]] = {
    Activation: _activation,
    Add: _add,
    Multiply: _multiply,
    Concat: _concat,
    Reshape: lambda *_: None,
    ChannelAffine: _channel_affine,
}
