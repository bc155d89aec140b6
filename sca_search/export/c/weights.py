"""Convolutions and linear layers as calls of kernels.

The weights are laid out in the order in which their kernel reads them, so that a kernel and its layout are chosen
together: a new kernel is a file in kernels/ and a function here.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import CONVOLUTION_KERNELS, COptions, choose_linear, choose_tiles
from sca_search.export.c.emit import (
    MOST_CHARACTERS,
    TRITS_A_CHARACTER,
    Call,
    Literal,
    Table,
    float_chunks,
    float_value,
    integers,
    pairs,
    struct,
    trit_chunks,
)
from sca_search.export.c.memory import Layout
from sca_search.export.c.tiles import CELLS, Numbers, Tiles, lists_of
from sca_search.export.graph.fuse import Step, is_convolution
from sca_search.export.graph.liveness import Living
from sca_search.export.graph.records import Convolution, Shape, Trits, WeightRecord

_MOST_TRITS = MOST_CHARACTERS * TRITS_A_CHARACTER
_MOST_FLOATS = MOST_CHARACTERS // 4
# Outputs of a dense convolution that share a loaded vector.
_OUTPUTS_AT_ONCE = 4
_FLOAT_BLOCK = 256  # inputs of a dense linear layer that are summed before they join the others
_SUM_LENGTH = (
    288  # weights of a convolution that are summed before they join the others: short sums lose less to rounding
)
_LISTED_AT_ONCE = 512  # the same for listed inputs, which are summed in eight parts


@dataclass(frozen=True)
class Given:
    """What a layer is given: the shape of its input, and how the maps of input, output and residual lie."""

    shape: Shape
    input: Layout
    output: Layout
    residual: Layout


@dataclass(frozen=True)
class TernaryConvolution:
    """A convolution without the outputs that nobody needs and the channels that are of no use, and how it is cut."""

    tiles: Tiles
    weight: Trits
    outputs: NDArray[np.bool_]
    channels: NDArray[np.bool_]


def weight_call(step: Step, name: str, given: Given, live: Living | None, options: COptions) -> Call:
    """A layer with weights, unless it is a ternary convolution."""
    record = step.record
    assert isinstance(record, WeightRecord)
    if is_convolution(record):
        return _float_convolution(step, name, given)
    return _float_linear(step, name) if live is None else _ternary_linear(step, name, live, options)


def _finish(step: Step, name: str) -> tuple[str, str]:
    """The definition of scale and bias, and the C value of a `struct finish`."""
    record = step.record
    assert isinstance(record, WeightRecord)
    lowest, highest = map(float_value, step.limits)
    return pairs(f"{name}_affine", record.scale, record.bias), f"{{{name}_affine, {lowest}, {highest}}}"


def _living_indices(name: str, mask: NDArray[np.bool_]) -> tuple[list[str], str]:
    """The definition of a list of places and its name; none where all of them live."""
    if mask.all():
        return [], "NULL"
    return [integers(name, np.flatnonzero(mask))], name


def _some(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """At least one: a kernel without outputs or inputs would be one more case."""
    kept = mask.copy()
    kept[0] |= not mask.any()
    return kept


def cut_convolution(
    record: Convolution, live: Living, given: Shape, border: int | None, options: COptions
) -> TernaryConvolution:
    """By the kernel that is chosen for a ternary convolution; its input can have so many rows of zeros as a border."""
    _check_taps(record, _MOST_TRITS)
    alone = record.groups == 1
    outputs = _some(live.outputs) if alone else np.ones(len(live.weight), dtype=bool)
    weight = live.weight[outputs]
    channels = _some(np.asarray(weight.any(axis=(0, 2, 3)))) if alone else np.ones(weight.shape[1], dtype=bool)
    kinds = _kinds(record, weight[:, channels], given)
    if border is not None and (tiles := _in_place(record, weight, given, border)):
        kinds["in-place"] = tiles
    if not kinds:
        size = " x ".join(map(str, weight.shape))
        raise ExportError(f"{record.name}: a ternary Convolution of {size} weights is too large for the C kernels")
    tiles = choose_tiles(record.name, weight[:, channels], kinds, options)
    if tiles.border is not None:
        channels = np.ones_like(channels)
    return TernaryConvolution(tiles, weight[:, channels], outputs, channels)


def ternary_convolution_call(step: Step, name: str, given: Given, cut: TernaryConvolution) -> Call:
    """A ternary convolution as it was cut."""
    record, tiles, weight = cut.tiles.record, cut.tiles, cut.weight
    output_lines, output_name = _living_indices(f"{name}_outputs", cut.outputs)
    channel_lines, channel_name = _living_indices(f"{name}_channels", cut.channels)
    left_out = int(np.count_nonzero(record.weight)) - int(np.count_nonzero(weight))
    trits = Literal(f"{name}_weights", trit_chunks(_convolution_rows(tiles, weight)))
    table = Table(
        lists_of(tiles, weight),
        "expand_convolution",
        trits,
        f"{tiles.combined} columns in {tiles.row_vectors} vectors, {sum(1 for _ in tiles.blocks())} blocks",
        left_out,
    )
    constants, described = _convolution_struct(step, name, given, tiles)
    described |= {"channels": channel_name, "outputs": output_name}
    return Call(
        f"ternary_convolution(&{name}, {{table}}, {tiles.planes_floats}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "ternary_convolution",
        constants=(*constants, *output_lines, *channel_lines, struct("convolution", name, described)),
        work_floats=tiles.planes_floats + tiles.sums_floats,
        table=table,
    )


def _kinds(record: Convolution, weight: Trits, given: Shape) -> dict[str, Tiles]:
    """The ways to lay out a convolution that its offsets have room for."""
    outputs, channels, rows, columns = weight.shape
    most = max(1, _SUM_LENGTH // (rows * columns))
    kinds = {
        kind: Tiles(record, channels * record.groups, outputs, given, combined, most)
        for kind, combined in CONVOLUTION_KERNELS.items()
        if kind != "in-place"
    }
    return {kind: tiles for kind, tiles in kinds.items() if tiles.fits}


def _in_place(record: Convolution, weight: Trits, given: Shape, border: int) -> Tiles | None:
    """Without anything laid out, all channels are summed at once: sums must not become too long for it."""
    outputs, channels, rows, columns = weight.shape
    tiles = Tiles(record, channels * record.groups, outputs, given, border=border)
    short = int(np.count_nonzero(weight, axis=(1, 2, 3)).max()) <= _SUM_LENGTH
    return tiles if tiles.fits and short and channels * rows * columns <= _MOST_TRITS else None


def _check_taps(record: Convolution, most: int) -> None:
    if math.prod(record.weight.shape[2:]) > most:
        size = " x ".join(map(str, record.weight.shape[2:]))
        raise ExportError(f"{record.name}: a Convolution in C may have {most} weights a kernel, this is {size}")


def _convolution_struct(step: Step, name: str, given: Given, tiles: Tiles) -> tuple[tuple[str, ...], dict[str, object]]:
    """Constants that a `struct convolution` refers to, and its fields."""
    record = tiles.record
    affine, finish = _finish(step, name)
    fields: dict[str, object] = {
        "in_height": given.shape[1],
        "in_width": given.shape[2],
        "out_height": record.shape[1],
        "out_width": record.shape[2],
        "in_row": given.input.row_step,
        "out_row": given.output.row_step,
        "residual_row": given.residual.row_step,
        "in_step": given.input.channel_step,
        "out_step": given.output.channel_step,
        "residual_step": given.residual.channel_step,
        "bordered": int(given.output.border is not None),
        "stride_y": record.stride[0],
        "stride_x": record.stride[1],
        "pad_top": record.padding[0],
        "pad_left": record.padding[2],
        "kernel_y": record.weight.shape[2],
        "kernel_x": record.weight.shape[3],
        "kernel_rows": f"{name}_rows",
        "kernel_columns": f"{name}_columns",
        "tile_rows": tiles.rows,
        "tile_cells": tiles.cells,
        "phases": tiles.phases,
        "phase_rows": tiles.phase_rows,
        "groups": record.groups,
        "group_inputs": tiles.group_inputs,
        "group_outputs": tiles.group_outputs,
        "block_groups": tiles.block_groups,
        "block": tiles.block,
        "combined": int(tiles.combined > 1),
        "laid": len(tiles.laid_cells),
        "laid_cells": f"{name}_cells" if tiles.laid_cells else "NULL",
        "row_floats": tiles.row_floats,
        "channels": "NULL",
        "outputs": "NULL",
        "finish": finish,
    }
    places = {"rows": tiles.kernel_rows, "columns": tiles.kernel_columns, "cells": tiles.laid_cells}
    return (affine, *(integers(f"{name}_{what}", values) for what, values in places.items() if values)), fields


def _convolution_rows(tiles: Tiles, weight: Any) -> Any:
    """The weights by block, output, channel of the block, row and column of the kernel: a block's in a row."""
    channels = min(tiles.block, tiles.group_inputs)
    rows = [
        _padded(weight[outputs, inputs].reshape(outputs.stop - outputs.start, -1), channels * weight[0, 0].size)
        for outputs, inputs, _ in tiles.blocks()
    ]
    return np.concatenate(rows)


