"""Each step as a call of a kernel, with the constants that it reads.

A kernel is the file of its name in kernels/.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.emit import Call, pairs, struct
from sca_search.export.c.memory import Layout, borders, flexible_values, layouts
from sca_search.export.c.weights import (
    LayerMaps,
    TernaryConvolution,
    cut_convolution,
    ternary_convolution_call,
    weight_call,
)
from sca_search.export.graph import records as r
from sca_search.export.graph.fuse import Step, is_convolution, steps_of
from sca_search.export.graph.liveness import Living, living


@dataclass(frozen=True)
class Surroundings:
    """What the call of a step depends on besides the step itself, values and layers by their names."""

    shapes: Mapping[str, r.Shape]
    layouts: Mapping[str, Layout]
    live: Mapping[str, Living]
    cut: Mapping[str, TernaryConvolution]
    options: COptions


def surroundings(graph: r.Graph, steps: Sequence[Step], options: COptions) -> Surroundings:
    """Chooses how ternary convolutions are cut, and with it how the values between the steps lie."""
    shapes = {r.INPUT: graph.input_shape} | {step.name: step.shape for step in steps}
    live, flexible = living(graph), flexible_values(steps, graph.output)
    possible = {name: rows for name, rows in borders(steps).items() if name in flexible}
    cut = {
        step.name: cut_convolution(
            step.record, live[step.record.name], shapes[step.inputs[0]], possible.get(step.inputs[0]), options
        )
        for step in steps
        if isinstance(step.record, r.Convolution) and is_convolution(step.record) and step.record.ternary
    }
    in_place = {step.inputs[0] for step in steps if step.name in cut and cut[step.name].tiles.border is not None}
    lying = layouts(shapes, flexible, {name: possible[name] for name in in_place})
    return Surroundings(shapes, lying, live, cut, options)


def can_have(graph: r.Graph, layer: str, kernel: str) -> bool:
    """Whether a ternary convolution can have a kernel where it is in the graph."""
    try:
        surroundings(graph, steps_of(graph), COptions(kernels={layer: kernel}))
    except ExportError:
        return False
    return True


def chosen_kernels(graph: r.Graph, options: COptions | None = None) -> dict[str, str]:
    """The kernel of each ternary layer."""
    steps = steps_of(graph)
    around = surroundings(graph, steps, options or COptions())
    return {step.record.name: _kernel(step, around) for step in steps if step.record.name in around.live}


def _kernel(step: Step, around: Surroundings) -> str:
    if step.name in around.cut:
        tiles = around.cut[step.name].tiles
        return "in-place" if tiles.border is not None else "lists" if tiles.combined == 1 else "combined"
    call = _call(step, step.name, around)
    assert call is not None
    assert call.kernel is not None
    return call.kernel.removeprefix("ternary_linear_")


def call_of(step: Step, place: int, around: Surroundings) -> Call | None:
    """How to compute a step; None where its value is its input under another shape."""
    name = f"layer_{place}"
    call = _call(step, name, around)
    return call and with_border(call, f"{name}_out", step.shape, around.layouts[step.name])


def with_border(call: Call, name: str, shape: r.Shape, layout: Layout) -> Call:
    """A call behind one that clears the border of what it makes, where that has one."""
    if layout.border is None:
        return call
    fields = {"channels": shape[0], "begin": layout.begin, "step": layout.channel_step}
    return replace(
        call,
        statement=f"clear_border(&{name}, {{out}});\n{call.statement}",
        constants=(*call.constants, struct("bordered", name, fields)),
        more_kernels=(*call.more_kernels, "clear_border"),
    )


def _call(step: Step, name: str, around: Surroundings) -> Call | None:
    record, layouts = step.record, around.layouts
    inputs = tuple(around.shapes[name] for name in step.inputs)
    if isinstance(record, r.WeightRecord):
        maps = LayerMaps(inputs[0], layouts[step.inputs[0]], layouts[step.name], layouts[step.inputs[-1]])
        if step.name in around.cut:
            return ternary_convolution_call(step, name, maps, around.cut[step.name])
        return weight_call(step, name, maps, around.live.get(record.name), around.options)
    if isinstance(record, r.Pool | r.AdaptivePool):
        return _pool_call(record, name, inputs[0], layouts[step.inputs[0]], layouts[step.name])
    return _CALLS[type(record)](record, name, inputs)


def _pool_call(record: r.Pool | r.AdaptivePool, name: str, given: r.Shape, source: Layout, target: Layout) -> Call:
    kernel = f"adaptive_{record.kind}_pool" if isinstance(record, r.AdaptivePool) else f"{record.kind}_pool"
    if isinstance(record, r.Pool) and record.kind == "max" and _halves(record, given):
        kernel = "max_pool_halves"
    steps = (source.row_step, target.row_step, source.channel_step, target.channel_step)
    fields = pool_fields(record, given, steps) | {"bordered": int(target.border is not None)}
    return Call(f"{kernel}(&{name}, {{in0}}, {{out}});", kernel, constants=(struct("pool", name, fields),))


def _halves(record: r.Pool, given: r.Shape) -> bool:
    """Whether its windows are 2 x 2, side by side, and all of them in the map."""
    inside = all(2 * windows <= size for windows, size in zip(record.shape[1:], given[1:], strict=True))
    return record.kernel == record.stride == (2, 2) and record.padding == (0, 0, 0, 0) and inside


def pool_fields(record: r.Pool | r.AdaptivePool, given: r.Shape, steps: tuple[int, int, int, int]) -> dict[str, object]:
    """Of a `struct pool`, for steps from row to row of input and output, and from channel to channel."""
    sizes = ("channels", "in_height", "in_width", "out_height", "out_width", "in_row", "out_row", "in_step", "out_step")
    fields: dict[str, object] = dict(zip(sizes, (*given, *record.shape[1:], *steps), strict=True))
    return fields | _windows(record) if isinstance(record, r.Pool) else fields


def _windows(record: r.Pool) -> dict[str, object]:
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


def _activation(record: r.Activation, _: str, inputs: tuple[r.Shape, ...]) -> Call:
    # tanh is the name of a function in math.h
    kernel = "hyperbolic_tangent" if record.kind == "tanh" else record.kind
    slope = f", {np.float32(record.slope)!s}f" if record.kind == "leaky_relu" else ""
    return Call(f"{kernel}({{in0}}, {{out}}, {math.prod(inputs[0])}{slope});", kernel)


def _add(_: r.Add, __: str, inputs: tuple[r.Shape, ...]) -> Call:
    return Call(f"add({{in0}}, {{in1}}, {{out}}, {math.prod(inputs[0])});", "add")


def _multiply(_: r.Multiply, __: str, inputs: tuple[r.Shape, ...]) -> Call:
    value, gate = inputs
    if value == gate:
        return Call(f"multiply({{in0}}, {{in1}}, {{out}}, {math.prod(value)});", "multiply")
    sizes = f"{value[0]}, {math.prod(value[1:])}"
    return Call(f"gate_channels({{in0}}, {{in1}}, {{out}}, {sizes});", "gate_channels")


def _concat(_: r.Concat, __: str, inputs: tuple[r.Shape, ...]) -> Call:
    sizes = [math.prod(shape) for shape in inputs]
    starts = np.cumsum(sizes) - sizes
    copies = [
        f"memcpy({{out}} + {start}, {{in{index}}}, {size} * sizeof(float));"
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    return Call("\n".join(copies))


def _channel_affine(record: r.ChannelAffine, name: str, inputs: tuple[r.Shape, ...]) -> Call:
    affine = pairs(name, record.scale, record.bias)
    sizes = f"{inputs[0][0]}, {math.prod(inputs[0][1:])}"
    return Call(f"channel_affine({name}, {{in0}}, {{out}}, {sizes});", "channel_affine", constants=(affine,))


_CALLS: dict[type[r.Record], Callable[..., Call | None]] = {
    r.Activation: _activation,
    r.Add: _add,
    r.Multiply: _multiply,
    r.Concat: _concat,
    r.Reshape: lambda *_: None,
    r.ChannelAffine: _channel_affine,
}
