"""A call of a kernel from the generated C, with the tables that it reads."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from sca_search.export.c_literals import Literal, float_chunks
from sca_search.export.records import Floats


@dataclass(frozen=True)
class Call:
    """A record in C; the statement names {in0}, {in1}, ..., {out} and {work}, pointers into the scratch memory."""

    statement: str
    kernel: str | None = None
    literals: tuple[Literal, ...] = ()
    tables: tuple[str, ...] = ()  # further definitions, behind the literals
    work_floats: int = 0
    trits: Literal | None = None  # which of the literals holds trits


def pairs(name: str, left: Floats, right: Floats) -> Literal:
    """Two numbers a channel, such as scale and bias."""
    return Literal(name, float_chunks(np.stack([left, right], axis=1)))


def struct(kind: str, name: str, fields: Mapping[str, object]) -> str:
    """The definition of a constant struct."""
    inside = ", ".join(f".{field} = {value}" for field, value in fields.items())
    return f"static const struct {kind} {name} = {{{inside}}};"
