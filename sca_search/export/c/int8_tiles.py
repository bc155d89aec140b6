"""How a convolution with integer activations is cut into tiles and blocks; see kernels/integer_tiles.h."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sca_search.export.c.tiles import CELLS, MOST_OFFSETS, PLANES_BYTES, Tiling, combinations
from sca_search.export.integer.requantize import HIGHEST

MOST_ROWS = 16
# Trits of one output and block that are not zero: sums have 16 bits.
MOST_ADDED = (2**15 - 1) // HIGHEST


@dataclass(frozen=True, eq=False)
class IntegerTiles(Tiling):
    """With integer activations; each combination of columns has a plane of its own."""

    sums_16: bool = True  # whether sums of a block have 16 bits

    @cached_property
    def rows(self) -> int:
        """As even as possible."""
        height = int(self.record.shape[1])
        return math.ceil(height / math.ceil(height / MOST_ROWS))

    @property
    def phase_rows(self) -> int:
        """An even number: rows are laid out two by two."""
        return 2 * math.ceil((self.rows + self.span // self.record.stride[0]) / 2)

    @property
    def plane_cells(self) -> int:
        return self.phases * self.phase_rows * CELLS

    @property
    def kernel_cells(self) -> list[int]:
        """The cell of a plane at which each row of the kernel begins."""
        return [row * CELLS for row in self.kernel_rows]

    def planes(self, channels: int) -> int:
        """Number of planes of a block with this many channels."""
        return sum(combinations(columns) for _, columns in self.groups_of(channels))

    @cached_property
    def block(self) -> int:
        """Channels at a time, evenly: few enough for the cache, and for sums of 16 bits."""
        most = max(1, min(self.group_inputs, self.most_block, self._cached_channels))
        for blocks in range(math.ceil(self.group_inputs / most), self.group_inputs + 1):
            block = math.ceil(self.group_inputs / blocks)
            if self.kernel_x == 1 and block < self.group_inputs:
                block = min(self.group_inputs, max(1, block // self.combined) * self.combined)
            if not self.sums_16 or self._most_added(block) <= MOST_ADDED:
                return block
        return 1

    @property
    def _cached_channels(self) -> int:
        channels = self.combined if self.kernel_x == 1 else 1
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
        """Sums of all outputs, if they are stored between blocks."""
        stored = self.outputs if self.block < self.group_inputs else 0
        return 4 * stored * self.rows * CELLS

    @property
    def fits(self) -> bool:
        """Whether offsets, counts and indices fit into two bytes, and sums into theirs."""
        sums = not self.sums_16 or self._most_added(self.block) <= MOST_ADDED
        return sums and self.planes_bytes // 2 <= MOST_OFFSETS and max(self.listed, self.outputs) < 2**16

    def offsets(self, values: NDArray[np.int64], channels: int) -> NDArray[np.int64]:
        planes = [combinations(count) for _, count in self.groups_of(channels)]
        firsts = (np.cumsum(planes) - planes)[:, None] * self.plane_cells + np.array(self.kernel_cells)
        offsets: NDArray[np.int64] = firsts + (np.abs(values) - 1) * self.plane_cells
        return offsets
