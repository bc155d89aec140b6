"""The entropy code of ternary weights: one table per layer, rANS over runs of zeros.

A layer's trits are cut into symbols: a run of r < R zeros and the sign that ends it, or R zeros and no sign. With R = 1
these are the three trits themselves; sparse layers use longer runs, so that a symbol carries enough bits to be worth
a step of the decoder. The table of all 2R + 1 symbols follows from the frequencies of 0, +1 and -1.

The payload, in little endian (a varint has seven bits per byte, lowest first; the top bit says that more follow):

1. uint16 zero, uint16 plus: frequencies out of 16384; minus = 16384 - zero - plus. If one of the three is 16384,
   all trits are equal and nothing follows.
2. One byte: the binary logarithm of R, at most 6. One byte: how many zeros of the last symbol lie beyond the layer.
3. varint: the number of symbols. varint: the number of lanes, at least a 4096th of the symbols.
4. One uint32 per lane, its state x.
5. uint16 words to the end.

The table, where / rounds down and signs is 1 or 2, as many as have a frequency: left = 16384; for r = 0 to R - 1:
hit = max(left * (plus + minus) / 16384, signs); the symbol of r zeros and + has hit * plus / (plus + minus), but at
least 1 if plus > 0 and at most hit - 1 if minus > 0; that of r zeros and - gets the rest of hit; left -= hit. The last
symbol, R zeros, gets what is left, which is above 0 unless zero is 0. Their ranges stand in this order.

Symbol i is decoded by lane i mod lanes: slot = x mod 16384 lies in the range of one symbol; x becomes
frequency * (x / 16384) + slot - the range's start; if that is below 65536, it becomes 65536 * x + the next word. At
the end every lane is at 65536 and every word is used. Only a symbol of R zeros reaches beyond the last trit, and not
with all of them.
"""

import math
import struct
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
        """The value of all trits, if they are equal."""
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


def fit_table(flat: Trits) -> Table:
    """Frequencies in proportion to the counts, at least 1 for what occurs; the longest run that is worthwhile."""
    plus, minus = int((flat == 1).sum()), int((flat == -1).sum())
    counts = np.array([flat.size - plus - minus, plus, minus])
    frequencies = np.maximum(np.floor(counts * (TABLE_SIZE / max(flat.size, 1)) + 0.5).astype(int), counts > 0)
    frequencies[np.argmax(frequencies)] += TABLE_SIZE - frequencies.sum()  # an empty layer is zeros
    sparsity = counts[0] / max(flat.size, 1)
    # Longer runs make fewer symbols; beyond a quarter of all symbols without a sign they hardly do.
    run_bits = max((bits for bits in range(MOST_RUN_BITS + 1) if sparsity ** (1 << bits) >= 0.25), default=0)
    return Table(int(frequencies[0]), int(frequencies[1]), run_bits)


