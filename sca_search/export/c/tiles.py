"""How a convolution is cut into tiles and blocks; see kernels/tiles.h and kernels/integer_tiles.h."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph import records as r
from sca_search.export.integer.requantize import HIGHEST

CELLS = 8
# Rows of a tile; fewer where columns are combined. More rows share more of what lies above and below, and need memory.
_MOST_ROWS, _MOST_COMBINED_ROWS = 16, 8
# In place there is nothing to share: this many vectors of cells, as wide as possible.
_VECTORS_IN_PLACE = 8
_STRIPS = (4, 2, 1)
# Bytes of the planes of a block. Somewhat more than a first-level cache of 32 KB: storing fewer sums between blocks
# outweighs the rows that come from the second level.
_PLANES_BYTES = 48 * 1024
# Cells of a block's planes: offsets have two bytes.
_MOST_OFFSETS = 2**16
# Integer trits of one output and block that are not zero: sums have 16 bits.
MOST_ADDED = (2**15 - 1) // HIGHEST


def combinations(columns: int) -> int:
    """Number of non-zero sums of this many values with weights in {-1, 0, 1}, up to their sign."""
    return (int(3**columns) - 1) // 2


def bordered_row(width: int) -> int:
    """Floats from row to row of a map with a border: the zeros after a row are also those before the next."""
    return width + CELLS


@dataclass(frozen=True, eq=False)
class _Tiling(ABC):
    """A convolution cut into tiles of the map and blocks of channels, for float or integer activations.

    The weight, (outputs, channels per group, rows, columns), may be a part of the record's.
    """

    record: r.Convolution
    weight: r.Trits | r.Floats
    combined: int = 1  # columns whose sums are computed together; 1: none
    most_block: int = 2**16  # upper limit of the channels per block
    border: int | None = None  # rows of zeros between maps, if they are read in place

    @cached_property
    def rows(self) -> int:
        """Rows of a tile, as even as possible."""
        return self._even_rows(_MOST_ROWS)

    def _even_rows(self, most: int) -> int:
        height = int(self.record.shape[1])
        return math.ceil(height / math.ceil(height / most))

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
    def phase_rows(self) -> int:
        """Rows of a plane per phase of the vertical stride."""
        return self.rows + self.span // self.record.stride[0]

    @property
    def kernel_rows(self) -> list[int]:
        """The row of a plane at which each row of the kernel begins."""
        stride = self.record.stride[0]
        steps = range(0, self.span + 1, self.record.dilation[0])
        return [step % stride * self.phase_rows + step // stride for step in steps]

    @property
    def listed(self) -> int:
        """Upper limit of the weights listed per output and block."""
        return self.block * math.prod(self.weight.shape[2:])

    def groups_of(self, channels: int) -> list[tuple[int, int]]:
        """First column and number of columns of each combination, in a block with this many channels. Kernels of one
        column are combined with their neighbors' as if these were columns."""
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
        step = self.block_groups * self.group_outputs
        for first in range(0, self.outputs, step):
            outputs = slice(first, min(first + step, self.outputs))
            for begin in range(0, self.group_inputs, self.block):
                end = min(begin + self.block, self.group_inputs)
                yield outputs, slice(begin, end), begin == 0 or end == self.group_inputs


