"""Pieces of generated C: a call of a kernel with the constants and tables that it reads, and numbers as literals.

A string literal has at most 4095 characters in C99, so a table of numbers is an array of pieces. What a kernel reads at
once, a chunk, lies in one piece; see kernels/literals.h and kernels/trits.h, which read what is written here.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph.records import Floats, Trits

MOST_CHARACTERS = 4095
TRITS_A_CHARACTER = 4
# '#', the first of 81 printable characters that need an escape in only two cases, \ and ?.
FIRST_CHARACTER = 35

Bytes = NDArray[np.uint8]
Fields = dict[str, object]

# Octal escapes of three digits never run into what follows; ? is escaped because C99 knows trigraphs.
_SPELLING = [chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}" for byte in range(256)]


@dataclass(frozen=True)
class Literal:
    """An array of chunks, (chunks, bytes of a chunk), under a C name."""

    name: str
    chunks: Bytes

    @property
    def chunk_bytes(self) -> int:
        return int(self.chunks.shape[1])

    @property
    def chunks_in_piece(self) -> int:
        return max(1, min(len(self.chunks), MOST_CHARACTERS // self.chunk_bytes))

    @property
    def initializer(self) -> str:
        """The C value of a `struct literal`."""
        return f"{{(const unsigned char *){self.name}, {self.chunk_bytes}, {self.chunks_in_piece}}}"

    def definition(self) -> Iterator[str]:
        """Lines of C; each piece is one literal, closed by its zero."""
        step = self.chunks_in_piece
        pieces = [self.chunks[begin : begin + step].tobytes() for begin in range(0, len(self.chunks), step)]
        yield f"static const unsigned char {self.name}[{len(pieces)}][{step * self.chunk_bytes + 1}] = {{"
        # On one line each: clang warns of a missing comma between two adjacent strings in a list.
        yield from (f"    {quoted(piece)}," for piece in pieces)
        yield "};"


def trit_chunks(trits: Trits) -> Bytes:
    """(chunks, trits of a chunk) as characters, four trits each; the last of a chunk is filled up with zeros."""
    count, size = trits.shape
    digits = np.zeros((count, math.ceil(size / TRITS_A_CHARACTER) * TRITS_A_CHARACTER), dtype=np.uint8)
    digits[:, :size] = np.where(trits < 0, np.int8(2), trits)
    by_character = digits.reshape(count, -1, TRITS_A_CHARACTER)
    powers = np.array([1, 3, 9, 27], dtype=np.uint8)
    characters: Bytes = (by_character * powers).sum(axis=2, dtype=np.uint8) + np.uint8(FIRST_CHARACTER)
    return characters


def float_chunks(values: Floats) -> Bytes:
    """(chunks, floats of a chunk) as bytes, lowest first."""
    return np.ascontiguousarray(values, dtype="<f4").view(np.uint8).reshape(len(values), -1)


def quoted(text: str | bytes) -> str:
    """Bytes, or a text in UTF-8, as a C literal."""
    data = text.encode("utf-8", errors="backslashreplace") if isinstance(text, str) else text
    return '"' + "".join([_SPELLING[byte] for byte in data]) + '"'


def count_signs(source: str, name: str) -> int:
    """Number of non-zero trits in the literal of that name, in the source of a model."""
    definition = re.search(rf"unsigned char {name}\[\d+\]\[\d+\] = \{{\n(.*?)\n\}};", source, re.DOTALL)
    if definition is None:
        raise ValueError(f"no literal {name}")
    text = "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', definition[1]))
    # In one pass: a backslash that an escape gives may stand in front of digits of its own.
    plain = re.sub(r"\\(134|077)", lambda escape: "\\" if escape[1] == "134" else "?", text)
    characters = np.frombuffer(plain.encode("ascii"), dtype=np.uint8)
    values = characters.astype(np.int64) - FIRST_CHARACTER
    if values.size and not 0 <= values.min() <= values.max() < 81:
        raise ValueError(f"{name} holds a character that stands for no trits")
    signs = np.array([sum(value // power % 3 != 0 for power in (1, 3, 9, 27)) for value in range(81)])
    return int(signs[values].sum())


@dataclass(frozen=True)
class Table:
    """Trits as a kernel reads them: the numbers, and the function that computes them from a literal."""

    numbers: NDArray[np.uint16]
    expander: str  # the file of its name in kernels/
    trits: Literal
    layout: str  # how to read the trits back from the numbers; see count_zeros.py
    left_out: int = 0  # non-zero weights without effect


@dataclass(frozen=True)
class Call:
    """A step in C; the statement names {in0}, {out}, {residual} and {work}, pointers into the scratch memory, and
    {table}, one to the table."""

    statement: str
    kernel: str | None = None
    literals: tuple[Literal, ...] = ()
    constants: tuple[str, ...] = ()  # further definitions, after the literals
    work_floats: int = 0
    table: Table | None = None
    more_kernels: tuple[str, ...] = ()


def pairs(name: str, left: Floats, right: Floats) -> str:
    """The definition of two numbers per channel, such as scale and bias; exact, as hexadecimal floats."""
    numbers = [f"{{{float(a).hex()}f, {float(b).hex()}f}}" for a, b in zip(left, right, strict=True)]
    return array("float", f"{name}[{len(numbers)}][2]", numbers)


def integers(name: str, values: Sequence[int] | NDArray[np.integer]) -> str:
    """The definition of an array of two-byte numbers."""
    return array("uint16_t", f"{name}[{len(values)}]", [str(value) for value in values])


def named(names: str, *values: object) -> Fields:
    """Fields of a struct: "a b", 1, 2 -> {"a": 1, "b": 2}."""
    return dict(zip(names.split(), values, strict=True))


def struct(kind: str, name: str, fields: Mapping[str, object]) -> str:
    """The definition of a constant struct."""
    inside = ", ".join(f".{field} = {value}" for field, value in fields.items())
    return f"static const struct {kind} {name} = {{{inside}}};"


def float_value(value: float) -> str:
    """A number in C; infinity as the largest float."""
    if np.isinf(value):
        return "FLT_MAX" if value > 0 else "-FLT_MAX"
    return f"{float(np.float32(value)).hex()}f"


def array(kind: str, declared: str, values: Sequence[str], per_line: int = 16) -> str:
    """The definition of an array, with this many values per line."""
    lines = [", ".join(values[begin : begin + per_line]) for begin in range(0, len(values), per_line)]
    return f"static const {kind} {declared} = {{\n    " + ",\n    ".join(lines) + ",\n};"
