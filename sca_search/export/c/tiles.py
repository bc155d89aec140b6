"""How a convolution is cut into tiles and blocks, and its trits listed as offsets into planes; see kernels/tiles.h."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph import records as r

CELLS = 8
# Rows of a tile, by the number of combined columns. More rows share more of what lies above and below, and need memory.
MOST_ROWS = {1: 16, 3: 8}
# In place there is nothing to share: this many vectors of cells, as wide as possible.
_VECTORS_IN_PLACE = 8
_STRIPS = (4, 2, 1)
# Bytes of the planes of a block. Somewhat more than a first-level cache of 32 KB: storing fewer sums between blocks
# outweighs the rows that come from the second level.
PLANES_BYTES = 48 * 1024
# Cells of a block's planes: offsets have two bytes.
MOST_OFFSETS = 2**16

Numbers = NDArray[np.uint16]


def combinations(columns: int) -> int:
    """Number of non-zero sums of this many values with weights in {-1, 0, 1}, up to their sign."""
    return (int(3**columns) - 1) // 2


def bordered_row(width: int) -> int:
    """Floats from row to row of a map with a border: zeros behind a row are also those in front of the next."""
    return width + CELLS


@dataclass(frozen=True, eq=False)
class Tiling(ABC):
    """A convolution cut into tiles of the map and blocks of channels, for float or integer activations.

    The weight, (outputs, channels per group, rows, columns), may be a part of the record's.
    """

    record: r.Convolution
    weight: r.Trits | r.Floats
    combined: int = 1  # columns whose sums are computed together; 1: none
    most_block: int = 2**16  # upper limit of the channels per block

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of a tile."""

    @property
    def cells(self) -> int:
        """Columns of a tile."""
        return CELLS

    @property
    @abstractmethod
    def block(self) -> int:
        """Channels at a time."""

    @property
    def block_groups(self) -> int:
        """Groups at a time."""
        return 1

    @abstractmethod
    def offsets(self, values: NDArray[np.int64], channels: int) -> NDArray[np.int64]:
        """Where the sums of a block with this many channels lie; `values` are those of `combined_trits`."""

    @property
    def outputs(self) -> int:
        return len(self.weight)

    @property
    def group_inputs(self) -> int:
        return int(self.weight.shape[1])

    @property
    def group_outputs(self) -> int:
        return self.outputs // self.record.groups

    @property
    def kernel_x(self) -> int:
        return int(self.weight.shape[3])

    @property
    def span(self) -> int:
        return (int(self.weight.shape[2]) - 1) * self.record.dilation[0]

    @property
    def phases(self) -> int:
        # A kernel shorter than the stride does not reach all phases.
        return min(self.record.stride[0], self.span + 1)

    @property
    @abstractmethod
    def phase_rows(self) -> int:
        """Rows of a plane per phase of the vertical stride."""

    @property
    def kernel_rows(self) -> list[int]:
        """The row of a plane at which each row of the kernel begins."""
        steps = [row * self.record.dilation[0] for row in range(self.weight.shape[2])]
        stride = self.record.stride[0]
        return [step % stride * self.phase_rows + step // stride for step in steps]

    @property
    def listed(self) -> int:
        """Upper limit of the weights listed per output and block."""
        return self.block * math.prod(self.weight.shape[2:])

    def groups_of(self, channels: int) -> list[tuple[int, int]]:
        """First column and number of columns of each combination, in a block with this many channels. Kernels of one
        column are combined with their neighbours' as if these were columns."""
        length = channels if self.kernel_x == 1 else self.kernel_x
        return [
            (run + begin, min(self.combined, length - begin))
            for run in range(0, channels * self.kernel_x, length)
            for begin in range(0, length, self.combined)
        ]

    @property
    def tiles(self) -> int:
        return math.ceil(self.record.shape[1] / self.rows) * math.ceil(self.record.shape[2] / self.cells)

    def blocks(self) -> Iterator[tuple[slice, slice, bool]]:
        """Outputs, channels of their groups, and whether a sum begins or ends there, of each block."""
        if self.block_groups > 1:
            step = self.block_groups * self.group_outputs
            for begin in range(0, self.outputs, step):
                yield slice(begin, min(begin + step, self.outputs)), slice(0, self.group_inputs), True
            return
        for group in range(self.record.groups):
            outputs = slice(group * self.group_outputs, (group + 1) * self.group_outputs)
            for begin in range(0, self.group_inputs, self.block):
                end = min(begin + self.block, self.group_inputs)
                yield outputs, slice(begin, end), begin == 0 or end == self.group_inputs


def combined_trits(tiles: Tiling, outputs: slice, channels: slice) -> NDArray[np.int64]:
    """The number that each combination of an output's columns stands for, (outputs, combinations, kernel rows), for a
    block of the weight."""
    weight = tiles.weight[outputs, channels]
    columns = weight.transpose(0, 1, 3, 2).reshape(len(weight), -1, weight.shape[2]).astype(np.int64)
    groups = tiles.groups_of(weight.shape[1])
    values = [sum(3**place * columns[:, begin + place] for place in range(count)) for begin, count in groups]
    return np.stack([np.asarray(value) for value in values], axis=1)


def entries(tiles: Tiling) -> int:
    """Number of additions per cell, over all outputs."""
    return sum(
        int(np.count_nonzero(combined_trits(tiles, outputs, channels))) for outputs, channels, _ in tiles.blocks()
    )


def lists_of(tiles: Tiling) -> Numbers:
    """The lists that kernels/ternary_convolution.c and kernels/integer_ternary_convolution.c read."""
    return np.concatenate([_block_lists(tiles, *block) for block in tiles.blocks()])


def _block_lists(tiles: Tiling, outputs: slice, channels: slice, edge: bool) -> Numbers:
    values = combined_trits(tiles, outputs, channels)
    count = len(values)
    offsets = tiles.offsets(values, channels.stop - channels.start).reshape(count, -1)
    values = values.reshape(count, -1)
    used = np.flatnonzero(values.any(axis=1) | edge)
    values, offsets = values[used], offsets[used]
    by_sign = [(values > 0), (values < 0)]
    counts = [signs.sum(axis=1) for signs in by_sign]
    lengths = 3 + counts[0] + counts[1]
    begins = 1 + np.cumsum(lengths) - lengths
    numbers = np.empty(1 + int(lengths.sum()), dtype=np.int64)
    numbers[0] = len(used)
    numbers[begins], numbers[begins + 1], numbers[begins + 2] = outputs.start + used, counts[0], counts[1]
    for signs, number, begin in zip(by_sign, counts, (begins + 3, begins + 3 + counts[0]), strict=True):
        firsts = np.cumsum(number) - number
        places = np.repeat(begin - firsts, number) + np.arange(int(number.sum()))
        numbers[places] = offsets[signs]
    return numbers.astype(np.uint16)


@dataclass(frozen=True, eq=False)
class Tiles(Tiling):
    """With float activations.

    In place, the maps themselves serve as the planes, all channels at once. They then have `border` rows of zeros
    between them, and zeros between their rows.
    """

    input_shape: r.Shape = ()  # of the input
    border: int | None = None  # rows of zeros between maps, if they are read in place

    @cached_property
    def rows(self) -> int:
        """As even as possible, unless the tile is wide."""
        height = int(self.record.shape[1])
        if self.cells > CELLS:
            return _VECTORS_IN_PLACE * CELLS // self.cells
        most = MOST_ROWS[self.combined] if self.border is None else _VECTORS_IN_PLACE
        return math.ceil(height / math.ceil(height / most))

    @cached_property
    def cells(self) -> int:
        """The last tile of a row begins earlier rather than extend beyond it: few cells should be computed twice."""
        if self.border is None:
            return CELLS
        _, height, width = self.record.shape
        wide = [
            CELLS * strips for strips in _STRIPS if CELLS * strips <= width and height * strips >= _VECTORS_IN_PLACE
        ]
        return min(wide, key=lambda cells: math.ceil(width / cells) * cells, default=CELLS)

    @property
    def phase_rows(self) -> int:
        if self.border is not None:
            return self.input_shape[1] + self.border
        return self.rows + self.span // self.record.stride[0]

    @property
    def plane_rows(self) -> int:
        return self.phases * self.phase_rows

    @property
    def _column_steps(self) -> list[int]:
        """How far the columns of the kernel reach, in cells of the map."""
        return [column * self.record.dilation[1] for column in range(self.kernel_x)]

    @cached_property
    def _phase_cells(self) -> dict[int, int]:
        """Cells per phase of a row, if columns are not combined: those of a tile, and those beside it that it needs."""
        stride = self.record.stride[1]
        phases = {step % stride: step // stride for step in self._column_steps}  # a phase's last step reaches farthest
        return {phase: math.ceil((CELLS + reach) / CELLS) * CELLS for phase, reach in sorted(phases.items())}

    @property
    def kernel_columns(self) -> list[int]:
        """The cell of a row at which each column of the kernel begins; for combined columns, that of the first."""
        if self.combined > 1:
            return [column // self.combined * combinations(self.combined) * CELLS for column in range(self.kernel_x)]
        stride, begins, end = self.record.stride[1], {}, 0
        for phase, cells in self._phase_cells.items():
            begins[phase], end = end, end + cells
        return [begins[step % stride] + step // stride for step in self._column_steps]

    @cached_property
    def laid_cells(self) -> list[int]:
        """The first cells of the vectors that are laid out per row of the map; none if it is read in place."""
        if self.border is not None:
            return []
        if self.combined > 1:
            return self._column_steps
        stride = self.record.stride[1]
        return [phase + cell * stride for phase, cells in self._phase_cells.items() for cell in range(0, cells, CELLS)]

    @cached_property
    def block_groups(self) -> int:
        """Whole groups at a time where they are small; nothing is combined then."""
        if self.border is not None:
            return self.record.groups
        if self.combined > 1:
            return 1
        return max(1, min(self.record.groups, self._most_channels // self.group_inputs))

    @cached_property
    def block(self) -> int:
        """Channels at a time, evenly: 17 are better 9 and 8 than 16 and 1."""
        if self.block_groups > 1:
            return self.block_groups * self.group_inputs
        blocks = math.ceil(self.group_inputs / self._most_channels)
        even = math.ceil(self.group_inputs / blocks)
        if self.kernel_x == 1 and even < self.group_inputs:
            even = math.ceil(even / self.combined) * self.combined
        return even

    @property
    def _most_channels(self) -> int:
        if self.border is not None:
            return self.group_inputs * self.record.groups
        areas = PLANES_BYTES // (4 * CELLS * self.plane_rows * self.row_vectors)
        channels = areas * self.combined if self.kernel_x == 1 else areas
        return max(1, min(channels, self.most_block))

    @cached_property
    def row_vectors(self) -> int:
        """Vectors that are laid out per row of a channel, or of channels that are combined with each other."""
        if self.combined == 1:
            return len(self.laid_cells)
        if self.kernel_x == 1:
            return combinations(self.combined)
        return sum(combinations(columns) for _, columns in self.groups_of(1))

    def areas(self, channels: int) -> int:
        """Number of planes in a block with this many channels."""
        return math.ceil(channels / self.combined) if self.kernel_x == 1 else channels

    @property
    def row_floats(self) -> int:
        """Floats from row to row."""
        return self.row_vectors * CELLS if self.border is None else bordered_row(self.input_shape[2])

    @property
    def block_floats(self) -> int:
        """Floats of a block, laid out or in place."""
        return self.areas(self.block) * self.plane_rows * self.row_floats

    @property
    def read_bytes(self) -> int:
        """Bytes that a tile reads in place, with the rest of their cache lines."""
        cells = min(self.row_floats, self.cells + 2 * CELLS)
        return 4 * self.group_inputs * self.record.groups * (self.rows + self.span) * cells

    @property
    def planes_floats(self) -> int:
        """Floats of a block's planes."""
        return self.block_floats if self.border is None else 0

    @property
    def sums_floats(self) -> int:
        """Sums of all outputs: stored between blocks, and where a map is narrower than a tile."""
        stored = self.block < self.group_inputs or self.record.shape[2] < CELLS
        return self.outputs * self.rows * CELLS if stored else 0

    @property
    def fits(self) -> bool:
        """Whether offsets, counts and indices fit into two bytes, and tiles of maps in place never reach beyond the
        border."""
        room = self.block_floats <= MOST_OFFSETS and max(self.listed, self.outputs) < 2**16
        return room and (self.border is None or self._border_suffices)

    @property
    def _border_suffices(self) -> bool:
        wide = self.record.shape[2] >= CELLS and max(self.record.padding[2:]) <= CELLS // 2
        return wide and self.record.stride == (1, 1) and max(self.record.padding[:2]) <= (self.border or 0)

    @property
    def vectors(self) -> int:
        """Vectors of cells per tile."""
        return self.rows * self.cells // CELLS

    def offsets(self, values: NDArray[np.int64], channels: int) -> NDArray[np.int64]:
        groups = self.groups_of(channels)
        if self.kernel_x == 1:
            areas, columns = list(range(len(groups))), [0] * len(groups)
        else:
            areas = [begin // self.kernel_x for begin, _ in groups]
            columns = [self.kernel_columns[begin % self.kernel_x] for begin, _ in groups]
        rows = np.array(areas)[:, None] * self.plane_rows + np.array(self.kernel_rows)
        firsts = rows * self.row_floats + np.array(columns)[:, None]
        offsets: NDArray[np.int64] = firsts + (np.abs(values) - 1) * CELLS
        if self.block_groups > 1:
            group = np.arange(len(values)) // self.group_outputs
            offsets += (group * self.group_inputs * self.plane_rows * self.row_floats)[:, None, None]
        return offsets
