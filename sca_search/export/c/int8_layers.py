"""Each step with integer activations as a call of a kernel, with the constants that it reads."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.emit import Call, struct
from sca_search.export.c.int8_weights import integer_weight_call, requantize_lines
from sca_search.export.c.layers import pool_fields
from sca_search.export.graph import records as r
from sca_search.export.graph.liveness import Living
from sca_search.export.integer.model import IntegerStep

Shapes = tuple[r.Shape, ...]


@dataclass(frozen=True)
class IntegerSurroundings:
    """What the call of a step depends on besides the step itself."""

    shapes: Mapping[str, r.Shape]
    live: Mapping[str, Living]
    options: COptions


def integer_call_of(step: IntegerStep, place: int, around: IntegerSurroundings) -> Call | None:
    """How to compute a step; None where its value is its input under another shape."""
    name, record = f"layer_{place}", step.step.record
    inputs = tuple(around.shapes[name] for name in step.step.inputs)
    if isinstance(record, r.WeightRecord):
        live = around.live[record.name] if record.ternary else None
        return integer_weight_call(step, name, inputs[0], live, around.options)
    return _CALLS[type(record)](step, name, inputs)


def _pool(step: IntegerStep, name: str, inputs: Shapes) -> Call:
    record = step.step.record
    assert isinstance(record, r.Pool | r.AdaptivePool)
    kernel = f"integer_{'adaptive_' if isinstance(record, r.AdaptivePool) else ''}{record.kind}_pool"
    steps = (inputs[0][2], record.shape[2], math.prod(inputs[0][1:]), math.prod(record.shape[1:]))
    fields = pool_fields(record, inputs[0], steps)
    statement = f"{kernel}(&{name}, {{in0}}, {{out}}, {step.average_factor});"
    return Call(statement, kernel, constants=(struct("pool", name, fields),))


def _activation(step: IntegerStep, name: str, inputs: Shapes) -> Call:
    assert step.table is not None
    lines = [", ".join(map(str, step.table[begin : begin + 16])) for begin in range(0, 256, 16)]
    table = f"static const int8_t {name}[256] = {{\n    " + ",\n    ".join(lines) + ",\n};"
    statement = f"integer_lookup({name}, {{in0}}, {{out}}, {math.prod(inputs[0])});"
    return Call(statement, "integer_lookup", constants=(table,))


def _add(step: IntegerStep, name: str, inputs: Shapes) -> Call:
    statement = f"integer_add({name}, {{in0}}, {{in1}}, {{out}}, {math.prod(inputs[0])});"
    return Call(statement, "integer_add", constants=(requantize_lines(name, step.requantizations[0]),))


def _multiply(step: IntegerStep, name: str, inputs: Shapes) -> Call:
    count = math.prod(inputs[0])
    sizes = f"{count}, {count // math.prod(inputs[1])}"
    statement = f"integer_multiply({name}, {{in0}}, {{in1}}, {{out}}, {sizes});"
    return Call(statement, "integer_multiply", constants=(requantize_lines(name, step.requantizations[0]),))


def _concat(step: IntegerStep, name: str, inputs: Shapes) -> Call:
    statements, constants, begin = [], [], 0
    for index, (shape, to) in enumerate(zip(inputs, step.requantizations, strict=True)):
        size = math.prod(shape)
        constants.append(requantize_lines(f"{name}_part_{index}", to))
        statements.append(f"integer_rescale({name}_part_{index}, {{in{index}}}, {{out}} + {begin}, 1, {size});")
        begin += size
    return Call("\n".join(statements), "integer_rescale", constants=tuple(constants))


def _channel_affine(step: IntegerStep, name: str, inputs: Shapes) -> Call:
    sizes = f"{inputs[0][0]}, {math.prod(inputs[0][1:])}"
    statement = f"integer_rescale({name}, {{in0}}, {{out}}, {sizes});"
    return Call(statement, "integer_rescale", constants=(requantize_lines(name, step.requantizations[0]),))


_CALLS: dict[type[r.Record], Callable[[IntegerStep, str, Shapes], Call | None]] = {
    r.Pool: _pool,
    r.AdaptivePool: _pool,
    r.Activation: _activation,
    r.Add: _add,
    r.Multiply: _multiply,
    r.Concat: _concat,
    r.Reshape: lambda *_: None,
    r.ChannelAffine: _channel_affine,
}