def cut(flat: Trits, table: Table) -> tuple[Symbols, int]:
    """Trits to symbols, and how many zeros of the last lie beyond the layer."""
    if table.run == 1:  # the same as below, without eight bytes per trit
        return np.where(flat == 0, np.uint8(2), (flat < 0).view(np.uint8)), 0
    places = np.flatnonzero(flat)
    runs = np.diff(places, prepend=-1) - 1
    ends = np.cumsum(runs // table.run + 1)  # where each sign's symbol lies, plus one
    trailing = flat.size - (int(places[-1]) + 1 if places.size else 0)
    length = (int(ends[-1]) if ends.size else 0) - (-trailing // table.run)
    symbols = np.full(length, 2 * table.run, dtype=np.uint8)
    symbols[ends - 1] = 2 * (runs % table.run) + (flat[places] < 0)
    return symbols, -trailing % table.run


def join(symbols: Symbols, beyond: int, table: Table, count: int) -> Trits:
    """Symbols to trits; ExportError unless they are `count` and `beyond`."""
    if beyond and (beyond >= table.run or symbols[-1] != 2 * table.run):
        raise ExportError(f"{beyond} zeros cannot lie beyond the last trit")
    if table.run == 1 and symbols.size == count:
        return np.array([1, -1, 0], dtype=np.int8)[symbols]
    sizes = np.append(np.repeat(np.arange(1, table.run + 1), 2), table.run)  # the number of trits of each symbol
    ends = np.cumsum(sizes[symbols])
    if ends[-1] - beyond != count:
        raise ExportError(f"the payload holds {ends[-1] - beyond} trits, the layer has {count}")
    trits = np.zeros(count, dtype=np.int8)
    signed = symbols < 2 * table.run
    trits[ends[signed] - 1] = 1 - 2 * (symbols[signed] % 2).astype(np.int8)
    return trits


# States live in [2^16, 2^32) and move by 16-bit words: at most one word per symbol, which numpy can vectorize.
WORD_BITS = 16
START = 1 << WORD_BITS
# A lane costs about 24 bits more than its symbols: 16 that its state starts with, 8 of a last word half empty.
LANE_COST_BITS = 24
# The fraction of a payload that may go into lanes: more lanes make fewer steps.
LANE_FRACTION = 1 / 128
# Limits the decoder's time, whatever a damaged header says.
MOST_STEPS = 4096
# A few bytes can stand for any number of equal trits; a layer with more is rejected.
MOST_TRITS = 1 << 28

States = NDArray[np.uint64]


def encode_trits(trits: Trits) -> bytes:
    """The payload of a layer's trits, in row-major order."""
    flat = trits.reshape(-1)
    if flat.size > MOST_TRITS:
        raise ExportError(f"a ternary layer may have at most {MOST_TRITS} weights, got {flat.size}")
    if not ((flat >= -1) & (flat <= 1)).all():  # not through abs(): in int8, that of -128 is -128
        raise ExportError("a ternary layer may hold only -1, 0 and 1")
    table = fit_table(flat)
    head = struct.pack("<HH", table.zero, table.plus)
    if table.only_trit is not None:
        return head
    symbols, beyond = cut(flat, table)
    lanes = _lane_count(symbols, table)
    states, words = _rans_encode(symbols, table, lanes)
    numbers = bytes([table.run_bits, beyond]) + _varint(symbols.size) + _varint(lanes)
    return head + numbers + states.astype("<u4").tobytes() + words.astype("<u2").tobytes()


def decode_trits(payload: bytes, count: int) -> Trits:
    """The `count` trits of a payload; ExportError unless it is one that could have been written for them."""
    if not 0 <= count <= MOST_TRITS:
        raise ExportError(f"a ternary layer may have 0 to {MOST_TRITS} weights, got {count}")
    table = _read_table(payload)
    if table.only_trit is not None:
        if len(payload) != 4:
            raise ExportError(f"a payload of equal trits must have 4 bytes, got {len(payload)}")
        return np.full(count, table.only_trit, dtype=np.int8)
    symbol_count, at = _read_varint(payload, 6)
    lanes, at = _read_varint(payload, at)
    if not 0 < symbol_count <= count or not symbol_count <= lanes * MOST_STEPS or not lanes <= symbol_count:
        raise ExportError(f"{count} trits cannot be {symbol_count} symbols in {lanes} lanes")
    rest = memoryview(payload)[at:]
    if len(rest) < 4 * lanes or len(rest) % 2 or (len(rest) - 4 * lanes) // 2 > symbol_count:
        raise ExportError(f"{symbol_count} symbols in {lanes} lanes cannot have {len(rest)} bytes")
    states = np.frombuffer(rest[: 4 * lanes], dtype="<u4").astype(np.uint64)
    words = np.frombuffer(rest[4 * lanes :], dtype="<u2").astype(np.uint16)
    return join(_rans_decode(states, words, table, symbol_count), payload[5], table, count)


def _lane_count(symbols: Symbols, table: Table) -> int:
    """As many lanes as their fraction of the payload allows, but never too few for the decoder's limit."""
    uses = np.bincount(symbols, minlength=table.frequencies.size)
    used = uses > 0
    bits = float((uses[used] * (TABLE_BITS - np.log2(table.frequencies[used]))).sum())
    return max(int(bits * LANE_FRACTION / LANE_COST_BITS), math.ceil(symbols.size / MOST_STEPS))


def _rans_encode(symbols: Symbols, table: Table, lanes: int) -> tuple[States, NDArray[np.uint16]]:
    """rANS backwards over the symbols, so that the decoder runs forwards: final states, and words in its order."""
    frequencies, starts = table.frequencies.astype(np.uint64), table.starts.astype(np.uint64)
    limits = frequencies << np.uint64(2 * WORD_BITS - TABLE_BITS)
    states = np.full(lanes, START, dtype=np.uint64)
    words = []
    for begin in range((symbols.size - 1) // lanes * lanes, -1, -lanes):
        step = symbols[begin : begin + lanes]
        x = states[: step.size]  # a view: the last step may leave some lanes out
        full = np.flatnonzero(x >= limits[step])
        words.append(x[full].astype(np.uint16))
        x[full] >>= np.uint64(WORD_BITS)
        frequency = frequencies[step]
        # Exact in floats, and several times faster: both numbers are small, and a quotient that is not an integer
        # is at least 2^-14 away from one.
        quotient = (x.astype(np.float64) / frequency).astype(np.uint64)
        x += quotient * (np.uint64(TABLE_SIZE) - frequency) + starts[step]
    return states, np.concatenate(words[::-1])


def _rans_decode(states: States, words: NDArray[np.uint16], table: Table, symbol_count: int) -> Symbols:
    """rANS forwards: symbols. Changes the states."""
    symbol_of_slot = np.repeat(np.arange(table.frequencies.size, dtype=np.uint8), table.frequencies)
    frequency_of_slot = table.frequencies.astype(np.uint64)[symbol_of_slot]
    offset_of_slot = np.arange(TABLE_SIZE, dtype=np.uint64) - table.starts.astype(np.uint64)[symbol_of_slot]
    symbols = np.empty(symbol_count, dtype=np.uint8)
    at = 0
    for begin in range(0, symbol_count, states.size):
        x = states[: symbol_count - begin]
        slot = (x & np.uint64(TABLE_SIZE - 1)).astype(np.int64)
        symbols[begin : begin + states.size] = symbol_of_slot[slot]
        x[:] = frequency_of_slot[slot] * (x >> np.uint64(TABLE_BITS)) + offset_of_slot[slot]
        low = np.flatnonzero(x < START)
        if at + low.size > words.size:
            raise ExportError(f"a payload of trits ends too early, after {words.size} words")
        x[low] = (x[low] << np.uint64(WORD_BITS)) | words[at : at + low.size]
        at += low.size
    if at != words.size or (states != START).any():
        raise ExportError(
            f"a payload of trits is damaged: {at} of {words.size} words used, or states not at their start"
        )
    return symbols


def _read_table(payload: bytes) -> Table:
    """The table at the head of a payload."""
    if len(payload) < 4:
        raise ExportError(f"a payload of trits must have at least 4 bytes, got {len(payload)}")
    zero, plus = struct.unpack_from("<HH", payload)
    if zero + plus > TABLE_SIZE:
        raise ExportError(f"frequencies of trits may sum up to {TABLE_SIZE}, got {zero} and {plus}")
    if Table(zero, plus).only_trit is not None:
        return Table(zero, plus)
    if len(payload) < 6 or payload[4] > MOST_RUN_BITS:
        raise ExportError(f"a run of trits must be at most 2^{MOST_RUN_BITS} long")
    return Table(zero, plus, payload[4])


def _varint(number: int) -> bytes:
    low, more = number & 127, number >> 7
    return bytes([low | 128]) + _varint(more) if more else bytes([low])


def _read_varint(payload: bytes, at: int) -> tuple[int, int]:
    """A number below 2^35 and the offset after it."""
    number = 0
    for index, byte in enumerate(payload[at : at + 5]):
        number |= (byte & 127) << (7 * index)
        if byte < 128:
            return number, at + index + 1
    raise ExportError("a payload of trits has a number without an end")
