"""Each step as a call of a kernel, with the constants that it reads.

A kernel is the file of its name in kernels/.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.emit import Call, array, named, pairs, struct
from sca_search.export.c.memory import Layout, borders, flexible_values, layouts
from sca_search.export.c.weights import Context, convolution, cut_convolution, linear, requantize_lines
from sca_search.export.graph import records as r
from sca_search.export.graph.fuse import Step, is_convolution, steps_of
from sca_search.export.graph.liveness import living
from sca_search.export.integer.model import IntegerStep


def context_of(graph: r.Graph, steps: Sequence[Step], options: COptions) -> Context:
    """Chooses how ternary convolutions are cut, and with it the memory layout of values between steps."""
    shapes = {r.INPUT: graph.input_shape} | {step.name: step.shape for step in steps}
    live, flexible = living(graph), set() if options.integer else flexible_values(steps, graph.output)
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
    return Context(shapes, live, options, placed, cut)


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


def _kernel(step: Step, context: Context) -> str:
    if step.name in context.cut:
        tiles = context.cut[step.name].tiles
        return "in-place" if tiles.border is not None else "lists" if tiles.combined == 1 else "combined"
    return str(linear(step, step.name, context).kernel).removeprefix("ternary_linear_")


def call_of(step: Step, place: int, context: Context) -> Call | None:
    """The call that computes a step; None where its value is its input in another shape."""
    name = f"layer_{place}"
    calls = _INTEGER_CALLS if context.options.integer else _CALLS
    call = calls[type(step.record)](step, name, context)
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


def _weighted(step: Step, name: str, context: Context) -> Call:
    return (convolution if is_convolution(step.record) else linear)(step, name, context)


def _pool(step: Step, name: str, context: Context) -> Call:
    record, (input_shape,) = step.record, context.inputs(step)
    assert isinstance(record, r.Pool | r.AdaptivePool)
    source, target = context.layouts[step.inputs[0]], context.layouts[step.name]
    fields = named("channels in_height in_width out_height out_width", *input_shape, *record.shape[1:])
    fields |= named("in_row out_row", source.row_step, target.row_step)
    fields |= named("in_step out_step", source.channel_step, target.channel_step)
    if isinstance(record, r.Pool):
        fields |= named("pad_top pad_bottom pad_left pad_right", *record.padding)
        fields |= named("kernel_y kernel_x stride_y stride_x", *record.kernel, *record.stride)
        fields["count_padding"] = int(record.count_include_pad)
    kernel = f"adaptive_{record.kind}_pool" if isinstance(record, r.AdaptivePool) else f"{record.kind}_pool"
    factor = ""
    if isinstance(step, IntegerStep):
        kernel, factor = f"integer_{kernel}", f", {step.average_factor}"
    else:
        kernel = "max_pool_halves" if _halves(record, input_shape) else kernel
        fields["bordered"] = int(target.border is not None)
    return Call(f"{kernel}(&{name}, {{in0}}, {{out}}{factor});", kernel, constants=(struct("pool", name, fields),))


def _halves(record: r.Pool | r.AdaptivePool, input_shape: r.Shape) -> bool:
    """Whether it is a maximum over windows of 2 x 2, adjacent, and all inside the map."""
    if isinstance(record, r.AdaptivePool) or record.kind != "max":
        return False
    inside = all(2 * windows <= size for windows, size in zip(record.shape[1:], input_shape[1:], strict=True))
    return record.kernel == record.stride == (2, 2) and record.padding == (0, 0, 0, 0) and inside


def _activation(step: Step, _: str, context: Context) -> Call:
    record = step.record
    assert isinstance(record, r.Activation)
    # tanh is the name of a function in math.h
    kernel = "hyperbolic_tangent" if record.kind == "tanh" else record.kind
    slope = f", {np.float32(record.slope)!s}f" if record.kind == "leaky_relu" else ""
    return Call(f"{kernel}({{in0}}, {{out}}, {math.prod(context.inputs(step)[0])}{slope});", kernel)


def _add(step: Step, _: str, context: Context) -> Call:
    return Call(f"add({{in0}}, {{in1}}, {{out}}, {math.prod(context.inputs(step)[0])});", "add")


def _multiply(step: Step, _: str, context: Context) -> Call:
    value, gate = context.inputs(step)
    if value == gate:
        return Call(f"multiply({{in0}}, {{in1}}, {{out}}, {math.prod(value)});", "multiply")
    sizes = f"{value[0]}, {math.prod(value[1:])}"
    return Call(f"gate_channels({{in0}}, {{in1}}, {{out}}, {sizes});", "gate_channels")


def _concat(step: Step, _: str, context: Context) -> Call:
    sizes = [math.prod(shape) for shape in context.inputs(step)]
    starts = np.cumsum(sizes) - sizes
    copies = [
        f"memcpy({{out}} + {start}, {{in{index}}}, {size} * sizeof(float));"
        for index, (start, size) in enumerate(zip(starts, sizes, strict=True))
    ]
    return Call("\n".join(copies))


def _channel_affine(step: Step, name: str, context: Context) -> Call:
    record, (input_shape,) = step.record, context.inputs(step)
    assert isinstance(record, r.ChannelAffine)
    affine = pairs(name, record.scale, record.bias)
    sizes = f"{input_shape[0]}, {math.prod(input_shape[1:])}"
    return Call(f"channel_affine({name}, {{in0}}, {{out}}, {sizes});", "channel_affine", constants=(affine,))


def _lookup(step: IntegerStep, name: str, context: Context) -> Call:
    assert step.table is not None
    table = array("int8_t", f"{name}[256]", [str(value) for value in step.table])
    statement = f"integer_lookup({name}, {{in0}}, {{out}}, {math.prod(context.inputs(step)[0])});"
    return Call(statement, "integer_lookup", constants=(table,))


def _requantized(step: IntegerStep, name: str, kernel: str, arguments: str) -> Call:
    lines = requantize_lines(name, step.requantizations[0])
    return Call(f"{kernel}({name}, {arguments});", kernel, constants=(lines,))


def _integer_add(step: IntegerStep, name: str, context: Context) -> Call:
    size = math.prod(context.inputs(step)[0])
    return _requantized(step, name, "integer_add", f"{{in0}}, {{in1}}, {{out}}, {size}")


def _integer_multiply(step: IntegerStep, name: str, context: Context) -> Call:
    count, gates = map(math.prod, context.inputs(step))
    return _requantized(step, name, "integer_multiply", f"{{in0}}, {{in1}}, {{out}}, {count}, {count // gates}")


def _integer_concat(step: IntegerStep, name: str, context: Context) -> Call:
    statements, constants, begin = [], [], 0
    for index, (shape, to) in enumerate(zip(context.inputs(step), step.requantizations, strict=True)):
        size = math.prod(shape)
        constants.append(requantize_lines(f"{name}_part_{index}", to))
        statements.append(f"integer_rescale({name}_part_{index}, {{in{index}}}, {{out}} + {begin}, 1, {size});")
        begin += size
    return Call("\n".join(statements), "integer_rescale", constants=tuple(constants))


def _integer_affine(step: IntegerStep, name: str, context: Context) -> Call:
    channels, *sides = context.inputs(step)[0]
    return _requantized(step, name, "integer_rescale", f"{{in0}}, {{out}}, {channels}, {math.prod(sides)}")


_Calls = dict[type[r.Record], Callable[[Any, str, Context], Call | None]]
_SHARED: _Calls = {
    r.Convolution: _weighted,
    r.Linear: _weighted,
    r.Pool: _pool,
    r.AdaptivePool: _pool,
    r.Reshape: lambda *_: None,
}
_CALLS: _Calls = _SHARED | {
    r.Activation: _activation,
    r.Add: _add,
    r.Multiply: _multiply,
    r.Concat: _concat,
    r.ChannelAffine: _channel_affine,
}
_INTEGER_CALLS: _Calls = _SHARED | {
    r.Activation: _lookup,
    r.Add: _integer_add,
    r.Multiply: _integer_multiply,
    r.Concat: _integer_concat,
    r.ChannelAffine: _integer_affine,
}
