"""The C export: one source file and one header of plain C99, an example, a self-test, and a Makefile.

No heap, nothing of libc but memcpy, and of libm only what an activation needs. Ternary layers add and subtract;
multiplications are left to the scale of each output channel.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c_call import Call, Table, integers, pairs
from sca_search.export.c_count import table_comment
from sca_search.export.c_kernels import amalgamate, kernel_file
from sca_search.export.c_layers import Surroundings, call_of
from sca_search.export.c_literals import Literal, float_chunks, quoted
from sca_search.export.c_liveness import living
from sca_search.export.c_options import COptions
from sca_search.export.c_plan import Plan, channel_steps, plan_memory
from sca_search.export.c_steps import Step, steps_of
from sca_search.export.records import INPUT, Floats, Graph, Shape, TestVectors, WeightRecord
from sca_search.files import write_text_atomic

_MODEL_HEADER = {"model.h": '#include "model.h"\n'}


@dataclass(frozen=True)
class _Program:
    """Steps with their calls, None where there is nothing to do; where their values and tables lie."""

    graph: Graph
    steps: tuple[Step, ...]
    calls: tuple[Call | None, ...]
    plan: Plan
    tables: Mapping[int, int]  # where the table of a step begins, in numbers
    stored: bool

    @property
    def table_numbers(self) -> int:
        """In memory, not in the source."""
        return 0 if self.stored else sum(len(call.table.numbers) for call in self.calls if call and call.table)


def write_c(folder: Path, graph: Graph, vectors: TestVectors, options: COptions | None = None) -> tuple[Path, ...]:
    """Writes the C form of a model into a folder and says which files there are."""
    program = _program(graph, options or COptions())
    texts = {
        "model.c": _source(program),
        "model.h": _header(program),
        "main.c": kernel_file("main.c"),
        "check.c": amalgamate(["check.c"], _MODEL_HEADER | {"vectors.h": _vectors(vectors)}),
        "Makefile": kernel_file("Makefile"),
    }
    for name, text in texts.items():
        write_text_atomic(folder / name, text)
    return tuple(folder / name for name in texts)


def _program(graph: Graph, options: COptions) -> _Program:
    layers = [layer.name for layer in graph.ternary_layers]
    for name in options.kernels:
        if name not in layers:
            raise ExportError(unknown_name("ternary layer", name, layers))
    shapes = {INPUT: graph.input_shape} | {record.name: record.shape for record in graph.records}
    steps = steps_of(graph)
    apart = channel_steps(steps, graph.input_shape, graph.output)
    around = Surroundings(shapes, apart, living(graph), options)
    calls = tuple(call_of(step, place, around) for place, step in enumerate(steps))
    works = {place: call.work_floats for place, call in enumerate(calls) if call is not None}
    values = {name: shapes[name][0] * step for name, step in apart.items()}
    sizes = [len(call.table.numbers) if call and call.table else 0 for call in calls]
    begins = dict(enumerate(int(end) - size for end, size in zip(np.cumsum(sizes), sizes, strict=True)))
    return _Program(graph, steps, calls, plan_memory(steps, values, graph.output, works), begins, options.stored)


def _source(program: _Program) -> str:
    calls = [call for call in program.calls if call is not None]
    kernels = ["normalise", *(call.kernel for call in calls if call.kernel)]
    if not program.stored:
        kernels += [call.table.expander for call in calls if call.table]
    code = amalgamate(["model.h", *(f"{kernel}.c" for kernel in dict.fromkeys(kernels))], _MODEL_HEADER)
    tables = "\n".join(line for place in range(len(program.steps)) for line in _constants(program, place))
    graph = program.graph
    return "\n".join((_title(graph), code, tables, _statistics(graph), _class_names(graph), _predict(program)))


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


def _statistics(graph: Graph) -> str:
    return pairs("input_statistics", graph.mean, graph.std) + "\n"


def _class_names(graph: Graph) -> str:
    names = ",\n".join(f"    {quoted(name)}" for name in graph.class_names)
    return f"const char *const model_class_names[MODEL_OUTPUTS] = {{\n{names},\n}};\n"


def _predict(program: _Program) -> str:
    graph, plan = program.graph, program.plan
    channels, *sizes = graph.input_shape
    expansions, statements = (
        [],
        [
            f"/* {INPUT}: {_spelled(graph.input_shape)} */",
            f"normalise(input_statistics, in, scratch + {plan.values[INPUT]}, {channels}, {math.prod(sizes)});",
        ],
    )
    for place, (step, call) in enumerate(zip(program.steps, program.calls, strict=True)):
        statements.append(f"/* {step.name}: {_spelled(step.shape)} */")
        if call is not None:
            statements += call.statement.format(**_pointers(program, place)).splitlines()
            if call.table is not None and not program.stored:
                name = f"layer_{place}"
                expansions.append(f"{call.table.expander}(&{name}, &{name}_trits, expanded + {program.tables[place]});")
    statements.append(f"memcpy(out, scratch + {plan.values[graph.output]}, MODEL_OUTPUTS * sizeof(float));")
    text = kernel_file("predict.c")
    for mark, lines in (("@EXPANSIONS@", expansions), ("@STATEMENTS@", statements)):
        text = text.replace(f"    {mark}\n", "".join(f"    {line}\n" for line in lines))
    return text


def _pointers(program: _Program, place: int) -> dict[str, str]:
    step, plan = program.steps[place], program.plan
    values = [f"scratch + {plan.values[name]}" for name in step.inputs]
    return {f"in{index}": value for index, value in enumerate(values)} | {
        "residual": values[-1] if step.residual else "NULL",
        "out": f"scratch + {plan.values[step.name]}",
        "work": f"scratch + {plan.works[place]}",
        "table": f"layer_{place}_table" if program.stored else f"expanded + {program.tables[place]}",
    }


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
