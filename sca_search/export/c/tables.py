"""Weights in the order in which their kernels read them, and the numbers that those of ternary layers read."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.export.c.tiles import AnyTiles, IntegerTiles, Tiles
from sca_search.export.graph.records import Trits

Numbers = NDArray[np.uint16]


def combined_trits(tiles: AnyTiles, outputs: slice, channels: slice) -> NDArray[np.int64]:
    """The number that each combination of an output's columns stands for, (outputs, combinations, kernel rows), for a
    block of the weight."""
    weight = tiles.weight[outputs, channels]
    columns = weight.transpose(0, 1, 3, 2).reshape(len(weight), -1, weight.shape[2]).astype(np.int64)
    groups = tiles.groups_of(weight.shape[1])
    powers = 3 ** np.concatenate([np.arange(count) for _, count in groups])
    values: NDArray[np.int64] = np.add.reduceat(columns * powers[:, None], [begin for begin, _ in groups], axis=1)
    return values


def entries(tiles: AnyTiles) -> int:
    """Number of additions per cell, over all outputs."""
    return sum(
        int(np.count_nonzero(combined_trits(tiles, outputs, channels))) for outputs, channels, _ in tiles.blocks()
    )


def lists_of(tiles: AnyTiles) -> Numbers:
    """The lists that kernels/ternary_convolution.c and kernels/integer_ternary_convolution.c read."""
    return np.concatenate([_block_lists(tiles, *block) for block in tiles.blocks()])


def _block_lists(tiles: AnyTiles, outputs: slice, channels: slice, edge: bool) -> Numbers:
    values = combined_trits(tiles, outputs, channels)
    offsets = tiles.offsets(values, channels.stop - channels.start).reshape(len(values), -1)
    values = values.reshape(len(values), -1)
    used = np.flatnonzero(values.any(axis=1) | edge)
    return np.insert(_lists(values[used], offsets[used], [outputs.start + used]), 0, len(used))


def linear_lists_of(weight: Trits, block: int) -> Numbers:
    """The lists that kernels/ternary_linear_lists.c reads."""
    rows = linear_rows(weight, block)
    return _lists(rows, np.broadcast_to(np.arange(block), rows.shape))


def _lists(signs: NDArray[Any], offsets: NDArray[Any], heads: list[NDArray[Any]] | None = None) -> Numbers:
    """For each row its head, how many it adds and subtracts, the offsets that it adds, and those that it subtracts."""
    rows, places = np.nonzero(signs)
    order = np.lexsort((signs[rows, places] < 0, rows))
    plus, minus = (signs > 0).sum(axis=1), (signs < 0).sum(axis=1)
    before = np.stack([*(heads or []), plus, minus], axis=1)
    begins = np.cumsum(plus + minus) - plus - minus
    numbers = np.insert(offsets[rows, places][order], np.repeat(begins, before.shape[1]), before.reshape(-1))
    return numbers.astype(np.uint16)


def linear_rows(weight: Any, block: int) -> Any:
    """Block after block of an output's inputs, then the next output."""
    blocks = math.ceil(weight.shape[1] / block)
    return padded(weight, blocks * block).reshape(len(weight) * blocks, block)


def padded(rows: Any, length: int) -> Any:
    """Rows with zeros behind."""
    return np.pad(rows, ((0, 0), (0, length - rows.shape[1])))


def linear_codes_of(weight: Trits) -> Numbers:
    """The numbers that kernels/ternary_linear_codes.c reads."""
    outputs, inputs = weight.shape
    groups = math.ceil(outputs / 64)
    bits = np.where(weight < 0, 2, weight).astype(np.uint16)
    bits = np.pad(bits, ((0, groups * 64 - outputs), (0, 0))).reshape(groups, 8, 8, inputs)  # group, shift, number
    shifts = (2 * np.arange(8, dtype=np.uint16)).reshape(1, 8, 1, 1)
    numbers: Numbers = np.bitwise_or.reduce(bits << shifts, axis=1).transpose(0, 2, 1).reshape(-1).astype(np.uint16)
    return numbers


def float_rows(tiles: Tiles, at_once: int) -> Any:
    """A chunk has some outputs side by side for each channel, column and row of the kernel, in this order."""
    length = at_once * min(tiles.block, tiles.group_inputs) * math.prod(tiles.weight.shape[2:])
    rows = []
    for outputs, channels, _ in tiles.blocks():
        for group in range(outputs.start, outputs.stop, tiles.group_outputs):
            for begin in range(group, group + tiles.group_outputs, at_once):
                chunk = tiles.weight[begin : min(begin + at_once, group + tiles.group_outputs), channels]
                rows.append(padded(chunk.transpose(1, 3, 2, 0).reshape(1, -1), length))
    return np.concatenate(rows)


def integer_chunks(tiles: IntegerTiles, at_once: int) -> NDArray[np.uint8]:
    """See kernels/integer_convolution.c."""
    pairs = math.ceil(tiles.listed / 2)
    chunks = []
    for outputs, channels, _ in tiles.blocks():
        for begin in range(outputs.start, outputs.stop, at_once):
            chunk = tiles.weight[begin : min(begin + at_once, outputs.stop), channels]
            rows = chunk.transpose(0, 1, 3, 2).reshape(len(chunk), -1)  # output, then channel, column, row
            numbers = np.zeros((at_once, 2 * pairs), dtype="<i2")
            numbers[: len(rows), : rows.shape[1]] = rows
            chunks.append(numbers.reshape(at_once, pairs, 2).transpose(1, 0, 2).reshape(1, -1))
    return np.ascontiguousarray(np.concatenate(chunks)).view(np.uint8)
