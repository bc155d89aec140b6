"""The C export: one source file and one header of plain C99, an example, a self-test, and a Makefile.

No heap, nothing of libc but memcpy, and of libm only what an activation needs. Ternary layers add and subtract;
multiplications are left to the scale of each output channel.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.c_call import Call, pairs
from sca_search.export.c_kernels import amalgamate, kernel_file
from sca_search.export.c_layers import call_of
from sca_search.export.c_literals import Literal, count_signs, float_chunks, quoted
from sca_search.export.c_plan import Plan, plan_memory
from sca_search.export.records import INPUT, Floats, Graph, Record, Shape, TestVectors, WeightRecord
from sca_search.files import write_text_atomic

_MODEL_HEADER = {"model.h": '#include "model.h"\n'}
# Written in front of a ternary layer's literal, and read back when its zeros are counted.
_TRITS_COMMENT = re.compile(r"^/\* (\S+): (\d+) trits in (\w+) \*/$", re.MULTILINE)


@dataclass(frozen=True)
class _Step:
    """A record with its call, None where there is nothing to do, and its place among the records."""

    place: int
    record: Record
    call: Call | None


def write_c(folder: Path, graph: Graph, vectors: TestVectors) -> tuple[Path, ...]:
    """Writes the C form of a model into a folder and says which files there are."""
    steps = _steps(graph)
    plan = plan_memory(graph, {step.place: step.call.work_floats for step in steps if step.call is not None})
    texts = {
        "model.c": _source(graph, steps, plan),
        "model.h": _header(graph, plan),
        "main.c": kernel_file("main.c"),
        "check.c": amalgamate(["check.c"], _MODEL_HEADER | {"vectors.h": _vectors(vectors)}),
        "Makefile": kernel_file("Makefile"),
    }
    for name, text in texts.items():
        write_text_atomic(folder / name, text)
    return tuple(folder / name for name in texts)


def count_zeros_c(folder: Path) -> dict[str, tuple[int, int]]:
    """Zeros and weights of each ternary layer, counted in the written source."""
    path = folder / "model.c"
    try:
        source = path.read_text(encoding="utf-8")
        return {
            layer: (int(weights) - count_signs(source, literal), int(weights))
            for layer, weights, literal in _TRITS_COMMENT.findall(source)
        }
    except (OSError, ValueError) as error:
        raise ExportError(f"{path} cannot be read as a model: {error}") from error


def _steps(graph: Graph) -> list[_Step]:
    shapes = {INPUT: graph.input_shape} | {record.name: record.shape for record in graph.records}
    return [
        _Step(place, record, call_of(record, place, tuple(shapes[name] for name in record.inputs)))
        for place, record in enumerate(graph.records)
    ]


def _source(graph: Graph, steps: list[_Step], plan: Plan) -> str:
    kernels = ["normalise", *(step.call.kernel for step in steps if step.call is not None and step.call.kernel)]
    code = amalgamate(["model.h", *(f"{kernel}.c" for kernel in dict.fromkeys(kernels))], _MODEL_HEADER)
    tables = "\n".join(line for step in steps for line in _tables(step))
    parts = (_title(graph), code, tables, _input_table(graph), _class_names(graph), _predict(graph, steps, plan))
    return "\n".join(parts)


def _title(graph: Graph) -> str:
    weights = sum(layer.weight.size for layer in graph.ternary_layers)
    return (
        f"/* A neural network written by sca-search: {weights} ternary weights, {100 * graph.sparsity:.2f} % zeros.\n"
        " * See model.h for how to call it. */"
    )


def _tables(step: _Step) -> Iterator[str]:
    if step.call is None:
        return
    for literal in step.call.literals:
        if literal is step.call.trits and isinstance(step.record, WeightRecord):
            yield f"/* {step.record.name}: {step.record.weight.size} trits in {literal.name} */"
        yield from literal.definition()
    yield from step.call.tables


def _input_table(graph: Graph) -> str:
    statistics = pairs("input_statistics", graph.mean, graph.std)
    definition = "\n".join(statistics.definition())
    return f"{definition}\nstatic const struct literal input = {statistics.initializer};\n"


def _class_names(graph: Graph) -> str:
    names = ",\n".join(f"    {quoted(name)}" for name in graph.class_names)
    return f"const char *const model_class_names[MODEL_OUTPUTS] = {{\n{names},\n}};\n"


def _predict(graph: Graph, steps: list[_Step], plan: Plan) -> str:
    channels, *sizes = graph.input_shape
    lines = [
        f"/* {INPUT}: {_spelled(graph.input_shape)} */",
        f"normalise(&input, in, scratch + {plan.values[INPUT]}, {channels}, {math.prod(sizes)});",
    ]
    for step in steps:
        lines += [f"/* {step.record.name}: {_spelled(step.record.shape)} */", *_statements(step, plan)]
    lines.append(f"memcpy(out, scratch + {plan.values[graph.output]}, MODEL_OUTPUTS * sizeof(float));")
    return kernel_file("predict.c").replace("    @STATEMENTS@\n", "".join(f"    {line}\n" for line in lines))


def _statements(step: _Step, plan: Plan) -> list[str]:
    if step.call is None:
        return []
    pointers = {f"in{index}": f"scratch + {plan.values[name]}" for index, name in enumerate(step.record.inputs)}
    pointers["out"] = f"scratch + {plan.values[step.record.name]}"
    pointers["work"] = f"scratch + {plan.works[step.place]}"
    return step.call.statement.format(**pointers).splitlines()


def _header(graph: Graph, plan: Plan) -> str:
    values = {
        "@SHAPE@": _spelled(graph.input_shape),
        "@INPUTS@": math.prod(graph.input_shape),
        "@OUTPUTS@": len(graph.class_names),
        "@SCRATCH@": plan.size,
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
