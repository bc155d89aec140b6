"""What the entropy code of trits is about: the symbols that a layer is cut into, and their frequencies.

The format is described in trit_code.py.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.graph.records import Trits

TABLE_BITS = 14
TABLE_SIZE = 1 << TABLE_BITS
MOST_RUN_BITS = 6

Numbers = NDArray[np.int64]
Symbols = NDArray[np.uint8]


@dataclass(frozen=True)
class Table:
    """The frequencies of 0 and +1, the length of the longest run, and what follows from them."""

    zero: int
    plus: int
    run_bits: int = 0

    @property
    def minus(self) -> int:
        return TABLE_SIZE - self.zero - self.plus

    @property
    def run(self) -> int:
        return 1 << self.run_bits

    @property
    def only_trit(self) -> int | None:
        """The trit that all are, if they are equal."""
        only = [trit for trit, frequency in ((0, self.zero), (1, self.plus), (-1, self.minus)) if frequency]
        return only[0] if len(only) == 1 else None

    @cached_property
    def frequencies(self) -> Numbers:
        """Of each symbol: 0 zeros and +, 0 zeros and -, 1 zero and +, ..., R zeros."""
        signs = self.plus + self.minus
        left, frequencies = TABLE_SIZE, []
        for _ in range(self.run):
            hit = max(left * signs // TABLE_SIZE, (self.plus > 0) + (self.minus > 0))
            up = min(max(hit * self.plus // signs, int(self.plus > 0)), hit - int(self.minus > 0))
            frequencies += [up, hit - up]
            left -= hit
        if left < 0 or (left == 0) != (self.zero == 0):
            raise ExportError(f"the table of trits leaves {left} of {TABLE_SIZE} to a run of {self.run} zeros")
        return np.array([*frequencies, left], dtype=np.int64)

    @cached_property
    def starts(self) -> Numbers:
        """Where each symbol's range begins."""
        return np.cumsum(self.frequencies) - self.frequencies

    @property
    def sizes(self) -> Numbers:
        """How many trits each symbol stands for."""
        return np.append(np.repeat(np.arange(1, self.run + 1), 2), self.run)


def fit_table(flat: Trits) -> Table:
    """Frequencies in proportion to the counts, at least 1 for what occurs; the longest run that pays."""
    plus, minus = int((flat == 1).sum()), int((flat == -1).sum())
    counts = np.array([flat.size - plus - minus, plus, minus])
    shares = np.maximum(np.floor(counts * (TABLE_SIZE / max(flat.size, 1)) + 0.5).astype(int), counts > 0)
    shares[np.argmax(shares)] += TABLE_SIZE - shares.sum()  # an empty layer is zeros
    zero_share = counts[0] / max(flat.size, 1)
    # Longer runs make fewer symbols; beyond a quarter of all symbols without a sign they hardly do.
    run_bits = max((bits for bits in range(MOST_RUN_BITS + 1) if zero_share ** (1 << bits) >= 0.25), default=0)
    return Table(int(shares[0]), int(shares[1]), run_bits)


def cut(flat: Trits, table: Table) -> tuple[Symbols, int]:
    """Trits to symbols, and how many zeros of the last lie beyond the layer."""
    if table.run == 1:  # the same as below, without eight bytes a trit
        return np.where(flat == 0, np.uint8(2), (flat < 0).view(np.uint8)), 0
    places = np.flatnonzero(flat)
    runs = np.diff(places, prepend=-1) - 1
    ends = np.cumsum(runs // table.run + 1)  # where each sign's symbol lies, plus one
    behind = flat.size - (int(places[-1]) + 1 if places.size else 0)
    length = (int(ends[-1]) if ends.size else 0) - (-behind // table.run)
    symbols = np.full(length, 2 * table.run, dtype=np.uint8)
    symbols[ends - 1] = 2 * (runs % table.run) + (flat[places] < 0)
    return symbols, -behind % table.run


def join(symbols: Symbols, beyond: int, table: Table, count: int) -> Trits:
    """Symbols to trits; ExportError unless they are `count` and `beyond`."""
    if beyond and (beyond >= table.run or symbols[-1] != 2 * table.run):
        raise ExportError(f"{beyond} zeros cannot lie beyond the last trit")
    if table.run == 1 and symbols.size == count:
        return np.array([1, -1, 0], dtype=np.int8)[symbols]
    ends = np.cumsum(table.sizes[symbols])
    if ends[-1] - beyond != count:
        raise ExportError(f"the payload holds {ends[-1] - beyond} trits, the layer has {count}")
    trits = np.zeros(count, dtype=np.int8)
    signed = symbols < 2 * table.run
    trits[ends[signed] - 1] = 1 - 2 * (symbols[signed] % 2).astype(np.int8)
    return trits