def _padded(rows: Any, length: int) -> Any:
    return np.pad(rows, ((0, 0), (0, length - rows.shape[1])))


def _float_convolution(step: Step, name: str, given: Given) -> Call:
    record = step.record
    assert isinstance(record, Convolution)
    _check_taps(record, _MOST_FLOATS)
    taps = math.prod(record.weight.shape[2:])
    group_outputs = len(record.weight) // record.groups
    at_once = _OUTPUTS_AT_ONCE if group_outputs > 1 and taps * _OUTPUTS_AT_ONCE <= _MOST_FLOATS else 1
    most = max(1, min(_MOST_FLOATS // (taps * at_once), _SUM_LENGTH // taps))
    tiles = Tiles(record, given.shape[0], len(record.weight), given.shape, 1, most)
    weights = Literal(f"{name}_weights", float_chunks(_float_rows(tiles, record.weight, at_once)))
    constants, described = _convolution_struct(step, name, given, tiles)
    literal = f"static const struct literal {name}_floats = {weights.initializer};"
    sizes = f"{at_once}, {tiles.planes_floats}"
    return Call(
        f"float_convolution(&{name}, &{name}_floats, {sizes}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "float_convolution",
        (weights,),
        (*constants, struct("convolution", name, described), literal),
        work_floats=tiles.planes_floats + _OUTPUTS_AT_ONCE * tiles.rows * CELLS + tiles.sums_floats,
    )


def _float_rows(tiles: Tiles, weight: Any, at_once: int) -> Any:
    """A chunk has some outputs side by side for each channel, column and row of the kernel, in this order."""
    length = at_once * min(tiles.block, tiles.group_inputs) * weight[0, 0].size
    rows = []
    for outputs, channels, _ in tiles.blocks():
        for group in range(outputs.start, outputs.stop, tiles.group_outputs):
            for begin in range(group, group + tiles.group_outputs, at_once):
                some = weight[begin : min(begin + at_once, group + tiles.group_outputs), channels]
                rows.append(_padded(some.transpose(1, 3, 2, 0).reshape(1, -1), length))
    return np.concatenate(rows)


def _ternary_linear(step: Step, name: str, live: Living, options: COptions) -> Call:
    record = step.record
    assert isinstance(record, WeightRecord)
    kept = _some(live.outputs)
    weight = live.weight[kept].reshape(int(kept.sum()), -1)
    listed = int(np.count_nonzero(weight))
    kind = choose_linear(record.name, weight, listed, options)
    block = _linear_block(weight, listed if kind == "lists" else 0)
    numbers = linear_lists_of(weight, block) if kind == "lists" else linear_codes_of(weight)
    kernel = f"ternary_linear_{kind}"
    output_lines, output_name = _living_indices(f"{name}_outputs", kept)
    affine, finish = _finish(step, name)
    fields = {
        "inputs": weight.shape[1],
        "outputs": len(weight),
        "block": block,
        "outputs_read": output_name,
        "finish": finish,
    }
    layout = f"lists of {len(weight) * math.ceil(weight.shape[1] / block)} blocks" if kind == "lists" else "codes"
    return Call(
        f"{kernel}(&{name}, {{table}}, {{in0}}, {{out}}{', {work}' if kind == 'codes' else ''});",
        kernel,
        constants=(affine, *output_lines, struct("ternary_linear", name, fields)),
        work_floats=2 * weight.shape[1] if kind == "codes" else 0,
        table=Table(
            numbers,
            f"expand_linear_{kind}",
            Literal(f"{name}_weights", trit_chunks(_linear_rows(weight, block))),
            layout,
            int(np.count_nonzero(record.weight)) - listed,
        ),
    )


def _linear_block(weight: Trits, listed: int) -> int:
    """Inputs at a time: lists short enough for good sums; a chunk of trits lies in one literal."""
    inputs = int(weight.shape[1])
    blocks = max(1, math.ceil(listed / len(weight) / _LISTED_AT_ONCE), math.ceil(inputs / _MOST_TRITS))
    return math.ceil(inputs / blocks / TRITS_A_CHARACTER) * TRITS_A_CHARACTER


def _linear_rows(weight: Any, block: int) -> Any:
    """Block after block of an output's inputs, then the next output."""
    blocks = math.ceil(weight.shape[1] / block)
    return _padded(weight, blocks * block).reshape(len(weight) * blocks, block)


def linear_lists_of(weight: Trits, block: int) -> Numbers:
    """The lists that kernels/ternary_linear_lists.c reads."""
    rows = _linear_rows(weight, block)
    plus, minus = rows > 0, rows < 0
    lists = [
        np.concatenate(([p.sum(), m.sum()], np.flatnonzero(p), np.flatnonzero(m)))
        for p, m in zip(plus, minus, strict=True)
    ]
    return np.concatenate(lists).astype(np.uint16)


def linear_codes_of(weight: Trits) -> Numbers:
    """The numbers that kernels/ternary_linear_codes.c reads."""
    outputs, inputs = weight.shape
    groups = math.ceil(outputs / 64)
    bits = np.where(weight < 0, 2, weight).astype(np.uint16)
    bits = np.pad(bits, ((0, groups * 64 - outputs), (0, 0))).reshape(groups, 8, 8, inputs)  # group, shift, number
    shifts = (2 * np.arange(8, dtype=np.uint16)).reshape(1, 8, 1, 1)
    numbers: Numbers = np.bitwise_or.reduce(bits << shifts, axis=1).transpose(0, 2, 1).reshape(-1).astype(np.uint16)
    return numbers


def _float_linear(step: Step, name: str) -> Call:
    record = step.record
    assert isinstance(record, WeightRecord)
    weight = record.weight.reshape(len(record.weight), -1)
    outputs, inputs = weight.shape
    block = math.ceil(inputs / math.ceil(inputs / _FLOAT_BLOCK))
    weights = Literal(f"{name}_weights", float_chunks(_linear_rows(weight, block)))
    affine, finish = _finish(step, name)
    fields = {
        "inputs": inputs,
        "outputs": outputs,
        "block": block,
        "weights": weights.initializer,
        "finish": finish,
    }
    statement = f"float_linear(&{name}, {{in0}}, {{out}});"
    return Call(statement, "float_linear", (weights,), (affine, struct("float_linear", name, fields)))
