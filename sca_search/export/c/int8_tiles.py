"""How a convolution with integer activations is cut into tiles and blocks; see kernels/integer_tiles.h."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph.records import Convolution
from sca_search.export.integer.model import Weight
from sca_search.export.integer.requantize import HIGHEST

CELLS = 8
MOST_ROWS = 16
# Bytes of the planes of a block. Somewhat more than a first-level cache: that fewer sums are kept outweighs it.
PLANES_BYTES = 48 * 1024
_MOST_OFFSETS = 2**16
# Trits of one output and block that are not zero: sums have 16 bits.
MOST_ADDED = (2**15 - 1) // HIGHEST

Numbers = NDArray[np.uint16]


def combinations(columns: int) -> int:
    """Sums of so many values with weights in {-1, 0, 1} that are not zero, but for their signs."""
    return (int(3**columns) - 1) // 2


@dataclass(frozen=True, eq=False)
class IntegerTiles:
    """A convolution with this weight, (outputs, channels of a group, rows, columns), which may be a part of the
    record's."""

    record: Convolution
    weight: Weight
    unit: int  # columns that are combined with each other; 1: none
    most_block: int = 2**16  # channels of a block, for whatever other reason
    sums_16: bool = True  # whether sums of a block have 16 bits

    @property
    def outputs(self) -> int:
        return len(self.weight)

    @property
    def group_inputs(self) -> int:
        return int(self.weight.shape[1])

    @property
    def group_outputs(self) -> int:
        return self.outputs // self.record.groups

    @cached_property
    def rows(self) -> int:
        """Of a tile: as even as can be."""
        height = int(self.record.shape[1])
        return math.ceil(height / math.ceil(height / MOST_ROWS))

    @property
    def _span(self) -> int:
        return (int(self.weight.shape[2]) - 1) * self.record.dilation[0]

    @property
    def phases(self) -> int:
        return min(self.record.stride[0], self._span + 1)

    @property
    def phase_rows(self) -> int:
        """An even number: rows are laid out two by two."""
        return 2 * math.ceil((self.rows + self._span // self.record.stride[0]) / 2)

    @property
    def plane_cells(self) -> int:
        return self.phases * self.phase_rows * CELLS

    @property
    def kernel_rows(self) -> list[int]:
        """Where what a row of the kernel needs begins in a plane, in cells."""
        steps = [row * self.record.dilation[0] for row in range(self.weight.shape[2])]
        stride = self.record.stride[0]
        return [(step % stride * self.phase_rows + step // stride) * CELLS for step in steps]

    @property
    def kernel_x(self) -> int:
        return int(self.weight.shape[3])

    def units(self, channels: int) -> list[tuple[int, int]]:
        """First column and number of columns of each unit of a block of so many channels; those of one column are
        combined with their neighbours' as if these were columns."""
        run = channels if self.kernel_x == 1 else self.kernel_x
        return [
            (begin + first, min(self.unit, run - first))
            for begin in range(0, channels * self.kernel_x, run)
            for first in range(0, run, self.unit)
        ]

    def planes(self, channels: int) -> int:
        """Of a block of so many channels."""
        return sum(combinations(columns) for _, columns in self.units(channels))

    @cached_property
    def block(self) -> int:
        """Channels at a time, evenly: few enough for the cache, and for sums of 16 bits."""
        most = max(1, min(self.group_inputs, self.most_block, self._cached_channels))
        for blocks in range(math.ceil(self.group_inputs / most), self.group_inputs + 1):
            block = math.ceil(self.group_inputs / blocks)
            if self.kernel_x == 1 and block < self.group_inputs:
                block = min(self.group_inputs, max(1, block // self.unit) * self.unit)
            if not self.sums_16 or self._most_added(block) <= MOST_ADDED:
                return block
        return 1

    @property
    def _cached_channels(self) -> int:
        channels = self.unit if self.kernel_x == 1 else 1
        return PLANES_BYTES // (2 * self.plane_cells * self.planes(channels)) * channels

    def _most_added(self, block: int) -> int:
        added = np.count_nonzero(self.weight, axis=(2, 3))
        return int(np.add.reduceat(added, range(0, self.group_inputs, block), axis=1).max())

    @property
    def planes_bytes(self) -> int:
        # A vector of two rows may begin at the last row of the last plane.
        return 2 * (self.planes(self.block) * self.plane_cells + CELLS)

    @property
    def sums_bytes(self) -> int:
        """Of all outputs, where they are kept between blocks."""
        kept = self.outputs if self.block < self.group_inputs else 0
        return 4 * kept * self.rows * CELLS

    @property
    def fits(self) -> bool:
        """Whether offsets, counts and places have room in their two bytes, and sums in theirs."""
        listed = self.block * self.weight[0, 0].size
        sums = not self.sums_16 or self._most_added(self.block) <= MOST_ADDED
        return sums and self.planes_bytes // 2 <= _MOST_OFFSETS and max(listed, self.outputs) < 2**16

    @property
    def tiles(self) -> int:
        return math.ceil(self.record.shape[1] / self.rows) * math.ceil(self.record.shape[2] / CELLS)

    def blocks(self) -> Iterator[tuple[slice, slice, bool]]:
        """Outputs, channels of their group, and whether a sum begins or ends there, of each block."""
        for group in range(self.record.groups):
            outputs = slice(group * self.group_outputs, (group + 1) * self.group_outputs)
            for begin in range(0, self.group_inputs, self.block):
                end = min(begin + self.block, self.group_inputs)
                yield outputs, slice(begin, end), begin == 0 or end == self.group_inputs


def combined_trits(tiles: IntegerTiles, weight: Weight) -> NDArray[np.int64]:
    """The number that each unit of an output's columns stands for, (outputs, units, kernel rows)."""
    columns = weight.transpose(0, 1, 3, 2).reshape(len(weight), -1, weight.shape[2]).astype(np.int64)
    values = [
        sum(3**place * columns[:, begin + place] for place in range(count))
        for begin, count in tiles.units(weight.shape[1])
    ]
    return np.stack([np.asarray(value) for value in values], axis=1)


def entries(tiles: IntegerTiles) -> int:
    """How many additions a cell of all outputs takes."""
    return sum(
        int(np.count_nonzero(combined_trits(tiles, tiles.weight[outputs, channels])))
        for outputs, channels, _ in tiles.blocks()
    )


def integer_lists_of(tiles: IntegerTiles) -> Numbers:
    """The lists that kernels/integer_ternary_convolution.c reads."""
    return np.concatenate([_block_lists(tiles, *block) for block in tiles.blocks()]).astype(np.uint16)


def _block_lists(tiles: IntegerTiles, outputs: slice, channels: slice, edge: bool) -> NDArray[np.int64]:
    values = combined_trits(tiles, tiles.weight[outputs, channels])
    planes = [combinations(count) for _, count in tiles.units(channels.stop - channels.start)]
    firsts = (np.cumsum(planes) - planes)[:, None] * tiles.plane_cells + np.array(tiles.kernel_rows)
    offsets = firsts + (np.abs(values) - 1) * tiles.plane_cells
    lists = []
    for place, (signs, at) in enumerate(zip(values, offsets, strict=True), outputs.start):
        plus, minus = at[signs > 0], at[signs < 0]
        if edge or len(plus) + len(minus):
            lists.append(np.concatenate(([place, len(plus), len(minus)], plus, minus)))
    return np.concatenate([np.array([len(lists)]), *lists])
