"""A call of a kernel from the generated C, with the constants and tables that it reads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sca_search.export.c.c_literals import Literal
from sca_search.export.graph.records import Floats


@dataclass(frozen=True)
class Table:
    """Trits as a kernel reads them: the numbers, and the function that makes them of a literal."""

    numbers: NDArray[np.uint16]
    expander: str  # the file of its name in kernels/
    trits: Literal
    layout: str  # how to read the trits back from the numbers; see c_count.py
    left_out: int = 0  # weights that are not zero but that nobody needs


@dataclass(frozen=True)
class Call:
    """A step in C; the statement names {in0}, {out}, {residual} and {work}, pointers into the scratch memory, and
    {table}, one to the table."""

    statement: str
    kernel: str | None = None
    literals: tuple[Literal, ...] = ()
    constants: tuple[str, ...] = ()  # further definitions, behind the literals
    work_floats: int = 0
    table: Table | None = None
    more_kernels: tuple[str, ...] = ()


def pairs(name: str, left: Floats, right: Floats) -> str:
    """The definition of two numbers a channel, such as scale and bias; exact, as hexadecimal floats are."""
    numbers = [f"{{{_spelled(a)}, {_spelled(b)}}}" for a, b in zip(left, right, strict=True)]
    return _array("float", f"{name}[{len(numbers)}][2]", numbers)


def integers(name: str, values: Sequence[int] | NDArray[np.integer]) -> str:
    """The definition of an array of two-byte numbers."""
    return _array("uint16_t", f"{name}[{len(values)}]", [str(value) for value in values])


def struct(kind: str, name: str, fields: Mapping[str, object]) -> str:
    """The definition of a constant struct."""
    inside = ", ".join(f".{field} = {value}" for field, value in fields.items())
    return f"static const struct {kind} {name} = {{{inside}}};"


def float_value(value: float) -> str:
    """A number in C; an infinite one as the largest there is."""
    if np.isinf(value):
        return "FLT_MAX" if value > 0 else "-FLT_MAX"
    return _spelled(np.float32(value))


def _spelled(value: np.float32) -> str:
    return f"{float(value).hex()}f"


def _array(kind: str, declared: str, values: Sequence[str], a_line: int = 16) -> str:
    lines = [", ".join(values[begin : begin + a_line]) for begin in range(0, len(values), a_line)]
    return f"static const {kind} {declared} = {{\n    " + ",\n    ".join(lines) + ",\n};"
