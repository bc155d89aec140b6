"""The C export: one source file and one header of plain C99, an example, a self-test, and a Makefile.

No heap, no libc function but memcpy, and of libm only what an activation needs. Ternary layers add and subtract; the
only multiplications are those by the scale per output channel. With integer activations the values in the scratch
memory are bytes; its size is still counted in floats.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c.amalgamate import amalgamate, kernel_file
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.count_zeros import table_comment
from sca_search.export.c.emit import Call, Literal, Table, float_chunks, float_value, integers, pairs, quoted, struct
from sca_search.export.c.int8_layers import integer_call_of
from sca_search.export.c.layers import Context, call_of, context_of, with_border
from sca_search.export.c.memory import Layout, Plan, plan_memory
from sca_search.export.graph.fuse import Step, steps_of
from sca_search.export.graph.records import INPUT, Floats, Graph, Shape, TestVectors, WeightRecord
from sca_search.export.integer.model import IntegerModel
from sca_search.system.files import write_text_atomic

_MODEL_HEADER = {"model.h": '#include "model.h"\n'}


@dataclass(frozen=True)
class _Program:
    """Steps with their calls, None where there is nothing to do; and the places of their values and tables."""

    graph: Graph
    steps: tuple[Step, ...]
    calls: tuple[Call | None, ...]
    plan: Plan
    begins: Mapping[str, int]  # floats before the first cell of a value
    tables: Mapping[int, int]  # index of the first number of a step's table
    stored: bool
    first: Call  # computes the input from the image
    last: Call | None  # computes the logits from the output, unless its step did
    integer: IntegerModel | None = None

    @property
    def table_numbers(self) -> int:
        """Numbers of the tables in memory, not in the source."""
        return 0 if self.stored else sum(len(call.table.numbers) for call in self.calls if call and call.table)


def write_c(folder: Path, graph: Graph, vectors: TestVectors, options: COptions | None = None) -> tuple[Path, ...]:
    """Writes a model as C into a folder and returns the files."""
    texts = model_files(graph, options) | {
        "main.c": kernel_file("main.c"),
        "check.c": amalgamate(["check.c"], _MODEL_HEADER | {"vectors.h": _vectors(vectors)}),
        "Makefile": kernel_file("Makefile"),
    }
    for name, text in texts.items():
        write_text_atomic(folder / name, text)
    return tuple(folder / name for name in texts)


def model_files(graph: Graph, options: COptions | None = None) -> dict[str, str]:
    """The source of a model and its header, by file name."""
    program = _program(graph, options or COptions())
    return {"model.c": _source(program), "model.h": _header(program)}


def stamped_steps(graph: Graph) -> tuple[str, ...]:
    """What precedes `MODEL_STEP_DONE(place)`, by place: the input, each step's record, the logits."""
    return (INPUT, *(step.record.name for step in steps_of(graph)), "logits")


def _program(graph: Graph, options: COptions) -> _Program:
    layers = [layer.name for layer in graph.ternary_layers]
    for name in options.kernels:
        if name not in layers:
            raise ExportError(unknown_name("ternary layer", name, layers))
    return _integer_program(options.integer, options) if options.integer else _float_program(graph, options)


def _float_program(graph: Graph, options: COptions) -> _Program:
    steps = steps_of(graph)
    context = context_of(graph, steps, options)
    calls = tuple(call_of(step, place, context) for place, step in enumerate(steps))
    values = {name: layout.size for name, layout in context.layouts.items()}
    begins = {name: layout.begin for name, layout in context.layouts.items()}
    first = _normalise(graph, context.layouts[INPUT])
    last = Call("memcpy(out, {in0}, MODEL_OUTPUTS * sizeof(float));")
    plan = plan_memory(steps, values, graph.output, _works(calls))
    return _Program(graph, steps, calls, plan, begins, _table_begins(calls), options.stored, first, last)


def _normalise(graph: Graph, layout: Layout) -> Call:
    sizes = ("channels", "height", "width", "out_row", "out_step", "bordered")
    steps = (layout.row_step, layout.channel_step, int(layout.border is not None))
    channels, *sides = graph.input_shape
    image = (channels, math.prod(sides[:-1]), math.prod(sides[-1:]))
    fields = dict(zip(sizes, (*image, *steps), strict=True))
    constants = (pairs("input_statistics", graph.mean, graph.std), struct("image", "input_image", fields))
    call = Call("normalise(&input_image, input_statistics, in, {out});", "normalise", constants=constants)
    return with_border(call, "input_border", graph.input_shape, layout)


def _integer_program(model: IntegerModel, options: COptions) -> _Program:
    graph, steps = model.graph, model.steps
    shapes = {INPUT: graph.input_shape} | {record.name: record.shape for record in graph.records}
    context = Context(shapes, model.live, options)
    calls = tuple(integer_call_of(step, place, context) for place, step in enumerate(steps))
    values = {name: math.ceil(math.prod(shapes[name]) / 4) for name in (INPUT, *(step.name for step in steps))}
    statistics = pairs("input_statistics", graph.mean, model.input_factors)
    sizes = f"{graph.input_shape[0]}, {math.prod(graph.input_shape[1:])}"
    first = Call(f"quantize_image(input_statistics, in, {{out}}, {sizes});", "quantize_image", constants=(statistics,))
    last = Call(
        f"integer_logits({{in0}}, {float_value(float(model.logit_unit))}, out, MODEL_OUTPUTS);", "integer_logits"
    )
    written = any(step.is_logits for step in steps)
    plan = plan_memory(steps, values, graph.output, _works(calls))
    begins = dict.fromkeys(values, 0)
    tables = _table_begins(calls)
    return _Program(graph, steps, calls, plan, begins, tables, options.stored, first, None if written else last, model)


