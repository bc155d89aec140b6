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
class Context:
    """The context of the calls of all steps, values and layers by their names."""

    shapes: Mapping[str, r.Shape]
    live: Mapping[str, Living]
    options: COptions

    def inputs(self, step: Step) -> tuple[r.Shape, ...]:
        """The shapes of a step's inputs."""
        return tuple(self.shapes[name] for name in step.inputs)


@dataclass(frozen=True)
class FloatContext(Context):
    """With float activations: the layouts of values, and how ternary convolutions are cut."""

    layouts: Mapping[str, Layout]
    cut: Mapping[str, TernaryConvolution]


def context_of(graph: r.Graph, steps: Sequence[Step], options: COptions) -> FloatContext:
    """Chooses how ternary convolutions are cut, and with it the memory layout of values between steps."""
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
    placed = layouts(shapes, flexible, {name: possible[name] for name in in_place})
    return FloatContext(shapes, live, options, placed, cut)


def can_have(graph: r.Graph, layer: str, kernel: str) -> bool:
    """Whether a ternary convolution can use a kernel at its place in the graph."""
    try:
        context_of(graph, steps_of(graph), COptions(kernels={layer: kernel}))
    except ExportError:
        return False
    return True


def chosen_kernels(graph: r.Graph, options: COptions | None = None) -> dict[str, str]:
    """The kernel of each ternary layer."""
    steps = steps_of(graph)
    context = context_of(graph, steps, options or COptions())
    return {step.record.name: _kernel(step, context) for step in steps if step.record.name in context.live}


def _kernel(step: Step, context: FloatContext) -> str:
    if step.name in context.cut:
        tiles = context.cut[step.name].tiles
        return "in-place" if tiles.border is not None else "lists" if tiles.combined == 1 else "combined"
    call = _call(step, step.name, context)
    assert call is not None
    assert call.kernel is not None
    return call.kernel.removeprefix("ternary_linear_")


def call_of(step: Step, place: int, context: FloatContext) -> Call | None:
    """The call that computes a step; None where its value is its input in another shape."""
    name = f"layer_{place}"
    call = _call(step, name, context)
    return call and with_border(call, f"{name}_out", step.shape, context.layouts[step.name])


def with_border(call: Call, name: str, shape: r.Shape, layout: Layout) -> Call:
    """A call that also clears the border of its output, if it has one."""
    if layout.border is None:
        return call
    fields = {"channels": shape[0], "begin": layout.begin, "step": layout.channel_step}
    return replace(
        call,
        statement=f"clear_border(&{name}, {{out}});\n{call.statement}",
        constants=(*call.constants, struct("bordered", name, fields)),
        more_kernels=(*call.more_kernels, "clear_border"),
    )


def _call(step: Step, name: str, context: FloatContext) -> Call | None:
    return _CALLS[type(step.record)](step, name, context)


def _weighted(step: Step, name: str, context: FloatContext) -> Call:
    layouts, source = context.layouts, step.inputs[0]
    maps = LayerMaps(context.shapes[source], layouts[source], layouts[step.name], layouts[step.inputs[-1]])
    if step.name in context.cut:
        return ternary_convolution_call(step, name, maps, context.cut[step.name])
    return weight_call(step, name, maps, context.live.get(step.record.name), context.options)


def _pool(step: Step, name: str, context: FloatContext) -> Call:
    record, (input_shape,) = step.record, context.inputs(step)
    assert isinstance(record, r.Pool | r.AdaptivePool)
    kernel = f"adaptive_{record.kind}_pool" if isinstance(record, r.AdaptivePool) else f"{record.kind}_pool"
    if isinstance(record, r.Pool) and record.kind == "max" and _halves(record, input_shape):
        kernel = "max_pool_halves"
    source, target = context.layouts[step.inputs[0]], context.layouts[step.name]
    steps = (source.row_step, target.row_step, source.channel_step, target.channel_step)
    fields = pool_fields(record, input_shape, steps) | {"bordered": int(target.border is not None)}
    return Call(f"{kernel}(&{name}, {{in0}}, {{out}});", kernel, constants=(struct("pool", name, fields),))


def _halves(record: r.Pool, input_shape: r.Shape) -> bool:
    """Whether its windows are 2 x 2, adjacent, and all inside the map."""
    inside = all(2 * windows <= size for windows, size in zip(record.shape[1:], input_shape[1:], strict=True))
    return record.kernel == record.stride == (2, 2) and record.padding == (0, 0, 0, 0) and inside


def pool_fields(
    record: r.Pool | r.AdaptivePool, input_shape: r.Shape, steps: tuple[int, int, int, int]
) -> dict[str, object]:
    """Fields of a `struct pool`; `steps` are those from row to row of input and output, and from channel to channel."""
    sizes = ("channels", "in_height", "in_width", "out_height", "out_width", "in_row", "out_row", "in_step", "out_step")
    fields: dict[str, object] = dict(zip(sizes, (*input_shape, *record.shape[1:], *steps), strict=True))
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


def _activation(step: Step, _: str, context: FloatContext) -> Call:
    record = step.record
    assert isinstance(record, r.Activation)
    # tanh is the name of a function in math.h
    kernel = "hyperbolic_tangent" if record.kind == "tanh" else record.kind
    slope = f", {np.float32(record.slope)!s}f" if record.kind == "leaky_relu" else ""
    return Call(f"{kernel}({{in0}}, {{out}}, {math.prod(context.inputs(step)[0])}{slope});", kernel)


def _add(step: Step, _: str, context: FloatContext) -> Call:
    return Call(f"add({{in0}}, {{in1}}, {{out}}, {math.prod(context.inputs(step)[0])});", "add")


def _multiply(step: Step, _: str, context: FloatContext) -> Call:
    value, gate = context.inputs(step)
    if value == gate:
        return Call(f"multiply({{in0}}, {{in1}}, {{out}}, {math.prod(value)});", "multiply")
    sizes = f"{value[0]}, {math.prod(value[1:])}"
    return Call(f"gate_channels({{in0}}, {{in1}}, {{out}}, {sizes});", "gate_channels")


def _concat(step: Step, _: str, context: FloatContext) -> Call:
    sizes = [math.prod(shape) for shape in context.inputs(step)]
    starts = np.cumsum(sizes) - sizes
    copies = [
        f"memcpy({{out}} + {start}, {{in{index}}}, {size} * sizeof(float));"
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    return Call("\n".join(copies))


def _channel_affine(step: Step, name: str, context: FloatContext) -> Call:
    record, (input_shape,) = step.record, context.inputs(step)
    assert isinstance(record, r.ChannelAffine)
    affine = pairs(name, record.scale, record.bias)
    sizes = f"{input_shape[0]}, {math.prod(input_shape[1:])}"
    return Call(f"channel_affine({name}, {{in0}}, {{out}}, {sizes});", "channel_affine", constants=(affine,))


_CALLS: dict[type[r.Record], Callable[[Step, str, FloatContext], Call | None]] = {
    r.Convolution: _weighted,
    r.Linear: _weighted,
    r.Pool: _pool,
    r.AdaptivePool: _pool,
    r.Activation: _activation,
    r.Add: _add,
    r.Multiply: _multiply,
    r.Concat: _concat,
    r.Reshape: lambda *_: None,
    r.ChannelAffine: _channel_affine,
}
