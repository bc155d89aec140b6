"""How the maps of each value lie in memory.

A map's rows lie side by side, and maps of a power of two a cache line apart: they would all lie in the same few sets
of a first-level cache and push each other out. Where a layer reads its input in place, the maps have a border of zeros:
rows between them, and cells between the rows, so that what lies beside a row is the border of two. Only values
between layers that can do with it lie otherwise than side by side.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sca_search.export.c.tiles import CELLS, bordered_row
from sca_search.export.graph.fuse import Step, is_convolution
from sca_search.export.graph.records import INPUT, AdaptivePool, Convolution, Pool, Shape

_LINE = 16  # floats of a cache line
_CRAMPED = 256  # a quarter of the floats that a way of a first-level cache has


@dataclass(frozen=True)
class Layout:
    """Floats from row to row and from channel to channel, in front of the first cell, and of it all; rows of zeros
    above and below each map."""

    row_step: int
    channel_step: int
    begin: int
    size: int
    border: int | None = None  # none: maps have no zeros around them


def flexible_values(steps: Sequence[Step], output: str) -> set[str]:
    """Those whose maps need not lie side by side."""
    flexible = {INPUT} | {step.name for step in steps if _skips(step)}
    return flexible - {name for step in steps if not _skips(step) for name in step.inputs} - {output}


def borders(steps: Sequence[Step]) -> dict[str, int]:
    """The rows of zeros that suit all layers that could read a value in place."""
    rows: dict[str, int] = {}
    for step in steps:
        if isinstance(step.record, Convolution) and step.record.ternary:
            name = step.inputs[0]
            rows[name] = max(rows.get(name, 0), *step.record.padding[:2])
    return rows


def layouts(shapes: Mapping[str, Shape], flexible: Collection[str], bordered: Mapping[str, int]) -> dict[str, Layout]:
    """Of all values; `bordered` are those that someone reads in place, with the rows of their borders."""
    return {
        name: _bordered(shape, bordered[name]) if name in bordered else _side_by_side(shape, name in flexible)
        for name, shape in shapes.items()
    }


def _skips(step: Step) -> bool:
    """Whether its kernel can leave floats out between rows and channels."""
    return isinstance(step.record, Pool | AdaptivePool) or is_convolution(step.record)


def _side_by_side(shape: Shape, flexible: bool) -> Layout:
    size = math.prod(shape[1:])
    step = size + _LINE if flexible and size % _CRAMPED == 0 else size
    return Layout(math.prod(shape[1:][-1:]), step, 0, shape[0] * step)


def _bordered(shape: Shape, border: int) -> Layout:
    channels, height, width = shape
    row = bordered_row(width)
    step = (height + border) * row
    # A map as wide as a tile has a cache line a row: with what lies beside it, it is read from one line.
    begin = border * row + (CELLS // 2 if width == CELLS else CELLS)
    return Layout(row, step, begin, begin + channels * step + CELLS, border)
