"""Convolutions and linear layers with integer activations as calls of kernels."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import INTEGER_CONVOLUTION_KERNELS, LINEAR_KERNELS, COptions
from sca_search.export.c.emit import (
    MOST_CHARACTERS,
    TRITS_A_CHARACTER,
    Call,
    Literal,
    Table,
    integers,
    struct,
    trit_chunks,
)
from sca_search.export.c.int8_tiles import CELLS, IntegerTiles, combinations, entries, integer_lists_of
from sca_search.export.c.weights import linear_codes_of, linear_lists_of
from sca_search.export.graph.fuse import is_convolution
from sca_search.export.graph.liveness import Living
from sca_search.export.graph.records import Convolution, Shape, WeightRecord
from sca_search.export.integer.model import IntegerStep, Weight
from sca_search.export.integer.requantize import Requantization

_OUTPUTS_AT_ONCE = 4
_BYTES_A_TAP = 2
# Cycles of two rows of eight cells: laid out in a plane, added to a sum, joined with other sums or finished.
_LAY, _ADD, _JOIN = 2.0, 0.55, 8.0
# Cycles of a listed input, of 64 coded weights, and the share of inputs that are not zero.
_LISTED, _CODED, _INPUTS = 0.9, 6.0, 0.8


def requantize_lines(name: str, to: Requantization) -> str:
    """The definition of an array of `struct requantize`."""
    lowest, highest = to.sum_limits
    rows = [
        "    {" + ", ".join(map(str, numbers)) + "},"
        for numbers in zip(to.factor, to.bias, to.other, lowest, highest, to.shift, strict=True)
    ]
    return f"static const struct requantize {name}[{len(rows)}] = {{\n" + "\n".join(rows) + "\n};"


def integer_weight_call(step: IntegerStep, name: str, given: Shape, live: Living | None, options: COptions) -> Call:
    """A layer with weights; `live` of those that are ternary."""
    record = step.step.record
    assert isinstance(record, WeightRecord)
    if not is_convolution(record):
        return _ternary_linear(step, name, live, options) if live else _linear(step, name)
    assert isinstance(record, Convolution)
    if live:
        return _ternary_convolution(step, record, name, given, live, options)
    return _convolution(step, record, name, given)


def _some(mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """At least one: a kernel without outputs or inputs would be one more case."""
    kept = mask.copy()
    kept[0] |= not mask.any()
    return kept


def _indices(name: str, mask: NDArray[np.bool_]) -> tuple[list[str], str]:
    """The definition of a list of places and its name; none where there are all."""
    return ([], "NULL") if mask.all() else ([integers(name, np.flatnonzero(mask))], name)


def _ternary_convolution(
    step: IntegerStep, record: Convolution, name: str, given: Shape, live: Living, options: COptions
) -> Call:
    alone = record.groups == 1
    outputs = _some(live.outputs) if alone else np.ones(len(live.weight), dtype=bool)
    weight = live.weight[outputs]
    channels = _some(np.asarray(weight.any(axis=(0, 2, 3)))) if alone else np.ones(weight.shape[1], dtype=bool)
    left_out = int(np.count_nonzero(record.weight)) - int(np.count_nonzero(weight))
    tiles = _chosen(record, weight[:, channels], options)
    output_lines, output_name = _indices(f"{name}_outputs", outputs)
    channel_lines, channel_name = _indices(f"{name}_channels", channels)
    planes = tiles.planes(1) if tiles.kernel_x > 1 else combinations(tiles.unit)
    blocks = sum(1 for _ in tiles.blocks())
    table = Table(
        integer_lists_of(tiles),
        "expand_integer_convolution",
        Literal(f"{name}_weights", trit_chunks(_rows(tiles))),
        f"{tiles.unit} columns in {planes} planes of {tiles.plane_cells} cells, {blocks} blocks",
        left_out,
    )
    constants, fields = _convolution_struct(step, name, given, tiles)
    fields |= {"channels": channel_name if alone else "NULL", "outputs": output_name}
    planes_bytes = _aligned(tiles.planes_bytes)
    return Call(
        f"integer_ternary_convolution(&{name}, {{table}}, {planes_bytes}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "integer_ternary_convolution",
        constants=(*constants, *output_lines, *channel_lines, struct("integer_convolution", name, fields)),
        work_floats=words(planes_bytes + tiles.sums_bytes),
        table=table,
    )


def words(size_bytes: int) -> int:
    """Scratch memory is counted in floats."""
    return math.ceil(size_bytes / 4)


def _aligned(size_bytes: int) -> int:
    return math.ceil(size_bytes / 64) * 64


def _chosen(record: Convolution, weight: Weight, options: COptions) -> IntegerTiles:
    """Of the ways to cut a ternary convolution that are possible, the cheapest, unless the user named one."""
    taps = math.prod(weight.shape[2:])
    # A chunk of trits, one output's of a block, lies in one literal.
    most = max(1, MOST_CHARACTERS * TRITS_A_CHARACTER // taps)
    kinds = {kind: IntegerTiles(record, weight, unit, most) for kind, unit in INTEGER_CONVOLUTION_KERNELS.items()}
    possible = {kind: tiles for kind, tiles in kinds.items() if tiles.fits}
    if not possible or taps > MOST_CHARACTERS * TRITS_A_CHARACTER:
        size = " x ".join(map(str, weight.shape))
        raise ExportError(f"{record.name}: a ternary Convolution of {size} weights is too large for integer kernels")
    named = options.kernels.get(record.name)
    if named is not None and named not in possible:
        raise ExportError(f"{record.name}: cannot have the kernel {named!r}, only {', '.join(possible)}")
    return possible[named] if named else min(possible.values(), key=_cycles)


def _cycles(tiles: IntegerTiles) -> float:
    """Of a whole map, roughly."""
    vectors = math.ceil(tiles.rows / 2)
    blocks = list(tiles.blocks())
    planes = sum(tiles.planes(channels.stop - channels.start) for _, channels, _ in blocks)
    joined = sum(outputs.stop - outputs.start for outputs, _, _ in blocks)
    laid = float(planes) * tiles.plane_cells / (2 * CELLS) * _LAY
    cycles: float = tiles.tiles * (laid + (entries(tiles) * _ADD + joined * _JOIN) * vectors)
    return cycles


def _convolution_struct(
    step: IntegerStep, name: str, given: Shape, tiles: IntegerTiles
) -> tuple[tuple[str, ...], dict[str, object]]:
    """Constants that a `struct integer_convolution` refers to, and its fields."""
    record, to = tiles.record, step.requantizations[0]
    fields: dict[str, object] = {
        "in_height": given[1],
        "in_width": given[2],
        "out_height": record.shape[1],
        "out_width": record.shape[2],
        "stride_y": record.stride[0],
        "stride_x": record.stride[1],
        "dilation_x": record.dilation[1],
        "pad_top": record.padding[0],
        "pad_left": record.padding[2],
        "kernel_y": record.weight.shape[2],
        "kernel_x": record.weight.shape[3],
        "kernel_rows": f"{name}_rows",
        "tile_rows": tiles.rows,
        "phases": tiles.phases,
        "phase_rows": tiles.phase_rows,
        "plane_cells": tiles.plane_cells,
        "groups": record.groups,
        "group_inputs": tiles.group_inputs,
        "group_outputs": tiles.group_outputs,
        "block": tiles.block,
        "unit": tiles.unit,
        "channels": "NULL",
        "outputs": "NULL",
        "finish": f"{name}_finish",
        "limits": f"{{{to.lowest}, {to.highest}}}",
    }
    return (requantize_lines(f"{name}_finish", to), integers(f"{name}_rows", tiles.kernel_rows)), fields


def _rows(tiles: IntegerTiles) -> Any:
    """The weights by block and output, a block's in a row: channel, row and column of the kernel."""
    length = min(tiles.block, tiles.group_inputs) * tiles.weight[0, 0].size
    rows = [
        _padded(tiles.weight[outputs, channels].reshape(outputs.stop - outputs.start, -1), length)
        for outputs, channels, _ in tiles.blocks()
    ]
    return np.concatenate(rows)