@dataclass(frozen=True, eq=False)
class Tiles(_Tiling):
    """With float activations.

    In place, the maps themselves serve as the planes, all channels at once. They then have `border` rows of zeros
    between them, and zeros between their rows.
    """

    prefix = ""  # of the names in C

    input_shape: r.Shape = ()

    @cached_property
    def rows(self) -> int:
        """As even as possible, unless the tile is wide."""
        if self.cells > CELLS:
            return _VECTORS_IN_PLACE * CELLS // self.cells
        if self.border is not None:
            return self._even_rows(_VECTORS_IN_PLACE)
        return self._even_rows(_MOST_ROWS if self.combined == 1 else _MOST_COMBINED_ROWS)

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
        return super().phase_rows if self.border is None else self.input_shape[1] + self.border

    @property
    def plane_rows(self) -> int:
        return self.phases * self.phase_rows

    @property
    def _column_steps(self) -> list[int]:
        """How far the columns of the kernel reach, in cells of the map."""
        return [column * self.record.dilation[1] for column in range(self.kernel_x)]

    @cached_property
    def _phase_cells(self) -> dict[int, int]:
        """Cells per phase of a row, if columns are not combined: those of a tile, and those next to it that it
        needs."""
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
        areas = _PLANES_BYTES // (4 * CELLS * self.plane_rows * self.row_vectors)
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
    def _block_floats(self) -> int:
        """Floats of a block, laid out or in place."""
        return self.areas(self.block) * self.plane_rows * self.row_floats

    @property
    def read_bytes(self) -> int:
        """Bytes that a tile reads in place, with the rest of their cache lines."""
        cells = min(self.row_floats, self.cells + 2 * CELLS)
        return 4 * self.group_inputs * self.record.groups * (self.rows + self.span) * cells

    @property
    def planes_size(self) -> int:
        """Floats of a block's planes."""
        return self._block_floats if self.border is None else 0

    @property
    def work_floats(self) -> int:
        """Planes and sums of all outputs: stored between blocks, and where a map is narrower than a tile."""
        stored = self.block < self.group_inputs or self.record.shape[2] < CELLS
        return self.planes_size + (self.outputs * self.rows * CELLS if stored else 0)

    @property
    def fits(self) -> bool:
        """Whether offsets, counts and indices fit into two bytes, and tiles of maps in place never reach beyond the
        border."""
        room = self._block_floats <= _MOST_OFFSETS and max(self.listed, self.outputs) < 2**16
        if not room or self.border is None:
            return room
        wide = self.record.shape[2] >= CELLS and max(self.record.padding[2:]) <= CELLS // 2
        return wide and self.record.stride == (1, 1) and max(self.record.padding[:2]) <= self.border

    @property
    def layout(self) -> str:
        """What is needed to read the trits back from the lists; see count_zeros.py."""
        return f"{self.combined} columns in {self.row_vectors} vectors"

    def offsets(self, values: NDArray[np.int64], channels: int) -> NDArray[np.int64]:
        """Where the sums of a block with this many channels lie; `values` are those of `combined_trits`."""
        begins = [begin for begin, _ in self.groups_of(channels)]
        if self.kernel_x == 1:
            areas, columns = list(range(len(begins))), [0] * len(begins)
        else:
            areas = [begin // self.kernel_x for begin in begins]
            columns = [self.kernel_columns[begin % self.kernel_x] for begin in begins]
        rows = np.array(areas)[:, None] * self.plane_rows + np.array(self.kernel_rows)
        firsts = rows * self.row_floats + np.array(columns)[:, None]
        offsets: NDArray[np.int64] = firsts + (np.abs(values) - 1) * CELLS
        if self.block_groups > 1:
            group = np.arange(len(values)) // self.group_outputs
            offsets += (group * self.group_inputs * self.plane_rows * self.row_floats)[:, None, None]
        return offsets


@dataclass(frozen=True, eq=False)
class IntegerTiles(_Tiling):
    """With integer activations; each combination of columns has a plane of its own."""

    prefix = "integer_"  # of the names in C

    sums_16: bool = True  # whether sums of a block have 16 bits

    @property
    def phase_rows(self) -> int:
        """An even number: rows are laid out two by two."""
        return 2 * math.ceil(super().phase_rows / 2)

    @property
    def plane_cells(self) -> int:
        return self.phases * self.phase_rows * CELLS

    def planes(self, channels: int) -> int:
        """Number of planes of a block with this many channels."""
        return sum(combinations(columns) for _, columns in self.groups_of(channels))

    @cached_property
    def block(self) -> int:
        """Channels at a time, evenly: few enough for the cache, and for sums of 16 bits."""
        unit = self.combined if self.kernel_x == 1 else 1
        cached = _PLANES_BYTES // (2 * self.plane_cells * self.planes(unit)) * unit
        most = max(1, min(self.group_inputs, self.most_block, cached))
        for blocks in range(math.ceil(self.group_inputs / most), self.group_inputs + 1):
            block = math.ceil(self.group_inputs / blocks)
            if self.kernel_x == 1 and block < self.group_inputs:
                block = min(self.group_inputs, max(1, block // self.combined) * self.combined)
            if self._sums_fit(block):
                return block
        return 1

    def _sums_fit(self, block: int) -> bool:
        added = np.count_nonzero(self.weight, axis=(2, 3))
        most = np.add.reduceat(added, range(0, self.group_inputs, block), axis=1).max()
        return not self.sums_16 or bool(most <= MOST_ADDED)

    @property
    def _planes_numbers(self) -> int:
        # A vector of two rows may begin at the last row of the last plane.
        return self.planes(self.block) * self.plane_cells + CELLS

    @property
    def planes_size(self) -> int:
        """Bytes of a block's planes, in whole cache lines."""
        return math.ceil(2 * self._planes_numbers / 64) * 64

    @property
    def work_floats(self) -> int:
        """Planes and sums of all outputs, if they are stored between blocks."""
        stored = self.outputs if self.block < self.group_inputs else 0
        return self.planes_size // 4 + stored * self.rows * CELLS

    @property
    def fits(self) -> bool:
        """Whether offsets, counts and indices fit into two bytes, and sums into theirs."""
        numbers = self._planes_numbers <= _MOST_OFFSETS and max(self.listed, self.outputs) < 2**16
        return numbers and self._sums_fit(self.block)

    @property
    def layout(self) -> str:
        """What is needed to read the trits back from the lists; see count_zeros.py."""
        planes = self.planes(1) if self.kernel_x > 1 else combinations(self.combined)
        return f"{self.combined} columns in {planes} planes of {self.plane_cells} cells"

    def offsets(self, values: NDArray[np.int64], channels: int) -> NDArray[np.int64]:
        """Where the sums of a block with this many channels lie; `values` are those of `combined_trits`."""
        planes = [combinations(count) for _, count in self.groups_of(channels)]
        cells = (np.cumsum(planes) - planes)[:, None] * self.plane_cells + np.array(self.kernel_rows) * CELLS
        offsets: NDArray[np.int64] = cells + (np.abs(values) - 1) * self.plane_cells
        return offsets


AnyTiles = Tiles | IntegerTiles
