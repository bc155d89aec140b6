"""Each step with integer activations as a call of a kernel, with the constants that it reads."""

import math
from collections.abc import Callable

from sca_search.export.c.emit import Call, struct
from sca_search.export.c.int8_weights import integer_weight_call, requantize_lines
from sca_search.export.c.layers import Context, pool_fields
from sca_search.export.graph import records as r
from sca_search.export.integer.model import IntegerStep


def integer_call_of(step: IntegerStep, place: int, context: Context) -> Call | None:
    """The call that computes a step; None where its value is its input in another shape."""
    return _CALLS[type(step.record)](step, f"layer_{place}", context)


def _weighted(step: IntegerStep, name: str, context: Context) -> Call:
    live = context.live.get(step.record.name)
    return integer_weight_call(step, name, context.inputs(step)[0], live, context.options)


def _pool(step: IntegerStep, name: str, context: Context) -> Call:
    record = step.record
    assert isinstance(record, r.Pool | r.AdaptivePool)
    kernel = f"integer_{'adaptive_' if isinstance(record, r.AdaptivePool) else ''}{record.kind}_pool"
    (input_shape,) = context.inputs(step)
    steps = (input_shape[2], record.shape[2], math.prod(input_shape[1:]), math.prod(record.shape[1:]))
    fields = pool_fields(record, input_shape, steps)
    statement = f"{kernel}(&{name}, {{in0}}, {{out}}, {step.average_factor});"
    return Call(statement, kernel, constants=(struct("pool", name, fields),))


def _activation(step: IntegerStep, name: str, context: Context) -> Call:
    assert step.table is not None
    lines = [", ".join(map(str, step.table[begin : begin + 16])) for begin in range(0, 256, 16)]
    table = f"static const int8_t {name}[256] = {{\n    " + ",\n    ".join(lines) + ",\n};"
    statement = f"integer_lookup({name}, {{in0}}, {{out}}, {math.prod(context.inputs(step)[0])});"
    return Call(statement, "integer_lookup", constants=(table,))


def _add(step: IntegerStep, name: str, context: Context) -> Call:
    statement = f"integer_add({name}, {{in0}}, {{in1}}, {{out}}, {math.prod(context.inputs(step)[0])});"
    return Call(statement, "integer_add", constants=(requantize_lines(name, step.requantizations[0]),))


def _multiply(step: IntegerStep, name: str, context: Context) -> Call:
    count, gates = map(math.prod, context.inputs(step))
    sizes = f"{count}, {count // gates}"
    statement = f"integer_multiply({name}, {{in0}}, {{in1}}, {{out}}, {sizes});"
    return Call(statement, "integer_multiply", constants=(requantize_lines(name, step.requantizations[0]),))


def _concat(step: IntegerStep, name: str, context: Context) -> Call:
    statements, constants, begin = [], [], 0
    for index, (shape, to) in enumerate(zip(context.inputs(step), step.requantizations, strict=True)):
        size = math.prod(shape)
        constants.append(requantize_lines(f"{name}_part_{index}", to))
        statements.append(f"integer_rescale({name}_part_{index}, {{in{index}}}, {{out}} + {begin}, 1, {size});")
        begin += size
    return Call("\n".join(statements), "integer_rescale", constants=tuple(constants))


def _channel_affine(step: IntegerStep, name: str, context: Context) -> Call:
    (input_shape,) = context.inputs(step)
    sizes = f"{input_shape[0]}, {math.prod(input_shape[1:])}"
    statement = f"integer_rescale({name}, {{in0}}, {{out}}, {sizes});"
    return Call(statement, "integer_rescale", constants=(requantize_lines(name, step.requantizations[0]),))


_CALLS: dict[type[r.Record], Callable[[IntegerStep, str, Context], Call | None]] = {
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
