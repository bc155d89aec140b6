"""The entropy code of ternary weights: exact round trips, its size against the bound, and what it refuses."""

import bisect
import itertools
import math
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.packed.trit_code import MOST_TRITS, Table, decode_trits, encode_trits


def random_trits(count: int, sparsity: float, seed: int = 0, plus_share: float = 0.5) -> NDArray[np.int8]:
    """Exactly round(sparsity · count) zeros, at random places."""
    generator = np.random.default_rng(seed)
    trits = np.where(generator.random(count) < plus_share, 1, -1).astype(np.int8)
    trits[generator.permutation(count)[: round(sparsity * count)]] = 0
    return trits


def plain_ranges(zero: int, plus: int, run: int) -> list[tuple[int, int, int]]:
    """The docstring's table: (frequency, zeros, sign) of each symbol."""
    minus = 16384 - zero - plus
    ranges, left = [], 16384
    for zeros in range(run):
        hit = max(left * (plus + minus) // 16384, (plus > 0) + (minus > 0))
        up = hit * plus // (plus + minus)
        up = max(up, 1) if plus > 0 else up
        up = min(up, hit - 1) if minus > 0 else up
        ranges += [(up, zeros, 1), (hit - up, zeros, -1)]
        left -= hit
    return [*ranges, (left, run, 0)]


def plain_varint(payload: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (payload[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if payload[at - 1] < 128:
            return number, at


def decode_plainly(payload: bytes, count: int) -> list[int]:
    """The docstring's description once more, one symbol at a time with Python's integers, as a C port would."""
    zero, plus = struct.unpack_from("<HH", payload)
    for trit, frequency in ((0, zero), (1, plus), (-1, 16384 - zero - plus)):
        if frequency == 16384:
            return [trit] * count
    ranges = plain_ranges(zero, plus, 1 << payload[4])
    ends = list(itertools.accumulate(frequency for frequency, _, _ in ranges))
    symbols, at = plain_varint(payload, 6)
    lanes, at = plain_varint(payload, at)
    states = list(struct.unpack_from(f"<{lanes}I", payload, at))
    at += 4 * lanes
    trits: list[int] = []
    for index in range(symbols):
        x = states[index % lanes]
        symbol = bisect.bisect_right(ends, x % 16384)
        frequency, zeros, sign = ranges[symbol]
        x = frequency * (x // 16384) + x % 16384 - (ends[symbol] - frequency)
        if x < 65536:
            x = 65536 * x + struct.unpack_from("<H", payload, at)[0]
            at += 2
        states[index % lanes] = x
        trits += [0] * zeros + [sign] * (sign != 0)
    assert states == [65536] * lanes
    assert at == len(payload)
    assert len(trits) - payload[5] == count
    return trits[:count]


@pytest.mark.parametrize("sparsity", [0.0, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("plus_share", [0.0, 0.1, 0.5, 1.0])
def test_trits_of_every_short_length_come_back(sparsity: float, plus_share: float) -> None:
    for count in range(41):
        trits = random_trits(count, sparsity, seed=count, plus_share=plus_share)
        payload = encode_trits(trits)
        assert decode_trits(payload, count).tolist() == trits.tolist()
        assert decode_plainly(payload, count) == trits.tolist()


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 3000),
    sparsity=st.floats(0, 1),
    plus_share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_trits_of_any_mixture_come_back(count: int, sparsity: float, plus_share: float, seed: int) -> None:
    trits = random_trits(count, sparsity, seed, plus_share)
    payload = encode_trits(trits)
    assert decode_trits(payload, count).tolist() == trits.tolist()
    assert decode_plainly(payload, count) == trits.tolist()


@pytest.mark.parametrize("place", [0, 1, 63, 64, 99_998, 99_999])
def test_single_sign_in_a_large_layer_comes_back(place: int) -> None:
    trits = np.zeros(100_000, dtype=np.int8)
    trits[place] = -1
    payload = encode_trits(trits)
    assert decode_trits(payload, trits.size).tolist() == trits.tolist()
    assert len(payload) < 40


def test_single_zero_in_a_large_layer_comes_back() -> None:
    trits = np.ones(100_001, dtype=np.int8)
    trits[77_777] = 0
    payload = encode_trits(trits)
    assert decode_trits(payload, trits.size).tolist() == trits.tolist()
    assert len(payload) < 150  # 25 lanes keep the decoder within its steps


def test_shape_is_read_row_by_row() -> None:
    trits = random_trits(60, 0.4).reshape(3, 4, 5)
    assert encode_trits(trits) == encode_trits(trits.reshape(-1))
    assert encode_trits(np.asfortranarray(trits)) == encode_trits(trits)


def test_payload_of_two_trits_is_the_one_worked_out_by_hand() -> None:
    # +1, 0: half are zeros, so zero = plus = 8192 = 0x2000, minus = 0. 0.5² ≥ 0.25 > 0.5⁴: R = 2, its logarithm 1.
    # Table: left 16384, hit 8192: (0 zeros, +) has 8192 from 0, (0 zeros, -) none; left 8192, hit 4096:
    # (1 zero, +) has 4096 from 8192; two zeros have the 4096 from 12288.
    # Symbols: (0 zeros, +) and two zeros, of which 1 lies beyond the layer: 2 symbols, 1 lane.
    # Backwards from x = 65536. Two zeros: 65536 = 16 · 4096 + 0, x = 16 · 16384 + 0 + 12288 = 274432.
    # (0 zeros, +): 274432 = 33 · 8192 + 4096, x = 33 · 16384 + 4096 + 0 = 544768 = 0x00085000; no word was needed.
    expected = bytes.fromhex("0020 0020 01 01 02 01 00500800")
    assert encode_trits(np.array([1, 0], dtype=np.int8)) == expected
    assert decode_trits(expected, 2).tolist() == [1, 0]


def test_payload_of_eighteen_signs_is_the_one_worked_out_by_hand() -> None:
    # 9 times +1, then 9 times -1: zero = 0, plus = minus = 8192, R = 1; + has the range from 0, - that from 8192.
    # A sign costs one bit: x = floor(x / 8192) · 16384 + x mod 8192, and 8192 more for a minus; that is, bit 13 is
    # put into x. A state is full at 8192 · 2^18 = 2^31.
    # Backwards from 2^16 = 8 · 8192: nine minuses. Write x = h · 8192 + l: h doubles, and a minus adds 1 to the new h.
    # h: 8 -> 17 -> 35 -> 71 -> ... = 9 · 2^9 - 1 = 4607 behind nine minuses, l = 0. Six plusses: h = 4607 · 2^6 =
    # 294848, x = 294848 · 8192 = 2415394816 = 0x8FF80000, at least 2^31: full. The low word 0x0000 goes out and x is
    # 0x8FF8 = 36856 = 4 · 8192 + 4088. Three plusses more: h = 32, x = 32 · 8192 + 4088 = 266232 = 0x00040FF8.
    signs = np.repeat(np.array([1, -1], dtype=np.int8), 9)
    expected = bytes.fromhex("0000 0020 00 00 12 01 f80f0400 0000")
    assert encode_trits(signs) == expected
    assert decode_trits(expected, 18).tolist() == signs.tolist()


@pytest.mark.parametrize(("trit", "expected"), [(0, "00400000"), (1, "00000040"), (-1, "00000000")])
@pytest.mark.parametrize("count", [1, 17, 1_000_000])
def test_equal_trits_cost_four_bytes(trit: int, expected: str, count: int) -> None:
    trits = np.full(count, trit, dtype=np.int8)
    assert encode_trits(trits) == bytes.fromhex(expected)
    assert (decode_trits(bytes.fromhex(expected), count) == trits).all()


def test_small_layer_pays_little_more_than_its_entropy() -> None:
    # 40 trits at one bit a sign and one bit of zero or not, 60 bits; 12 bytes of table, counts and state.
    assert len(encode_trits(random_trits(40, 0.5))) <= 8 + 12


@pytest.mark.parametrize("sparsity", [0.0, 1 / 3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("count", [100_000, 235_929])
def test_payload_is_within_two_percent_of_the_bound(sparsity: float, count: int) -> None:
    trits = random_trits(count, sparsity)
    payload = encode_trits(trits)
    s = (count - np.count_nonzero(trits)) / count
    entropy = -s * math.log2(s) - (1 - s) * math.log2(1 - s) if 0 < s < 1 else 0.0
    bound_bits = count * (entropy + (1 - s))
    assert 8 * len(payload) <= 1.02 * bound_bits
    assert 8 * len(payload) >= 0.99 * bound_bits  # less would mean that the bound is computed wrongly
    assert (decode_trits(payload, count) == trits).all()


def test_unbalanced_signs_cost_less_than_a_bit() -> None:
    # 0.1 plus: -0.1·log2 0.1 - 0.9·log2 0.9 = 0.469 bits
    payload = encode_trits(random_trits(100_000, 0.0, plus_share=0.1))
    assert 8 * len(payload) < 1.02 * 0.469 * 100_000 * 1.02  # the share itself is random, within a percent or two


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.99])
def test_millions_of_weights_take_a_second_or_so(sparsity: float) -> None:
    trits = random_trits(2_000_000, sparsity)
    begin = time.process_time()
    assert (decode_trits(encode_trits(trits), trits.size) == trits).all()
    assert time.process_time() - begin < 5  # measured 0.3 s


def test_value_that_is_no_trit_is_refused() -> None:
    for value in (2, -2, -128, 127):
        with pytest.raises(ExportError, match="only -1, 0 and 1"):
            encode_trits(np.array([0, value], dtype=np.int8))


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.97])
def test_every_truncation_and_surplus_is_refused(sparsity: float) -> None:
    trits = random_trits(900, sparsity)
    payload = encode_trits(trits)
    for length in range(len(payload)):
        with pytest.raises(ExportError):
            decode_trits(payload[:length], trits.size)
    for surplus in (b"\0", b"\0\0", b"\0\0\0\0"):
        with pytest.raises(ExportError):
            decode_trits(payload + surplus, trits.size)


@pytest.mark.parametrize("sparsity", [0.0, 0.5, 0.97])
def test_wrong_count_is_refused(sparsity: float) -> None:
    trits = random_trits(3000, sparsity)
    trits[-200:] *= 0 if sparsity else 1  # so that the last symbol reaches beyond the layer
    payload = encode_trits(trits)
    for count in (0, 1, 1500, 2936, 2968, 2996, 2999, 3001, 3002, 6000, MOST_TRITS):
        with pytest.raises(ExportError):
            decode_trits(payload, count)


def test_damaged_payloads_end_in_our_error_or_in_trits() -> None:
    # A payload has no checksum of its own, the file has one; here only the manner of failing counts.
    generator = np.random.default_rng(1)
    trits = random_trits(1000, 0.8)
    payload = encode_trits(trits)
    refused = 0
    for _ in range(300):
        damaged = bytearray(payload)
        for place in generator.integers(0, len(payload), generator.integers(1, 4)):
            damaged[place] = generator.integers(0, 256)
        try:
            decoded = decode_trits(bytes(damaged), trits.size)
        except ExportError:
            refused += 1
        else:
            assert decoded.size == trits.size
            assert set(np.unique(decoded)) <= {-1, 0, 1}
    assert refused > 270


@pytest.mark.parametrize(
    ("hexadecimal", "count", "message"),
    [
        ("", 1, "at least 4 bytes"),
        ("0020", 1, "at least 4 bytes"),
        ("00200030", 4, "may sum up to"),
        ("ffffffff", 4, "may sum up to"),
        ("00400000 00", 4, "must have 4 bytes"),
        ("00200020 07 01 0201 00500800", 2, "at most 2\\^6"),
        ("00200020 01 01 8080808080", 2, "without an end"),
        ("00200020 01 01 02 00 00500800", 2, "0 lanes"),
        ("00200020 01 01 02 03 00500800", 2, "3 lanes"),
        ("00200020 01 01 ffffff7f 01 00500800", 2, "cannot be 268435455 symbols"),
        ("00200020 01 01 ffffff7f 01 00500800", MOST_TRITS, "in 1 lanes"),
        ("00200020 01 01 02 01 00500800 0000 0000 0000", 2, "cannot have 10 bytes"),
        ("00200020 01 01 02 01 00500800 00", 2, "cannot have 5 bytes"),
        ("00200020 01 01 02 01 00500800 0000", 2, "0 of 1 words used"),
        ("00200020 01 01 02 01 01500800", 2, "damaged"),
        ("00200020 01 01 02 01 00000000", 2, "ends too early"),
        ("00200020 01 02 02 01 00500800", 2, "2 zeros cannot lie beyond"),
        ("00200020 01 00 02 01 00500800", 2, "holds 3 trits, the layer has 2"),
        ("01000000 06 01 02 01 00500800", 2, "leaves -62 of 16384"),
    ],
)
def test_header_that_breaks_a_rule_is_refused(hexadecimal: str, count: int, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        decode_trits(bytes.fromhex(hexadecimal), count)


def test_absurd_count_is_refused_before_it_is_allocated() -> None:
    for count in (-1, MOST_TRITS + 1, 10**15):
        with pytest.raises(ExportError, match="weights"):
            decode_trits(bytes.fromhex("00400000"), count)


@given(zero=st.integers(1, 16383), share=st.floats(0, 1))
def test_table_always_sums_up(zero: int, share: float) -> None:
    plus = round(share * (16384 - zero))
    for run_bits in range(7):
        if run_bits and (zero / 16384) ** (1 << run_bits) < 0.25:
            break  # not a run that the encoder takes
        frequencies = Table(zero, plus, run_bits).frequencies
        assert frequencies.sum() == 16384
        assert ((frequencies[:-1:2] > 0) == (plus > 0)).all()
        assert ((frequencies[1::2] > 0) == (zero + plus < 16384)).all()
        assert frequencies[-1] > 0