def _padded(rows: Any, length: int) -> Any:
    return np.pad(rows, ((0, 0), (0, length - rows.shape[1])))


def _convolution(step: IntegerStep, record: Convolution, name: str, given: Shape) -> Call:
    assert step.weight is not None
    taps = math.prod(record.weight.shape[2:])
    group_outputs = len(record.weight) // record.groups
    at_once = _OUTPUTS_AT_ONCE if group_outputs > 1 and _chunk_bytes(taps, _OUTPUTS_AT_ONCE) <= MOST_CHARACTERS else 1
    if _chunk_bytes(taps, at_once) > MOST_CHARACTERS:
        raise ExportError(f"{record.name}: a Convolution of {taps} weights a kernel is too large for integer kernels")
    most = max(1, (MOST_CHARACTERS // (_BYTES_A_TAP * at_once) - 1) // taps)
    tiles = IntegerTiles(record, step.weight, 1, most, sums_16=False)
    if not tiles.fits:
        raise ExportError(f"{record.name}: a Convolution of {taps} weights a kernel is too large for integer kernels")
    weights = Literal(f"{name}_weights", _dense_chunks(tiles, at_once))
    constants, fields = _convolution_struct(step, name, given, tiles)
    offsets = [
        column * tiles.plane_cells + row for column in range(tiles.block * tiles.kernel_x) for row in tiles.kernel_rows
    ]
    described = {
        "weights": weights.initializer,
        "offsets": f"{name}_offsets",
        "taps": taps,
        "outputs_at_once": at_once,
    }
    return Call(
        f"integer_convolution(&{name}, &{name}_dense, {_aligned(tiles.planes_bytes)}, {{in0}}, {{residual}}, {{out}},"
        " {work});",
        "integer_convolution",
        (weights,),
        (
            *constants,
            integers(f"{name}_offsets", offsets),
            struct("integer_convolution", name, fields),
            struct("integer_taps", f"{name}_dense", described),
        ),
        work_floats=words(
            _aligned(tiles.planes_bytes) + 4 * _OUTPUTS_AT_ONCE * (tiles.rows + 1) * CELLS + tiles.sums_bytes
        ),
    )


def _chunk_bytes(taps: int, outputs: int) -> int:
    return 2 * math.ceil(taps / 2) * _BYTES_A_TAP * outputs


def _dense_chunks(tiles: IntegerTiles, at_once: int) -> NDArray[np.uint8]:
    """See kernels/integer_convolution.c."""
    pairs = math.ceil(tiles.block * tiles.weight[0, 0].size / 2)
    chunks = []
    for outputs, channels, _ in tiles.blocks():
        for begin in range(outputs.start, outputs.stop, at_once):
            some = tiles.weight[begin : min(begin + at_once, outputs.stop), channels]
            rows = some.transpose(0, 1, 3, 2).reshape(len(some), -1)  # output, then channel, column, row
            numbers = np.zeros((at_once, 2 * pairs), dtype="<i2")
            numbers[: len(rows), : rows.shape[1]] = rows
            chunks.append(numbers.reshape(at_once, pairs, 2).transpose(1, 0, 2).reshape(1, -1))
    return np.ascontiguousarray(np.concatenate(chunks)).view(np.uint8)


def _ternary_linear(step: IntegerStep, name: str, live: Living, options: COptions) -> Call:
    record = step.step.record
    assert isinstance(record, WeightRecord)
    kept = np.ones(len(live.weight), dtype=bool) if step.is_logits else _some(live.outputs)
    weight = live.weight[kept].reshape(int(kept.sum()), -1)
    listed = int(np.count_nonzero(weight))
    kind = _chosen_linear(record.name, weight, listed, options)
    outputs, inputs = weight.shape
    blocks = math.ceil(inputs / (MOST_CHARACTERS * TRITS_A_CHARACTER))
    block = math.ceil(inputs / blocks / TRITS_A_CHARACTER) * TRITS_A_CHARACTER
    numbers = linear_lists_of(weight, block) if kind == "lists" else linear_codes_of(weight)
    output_lines, output_name = _indices(f"{name}_outputs", kept)
    fields = {"inputs": inputs, "outputs": outputs, "block": block, "outputs_read": output_name}
    finish_lines, finish, kernel = _finish(step, name, output_name, outputs)
    rows = _padded(weight, blocks * block).reshape(outputs * blocks, block)
    packed = f", (int32_t *){{work}} + {outputs}" if kind == "codes" else ""
    return Call(
        f"integer_linear_{kind}(&{name}, {{table}}, {{in0}}, (int32_t *){{work}}{packed});\n{finish}",
        f"integer_linear_{kind}",
        constants=(*output_lines, *finish_lines, struct("ternary_linear", name, fields)),
        work_floats=outputs + (2 * inputs + 2 if kind == "codes" else 0),
        table=Table(
            numbers,
            f"expand_linear_{kind}",
            Literal(f"{name}_weights", trit_chunks(rows)),
            f"lists of {outputs * blocks} blocks" if kind == "lists" else "codes",
            int(np.count_nonzero(record.weight)) - listed,
        ),
        more_kernels=(kernel,),
    )


def _chosen_linear(name: str, weight: Weight, listed: int, options: COptions) -> str:
    named = options.kernels.get(name)
    if named is not None:
        if named not in LINEAR_KERNELS:
            raise ExportError(f"{name}: cannot have the kernel {named!r}, only {', '.join(LINEAR_KERNELS)}")
        return named
    outputs, inputs = weight.shape
    coded = -(-outputs // 64) * inputs * _INPUTS * _CODED
    return "lists" if listed * _LISTED <= coded else "codes"


def _finish(step: IntegerStep, name: str, places: str, count: int) -> tuple[list[str], str, str]:
    """What becomes of the sums of a linear layer: definitions, a statement and its kernel."""
    to = step.requantizations[0]
    if not step.is_logits:
        statement = f"requantize_sums({name}_finish, {to.lowest}, {to.highest}, {places}, {{work}}, {count}, {{out}});"
        return [requantize_lines(f"{name}_finish", to)], statement, "requantize_sums"
    numbers = [f"    {{INT64_C({f}), INT64_C({b})}}," for f, b in zip(to.factor, to.bias, strict=True)]
    lines = f"static const struct logit {name}_finish[{count}] = {{\n" + "\n".join(numbers) + "\n};"
    statement = (
        f"requantize_logits({name}_finish, {to.shift[0]}, {to.lowest}, {to.highest}, {{unit}}, {{work}}, {count},"
        " {logits});"
    )
    return [lines], statement, "requantize_logits"


def _linear(step: IntegerStep, name: str) -> Call:
    assert step.weight is not None
    weight = step.weight.reshape(len(step.weight), -1)
    outputs, inputs = weight.shape
    blocks = math.ceil(inputs / MOST_CHARACTERS)
    block = math.ceil(inputs / blocks)
    rows = _padded(weight, blocks * block).reshape(outputs * blocks, block)
    weights = Literal(f"{name}_weights", np.ascontiguousarray(rows).view(np.uint8))
    finish_lines, finish, kernel = _finish(step, name, "NULL", outputs)
    fields = {"inputs": inputs, "outputs": outputs, "block": block, "weights": weights.initializer}
    return Call(
        f"integer_linear(&{name}, {{in0}}, {{work}});\n{finish}",
        "integer_linear",
        (weights,),
        (*finish_lines, struct("integer_linear", name, fields)),
        work_floats=outputs,
        more_kernels=(kernel,),
    )
