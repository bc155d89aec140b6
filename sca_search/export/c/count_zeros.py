"""The zeros of the ternary layers, counted in the written C source.

A comment before each layer's weights says where they are and how they are laid out; it is written and read here.
"""

import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.c.emit import Table, count_signs
from sca_search.export.c.tables import Numbers
from sca_search.export.c.tiles import CELLS, combinations
from sca_search.export.graph.records import WeightRecord

_COMMENT = re.compile(
    r"^/\* (\S+): (\d+) weights in (\w+)(?: as ([\w, ]+))?(?:; (\d+) more without effect)? \*/$", re.M
)
_CONVOLUTION = re.compile(r"(\d+) columns in (\d+) (?:vectors|planes of (\d+) cells), (\d+) blocks")
_MOST_COLUMNS = 8  # twice what kernels combine
_LISTS = re.compile(r"lists of (\d+) blocks")


def table_comment(record: WeightRecord, table: Table, place: str, *, stored: bool) -> str:
    """A comment with everything that is needed to count a layer's zeros; omitted weights are non-zero."""
    layout = f" as {table.layout}" if stored else ""
    left_out = f"; {table.left_out} more without effect" if table.left_out else ""
    return f"/* {record.name}: {record.weight.size} weights in {place}{layout}{left_out} */"


def count_zeros_c(folder: Path) -> dict[str, tuple[int, int]]:
    """Zeros and weights of each ternary layer."""
    path = folder / "model.c"
    try:
        source = path.read_text(encoding="utf-8")
        return {
            layer: (int(weights) - _signs(source, place, layout) - int(left_out or 0), int(weights))
            for layer, weights, place, layout, left_out in _COMMENT.findall(source)
        }
    except (OSError, ValueError, IndexError) as error:
        raise ExportError(f"{path} cannot be read as a model: {error}") from error


def _signs(source: str, place: str, layout: str) -> int:
    if not layout:
        return count_signs(source, place)
    numbers = _numbers(source, place)
    if layout == "codes":
        return sum(int(np.count_nonzero(numbers >> shift & 3)) for shift in range(0, 16, 2))
    if lists := _LISTS.fullmatch(layout):
        return len(_offsets(numbers, int(lists[1]), linear=True))
    if convolution := _CONVOLUTION.fullmatch(layout):
        columns, planes, cells, blocks = (int(number or CELLS) for number in convolution.groups())
        # Limits the sizes that a file can claim: the number of combinations is exponential in their columns. A single
        # column has no combinations.
        if not 1 <= columns <= _MOST_COLUMNS or (columns > 1 and not (0 < planes < 2**31 and 0 < cells < 2**31)):
            raise ValueError(f"{columns} columns in {planes} by {cells} are impossible")
        offsets = _offsets(numbers, blocks, linear=False)
        return len(offsets) if columns == 1 else int(_weights_in(offsets // cells % planes, columns).sum())
    raise ValueError(f"{place} has an unknown layout, {layout!r}")


def _numbers(source: str, name: str) -> Numbers:
    definition = re.search(rf"uint16_t {name}\[\d+\] = \{{(.*?)\}};", source, re.DOTALL)
    if definition is None:
        raise ValueError(f"no table {name}")
    return np.fromstring(definition[1].rstrip().rstrip(","), dtype=np.uint16, sep=",")


def _offsets(numbers: Numbers, blocks: int, *, linear: bool) -> NDArray[np.int64]:
    """The listed offsets. Each list has two counts in front; a convolution's block has the number of its outputs, and
    each of their lists an output."""
    head, place, parts = int(not linear), 0, [np.empty(0, dtype=np.int64)]
    for _ in range(blocks):
        lists = 1 if linear else int(numbers[place])
        place += head
        for _ in range(lists):
            begin = place + head + 2
            place = begin + int(numbers[begin - 2]) + int(numbers[begin - 1])
            parts.append(numbers[begin:place].astype(np.int64))
    if place != len(numbers):
        raise ValueError("a list is longer than its counts say")
    return np.concatenate(parts)


def _weights_in(planes: NDArray[np.int64], columns: int) -> NDArray[np.int64]:
    """Number of non-zero weights in the combination of each plane."""
    digits = planes % combinations(columns) + 1
    counts = np.zeros_like(digits)
    while digits.any():
        counts += digits % 3 != 0
        digits = (digits + 1) // 3  # in balanced ternary, 2 is -1 with a carry
    return counts