def _works(calls: tuple[Call | None, ...]) -> dict[int, int]:
    return {place: call.work_floats for place, call in enumerate(calls) if call is not None}


def _table_begins(calls: tuple[Call | None, ...]) -> dict[int, int]:
    sizes = [len(call.table.numbers) if call and call.table else 0 for call in calls]
    return dict(enumerate(int(end) - size for end, size in zip(np.cumsum(sizes), sizes, strict=True)))


def _source(program: _Program) -> str:
    calls = [call for call in (program.first, *program.calls, program.last) if call is not None]
    kernels = [kernel for call in calls for kernel in (call.kernel, *call.more_kernels) if kernel]
    if not program.stored:
        kernels += [call.table.expander for call in calls if call.table]
    code = amalgamate(["model.h", *(f"{kernel}.c" for kernel in dict.fromkeys(kernels))], _MODEL_HEADER)
    tables = "\n".join(line for place in range(len(program.steps)) for line in _constants(program, place))
    graph = program.graph
    return "\n".join(
        (_title(graph), code, tables, *program.first.constants, "", _class_names(graph), _predict(program))
    )


def _title(graph: Graph) -> str:
    weights = sum(layer.weight.size for layer in graph.ternary_layers)
    return (
        f"/* A neural network written by sca-search: {weights} ternary weights, {100 * graph.sparsity:.2f} % zeros.\n"
        " * See model.h for how to call it. */"
    )


def _constants(program: _Program, place: int) -> Iterator[str]:
    call = program.calls[place]
    if call is None:
        return
    for literal in call.literals:
        yield from literal.definition()
    if call.table is not None:
        yield from _table(program.steps[place].record, call.table, f"layer_{place}", program.stored)
    yield from call.constants


def _table(record: object, table: Table, name: str, stored: bool) -> Iterator[str]:
    """The trits of a layer, as characters or as the numbers that its kernel reads."""
    assert isinstance(record, WeightRecord)
    yield table_comment(record, table, f"{name}_table" if stored else table.trits.name, stored=stored)
    if stored:
        yield integers(f"{name}_table", table.numbers)
    else:
        yield from table.trits.definition()
        yield f"static const struct literal {name}_trits = {table.trits.initializer};"


def _class_names(graph: Graph) -> str:
    names = ",\n".join(f"    {quoted(name)}" for name in graph.class_names)
    return f"const char *const model_class_names[MODEL_OUTPUTS] = {{\n{names},\n}};\n"


def _predict(program: _Program) -> str:
    graph = program.graph
    first = program.first.statement.format(out=_value(program, INPUT))
    expansions, statements = [], [f"/* {INPUT}: {_spelled(graph.input_shape)} */", first, "MODEL_STEP_DONE(0);"]
    for place, (step, call) in enumerate(zip(program.steps, program.calls, strict=True)):
        statements.append(f"/* {step.name}: {_spelled(step.shape)} */")
        if call is not None:
            statements += call.statement.format(**_pointers(program, place)).splitlines()
            statements.append(f"MODEL_STEP_DONE({place + 1});")
            if call.table is not None and not program.stored:
                name = f"layer_{place}"
                expansions.append(f"{call.table.expander}(&{name}, &{name}_trits, expanded + {program.tables[place]});")
    if program.last is not None:
        statements.append(program.last.statement.format(in0=_value(program, graph.output)))
        statements.append(f"MODEL_STEP_DONE({len(program.steps) + 1});")
    text = kernel_file("predict.c")
    for mark, lines in (("@EXPANSIONS@", expansions), ("@STATEMENTS@", statements)):
        text = text.replace(f"    {mark}\n", "".join(f"    {line}\n" for line in lines))
    return text


def _value(program: _Program, name: str) -> str:
    pointer = f"scratch + {program.plan.values[name] + program.begins[name]}"
    return f"(int8_t *)({pointer})" if program.integer else pointer


def _pointers(program: _Program, place: int) -> dict[str, str]:
    step, plan = program.steps[place], program.plan
    values = [_value(program, name) for name in step.inputs]
    work = f"scratch + {plan.works[place]}"
    pointers = {f"in{index}": value for index, value in enumerate(values)} | {
        "residual": values[-1] if step.residual else "NULL",
        "out": _value(program, step.name),
        "work": f"(void *)({work})" if program.integer else work,
        "table": f"layer_{place}_table" if program.stored else f"expanded + {program.tables[place]}",
    }
    if program.integer is not None:
        pointers |= {"logits": "out", "unit": float_value(float(program.integer.logit_unit))}
    return pointers


def _header(program: _Program) -> str:
    graph = program.graph
    values = {
        "@SHAPE@": _spelled(graph.input_shape),
        "@INPUTS@": math.prod(graph.input_shape),
        "@OUTPUTS@": len(graph.class_names),
        "@TABLES@": 2 * program.table_numbers,
        "@SCRATCH@": program.plan.size,
    }
    text = kernel_file("model.h")
    for mark, value in values.items():
        text = text.replace(mark, str(value))
    return text


def _spelled(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def _vectors(vectors: TestVectors) -> str:
    text = f"#define CHECK_VECTORS {len(vectors.images)}\n"
    return text + _floats("check_images", vectors.images) + _floats("check_logits", vectors.logits)


def _floats(name: str, values: Floats) -> str:
    literal = Literal(f"{name}_bytes", float_chunks(np.reshape(values, (-1, 1))))
    definition = "\n".join(literal.definition())
    return f"{definition}\nstatic const struct literal {name} = {literal.initializer};\n"
