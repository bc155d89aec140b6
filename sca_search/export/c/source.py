"""The C export: one source file and one header of plain C99, an example, a self-test, and a Makefile.

No heap, no libc function except memcpy, and only those libm functions that activations need. Ternary layers add and
subtract; the only multiplications are those by the scale per output channel. With integer activations the values in the
scratch memory are bytes; its size is still counted in floats.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c.amalgamate import amalgamate, kernel_file
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.count_zeros import table_comment
from sca_search.export.c.emit import Call, Literal, float_chunks, float_value, integers, named, pairs, quoted, struct
from sca_search.export.c.layers import call_of, context_of, with_border
from sca_search.export.c.memory import Plan, plan_memory
from sca_search.export.c.weights import Context
from sca_search.export.graph.fuse import Step, steps_of
from sca_search.export.graph.records import INPUT, Graph, Shape, TestVectors, WeightRecord
from sca_search.export.integer.model import IntegerModel
from sca_search.system.files import write_text_atomic

_MODEL_HEADER = {"model.h": '#include "model.h"\n'}


@dataclass(frozen=True)
class _Program:
    """Steps with their calls, None where there is nothing to do; and the places of their values and tables."""

    graph: Graph
    context: Context
    steps: tuple[tuple[Step, Call | None], ...]
    plan: Plan
    tables: tuple[int, ...]  # index of the first number of each step's table, and the numbers of all
    first: Call  # computes the input from the image
    last: Call | None  # computes the logits from the output, unless its step did

    @property
    def stored(self) -> bool:
        return self.context.options.stored

    @property
    def integer(self) -> IntegerModel | None:
        return self.context.options.integer


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
    integer = options.integer
    steps: tuple[Step, ...] = integer.steps if integer else steps_of(graph)
    context = context_of(graph, steps, options)
    calls = [call_of(step, place, context) for place, step in enumerate(steps)]
    works = {place: call.work_floats for place, call in enumerate(calls) if call is not None}
    sizes = {name: math.ceil(layout.size / (4 if integer else 1)) for name, layout in context.layouts.items()}
    plan = plan_memory(steps, sizes, graph.output, works)
    tables = accumulate((len(call.table.numbers) if call and call.table else 0 for call in calls), initial=0)
    first, last = _integer_ends(integer) if integer else _float_ends(graph, context)
    return _Program(graph, context, tuple(zip(steps, calls, strict=True)), plan, tuple(tables), first, last)


def _float_ends(graph: Graph, context: Context) -> tuple[Call, Call]:
    """The calls before and behind the steps."""
    layout, (channels, *sides) = context.layouts[INPUT], graph.input_shape
    fields = named("channels height width", channels, math.prod(sides[:-1]), math.prod(sides[-1:]))
    bordered = layout.border is not None
    fields |= named("out_row out_step bordered", layout.row_step, layout.channel_step, int(bordered))
    constants = (pairs("input_statistics", graph.mean, graph.std), struct("image", "input_image", fields))
    first = Call("normalise(&input_image, input_statistics, in, {out});", "normalise", constants=constants)
    last = Call("memcpy(out, {in0}, MODEL_OUTPUTS * sizeof(float));")
    return with_border(first, "input_border", graph.input_shape, layout), last


def _integer_ends(model: IntegerModel) -> tuple[Call, Call | None]:
    """The same; a linear layer may have written the logits."""
    channels, *sides = model.graph.input_shape
    statement = f"quantize_image(input_statistics, in, {{out}}, {channels}, {math.prod(sides)});"
    statistics = pairs("input_statistics", model.graph.mean, model.input_factors)
    first = Call(statement, "quantize_image", constants=(statistics,))
    if any(step.is_logits for step in model.steps):
        return first, None
    unit = float_value(float(model.logit_unit))
    return first, Call(f"integer_logits({{in0}}, {unit}, out, MODEL_OUTPUTS);", "integer_logits")


def _source(program: _Program) -> str:
    calls = [call for call in (program.first, *(call for _, call in program.steps), program.last) if call is not None]
    kernels = [kernel for call in calls for kernel in (call.kernel, *call.more_kernels) if kernel]
    if not program.stored:
        kernels += [call.table.expander for call in calls if call.table]
    code = amalgamate(["model.h", *(f"{kernel}.c" for kernel in dict.fromkeys(kernels))], _MODEL_HEADER)
    tables = "\n".join(line for place in range(len(program.steps)) for line in _constants(program, place))
    graph = program.graph
    weights = sum(layer.weight.size for layer in graph.ternary_layers)
    title = (
        f"/* A neural network written by sca-search: {weights} ternary weights, {100 * graph.sparsity:.2f} % zeros.\n"
        " * See model.h for how to call it. */"
    )
    return "\n".join((title, code, tables, *program.first.constants, "", _class_names(graph), _predict(program)))


def _constants(program: _Program, place: int) -> Iterator[str]:
    """What a step reads: the trits of a layer as characters, or as the numbers that its kernel reads."""
    (step, call), name = program.steps[place], f"layer_{place}"
    if call is None:
        return
    for literal in call.literals:
        yield from literal.definition()
    if call.table is not None:
        assert isinstance(step.record, WeightRecord)
        trits = call.table.trits
        where = f"{name}_table" if program.stored else trits.name
        yield table_comment(step.record, call.table, where, stored=program.stored)
        if program.stored:
            yield integers(where, call.table.numbers)
        else:
            yield from trits.definition()
            yield f"static const struct literal {name}_trits = {trits.initializer};"
    yield from call.constants


def _class_names(graph: Graph) -> str:
    names = ",\n".join(f"    {quoted(name)}" for name in graph.class_names)
    return f"const char *const model_class_names[MODEL_OUTPUTS] = {{\n{names},\n}};\n"


def _predict(program: _Program) -> str:
    graph = program.graph
    first = program.first.statement.format(out=_value(program, INPUT))
    expansions, statements = [], [f"/* {INPUT}: {_spelled(graph.input_shape)} */", first, "MODEL_STEP_DONE(0);"]
    for place, (step, call) in enumerate(program.steps):
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
    pointer = f"scratch + {program.plan.values[name] + program.context.layouts[name].begin}"
    return f"(int8_t *)({pointer})" if program.integer else pointer


def _pointers(program: _Program, place: int) -> dict[str, str]:
    step, _ = program.steps[place]
    values = [_value(program, name) for name in step.inputs]
    work = f"scratch + {program.plan.works[place]}"
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
        "@TABLES@": 0 if program.stored else 2 * program.tables[-1],
        "@SCRATCH@": program.plan.size,
    }
    text = kernel_file("model.h")
    for mark, value in values.items():
        text = text.replace(mark, str(value))
    return text


def _spelled(shape: Shape) -> str:
    return " x ".join(map(str, shape))


def _vectors(vectors: TestVectors) -> str:
    lines = [f"#define CHECK_VECTORS {len(vectors.images)}"]
    for name, values in (("check_images", vectors.images), ("check_logits", vectors.logits)):
        literal = Literal(f"{name}_bytes", float_chunks(np.reshape(values, (-1, 1))))
        lines += [*literal.definition(), f"static const struct literal {name} = {literal.initializer};"]
    return "\n".join(lines) + "\n"
