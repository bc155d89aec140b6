"""Where each value of a graph lies in the scratch memory of the C program, planned before it is compiled.

A value is live from the step that computes it to the last that uses it; two values share memory if they are never live
at the same time. A reshaped value is the value itself. A cellwise record overwrites an input without later uses.

The rows of a map lie side by side. Maps whose size is a power of two are placed a cache line apart: otherwise they all
fall into the same few sets of the first-level cache and evict each other. Where a layer reads its input in place, the
maps have a border of zeros: rows between maps, and cells between rows, so that the border of a row serves both its
neighbors. Values are contiguous unless the kernels of the layers before and after support gaps.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from sca_search.export.c.tiles import CELLS, bordered_row
from sca_search.export.graph import records as r
from sca_search.export.graph.fuse import Step, is_convolution

_LINE = 16  # floats of a cache line
_CRAMPED = 256  # a quarter of the floats that a way of a first-level cache has


@dataclass(frozen=True)
class Layout:
    """Floats from row to row and from channel to channel, before the first cell, and in total; rows of zeros above and
    below each map."""

    row_step: int
    channel_step: int
    begin: int
    size: int
    border: int | None = None  # none: maps have no zeros around them


def flexible_values(steps: Sequence[Step], output: str) -> set[str]:
    """Values whose maps need not be contiguous."""
    flexible = {r.INPUT} | {step.name for step in steps if _skips(step)}
    return flexible - {name for step in steps if not _skips(step) for name in step.inputs} - {output}


def borders(steps: Sequence[Step]) -> dict[str, int]:
    """The rows of zeros that all layers need which could read a value in place."""
    rows: dict[str, int] = {}
    for step in steps:
        if isinstance(step.record, r.Convolution) and step.record.ternary:
            name = step.inputs[0]
            rows[name] = max(rows.get(name, 0), *step.record.padding[:2])
    return rows


def layouts(shapes: Mapping[str, r.Shape], flexible: Collection[str], bordered: Mapping[str, int]) -> dict[str, Layout]:
    """Of all values; `bordered` are those that a layer reads in place, with the rows of their borders."""
    return {
        name: _bordered(shape, bordered[name]) if name in bordered else _side_by_side(shape, name in flexible)
        for name, shape in shapes.items()
    }


def _skips(step: Step) -> bool:
    """Whether its kernel supports gaps between rows and channels."""
    return isinstance(step.record, r.Pool | r.AdaptivePool) or is_convolution(step.record)


def _side_by_side(shape: r.Shape, flexible: bool) -> Layout:
    size = math.prod(shape[1:])
    step = size + _LINE if flexible and size % _CRAMPED == 0 else size
    return Layout(math.prod(shape[1:][-1:]), step, 0, shape[0] * step)


def _bordered(shape: r.Shape, border: int) -> Layout:
    channels, height, width = shape
    row = bordered_row(width)
    step = (height + border) * row
    # A map as wide as a tile has a cache line per row: with its border, it is read from one line.
    begin = border * row + (CELLS // 2 if width == CELLS else CELLS)
    return Layout(row, step, begin, begin + channels * step + CELLS, border)


@dataclass
class _Buffer:
    """Floats that are live from step `first` to step `last`, both included."""

    size: int
    first: int
    last: int
    offset: int = 0


@dataclass(frozen=True)
class Plan:
    """Offsets in floats: of each value by name, of each step's work space by its index; and the total size."""

    values: Mapping[str, int]
    works: Mapping[int, int]
    size: int


def plan_memory(steps: Sequence[Step], sizes: Mapping[str, int], output: str, work_sizes: Mapping[int, int]) -> Plan:
    """Places all values, by their sizes in floats, and the work space of the steps that need some."""
    # A value without uses is live while it is computed.
    ends = {r.INPUT: -1} | {step.name: place for place, step in enumerate(steps)}
    ends |= {name: place for place, step in enumerate(steps) for name in step.inputs} | {output: len(steps)}
    # The image is normalized into the scratch memory before step 0.
    buffers = {r.INPUT: _Buffer(sizes[r.INPUT], -1, ends[r.INPUT])}
    for place, step in enumerate(steps):
        shared = _shared_input(step, place, buffers)
        if shared is None:
            buffers[step.name] = _Buffer(sizes[step.name], place, ends[step.name])
        else:
            buffers[step.name] = buffers[shared]
            buffers[shared].last = max(buffers[shared].last, ends[step.name])
    works = {place: _Buffer(size, place, place) for place, size in work_sizes.items()}
    size = _place(list({id(buffer): buffer for buffer in [*buffers.values(), *works.values()]}.values()))
    values = {name: buffer.offset for name, buffer in buffers.items()}
    return Plan(values, {place: buffer.offset for place, buffer in works.items()}, size)


def _shared_input(step: Step, place: int, buffers: Mapping[str, _Buffer]) -> str | None:
    """The input whose memory the step's value can reuse, if there is one."""
    if isinstance(step.record, r.Reshape):
        return step.inputs[0]
    if not step.record.cellwise:
        return None
    # A gate is smaller than the product; it is never overwritten.
    size = math.prod(step.shape)
    free = (name for name in step.inputs if buffers[name].last <= place and buffers[name].size == size)
    return next(free, None)


def _place(buffers: list[_Buffer]) -> int:
    """Sets the offset of each buffer, in the order that needs least memory, and returns the size.

    Finding the best order is expensive; which of these is best depends on the network.
    """
    orders: tuple[Callable[[_Buffer], int], ...] = (
        lambda buffer: -buffer.size,
        lambda buffer: buffer.first - buffer.last,
        lambda buffer: buffer.first,
    )
    return _place_in(min((sorted(buffers, key=order) for order in orders), key=_place_in))


def _place_in(buffers: list[_Buffer]) -> int:
    """Each at the lowest offset that is free while it is live; returns the end of the highest.

    Offsets are multiples of a cache line: a vector across two lines costs two loads.
    """
    placed: list[_Buffer] = []
    for buffer in buffers:
        buffer.offset = 0
        meets = [other for other in placed if buffer.first <= other.last and other.first <= buffer.last]
        for other in sorted(meets, key=lambda other: other.offset):
            if other.offset >= buffer.offset + buffer.size:
                break
            buffer.offset = max(buffer.offset, -(-(other.offset + other.size) // _LINE) * _LINE)
        placed.append(buffer)
    return max(buffer.offset + buffer.size for buffer in placed)
