"""Convolutions and linear layers as calls of kernels.

The weights are laid out in the order in which their kernel reads them, so that a kernel and its layout are chosen
together: a new kernel is a file in kernels/ and a function here. What integer activations share is here, too; the rest
of theirs is in int8_weights.py.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import (
    CONVOLUTION_KERNELS,
    FLOAT_LINEAR,
    COptions,
    LinearCosts,
    choose_linear,
    choose_tiles,
)
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
from sca_search.export.c.tiles import CELLS, Numbers, Tiles, Tiling, lists_of
from sca_search.export.graph.fuse import Step, is_convolution
from sca_search.export.graph.liveness import Living
from sca_search.export.graph.records import Convolution, Shape, Trits, WeightRecord

MOST_TRITS = MOST_CHARACTERS * TRITS_A_CHARACTER
_MOST_FLOATS = MOST_CHARACTERS // 4
# Outputs of a dense convolution that share a loaded vector.
OUTPUTS_AT_ONCE = 4
_FLOAT_BLOCK = 256  # inputs of a dense linear layer that are summed before they join the others
# Weights of a convolution that are summed before they join the others: short sums lose less to rounding.
_SUM_LENGTH = 288

Fields = dict[str, object]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class LayerMaps:
    """The shape of a layer's input, and the memory layouts of input, output and residual."""

    shape: Shape
    input: Layout
    output: Layout
    residual: Layout


@dataclass(frozen=True)
class LivePart:
    """A ternary convolution without the outputs that nothing reads and the channels without non-zero weights."""

    weight: Trits  # (outputs, channels per group, rows, columns)
    outputs: Mask
    channels: Mask

    @classmethod
    def of(cls, record: Convolution, live: Living) -> "LivePart":
        """Of grouped convolutions, all: their channels follow from their outputs."""
        alone = record.groups == 1
        outputs = some(live.outputs) if alone else np.ones(len(live.weight), dtype=bool)
        weight = live.weight[outputs]
        channels = some(np.asarray(weight.any(axis=(0, 2, 3)))) if alone else np.ones(weight.shape[1], dtype=bool)
        return cls(weight, outputs, channels)


@dataclass(frozen=True)
class TernaryConvolution:
    """How a convolution is cut, and which outputs and channels its tiles have."""

    tiles: Tiles
    outputs: Mask
    channels: Mask


@dataclass(frozen=True)
class TernaryLinear:
    """What the kernels of a ternary linear layer read, with float or integer activations."""

    kind: str  # one of LINEAR_KERNELS
    fields: Fields  # of a `struct ternary_linear`
    table: Table
    constants: tuple[str, ...]


def weight_call(step: Step, name: str, maps: LayerMaps, live: Living | None, options: COptions) -> Call:
    """A layer with weights, unless it is a ternary convolution."""
    record = step.record
    assert isinstance(record, WeightRecord)
    if is_convolution(record):
        return _float_convolution(step, name, maps)
    return _float_linear(step, record, name) if live is None else _ternary_linear(step, record, name, live, options)


def _finish(step: Step, name: str) -> tuple[str, str]:
    """The definition of scale and bias, and the C value of a `struct finish`."""
    record = step.record
    assert isinstance(record, WeightRecord)
    lowest, highest = map(float_value, step.limits)
    return pairs(f"{name}_affine", record.scale, record.bias), f"{{{name}_affine, {lowest}, {highest}}}"


def indices(name: str, mask: Mask) -> tuple[tuple[str, ...], str]:
    """The definition of a list of indices and its name; none where the mask is all true."""
    return ((), "NULL") if mask.all() else ((integers(name, np.flatnonzero(mask)),), name)


def some(mask: Mask) -> Mask:
    """At least one: a kernel without outputs or inputs would be one more case."""
    result = mask.copy()
    result[0] |= not mask.any()
    return result


def cut_convolution(
    record: Convolution, live: Living, input_shape: Shape, border: int | None, options: COptions
) -> TernaryConvolution:
    """Cut for the kernel chosen for a ternary convolution; its input can have `border` rows of zeros."""
    _check_taps(record, MOST_TRITS)
    part = LivePart.of(record, live)
    kinds = _kinds(record, part.weight[:, part.channels], input_shape)
    if border is not None and (in_place := _in_place(record, part.weight, input_shape, border)):
        kinds["in-place"] = in_place
    if not kinds:
        size = " x ".join(map(str, part.weight.shape))
        raise ExportError(f"{record.name}: a ternary Convolution of {size} weights is too large for the C kernels")
    tiles = choose_tiles(record.name, kinds, options)
    channels = part.channels if tiles.border is None else np.ones_like(part.channels)
    return TernaryConvolution(tiles, part.outputs, channels)


def ternary_convolution_call(step: Step, name: str, maps: LayerMaps, cut: TernaryConvolution) -> Call:
    """A ternary convolution as it was cut."""
    tiles = cut.tiles
    output_lines, output_name = indices(f"{name}_outputs", cut.outputs)
    channel_lines, channel_name = indices(f"{name}_channels", cut.channels)
    columns = f"{tiles.combined} columns in {tiles.row_vectors} vectors"
    constants, fields = _convolution_struct(step, name, maps, tiles)
    fields |= {"channels": channel_name, "outputs": output_name}
    return Call(
        f"ternary_convolution(&{name}, {{table}}, {tiles.planes_floats}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "ternary_convolution",
        constants=(*constants, *output_lines, *channel_lines, struct("convolution", name, fields)),
        work_floats=tiles.planes_floats + tiles.sums_floats,
        table=convolution_table(tiles, name, "expand_convolution", columns),
    )


def convolution_table(tiles: Tiling, name: str, expander: str, columns: str) -> Table:
    """The trits of a convolution: those of a block and output, by channel, row and column of the kernel, in a row."""
    channels = min(tiles.block, tiles.group_inputs)
    rows = [
        _padded(tiles.weight[outputs, inputs].reshape(outputs.stop - outputs.start, -1), channels * _taps(tiles.record))
        for outputs, inputs, _ in tiles.blocks()
    ]
    return Table(
        lists_of(tiles),
        expander,
        Literal(f"{name}_weights", trit_chunks(np.concatenate(rows))),
        f"{columns}, {sum(1 for _ in tiles.blocks())} blocks",
        int(np.count_nonzero(tiles.record.weight)) - int(np.count_nonzero(tiles.weight)),
    )


def _taps(record: Convolution) -> int:
    return math.prod(record.weight.shape[2:])


def _kinds(record: Convolution, weight: Trits, input_shape: Shape) -> dict[str, Tiles]:
    """The layouts of a convolution whose offsets fit into two bytes."""
    most = max(1, _SUM_LENGTH // _taps(record))
    kinds = {
        kind: Tiles(record, weight, combined, most, input_shape)
        for kind, combined in CONVOLUTION_KERNELS.items()
        if kind != "in-place"
    }
    return {kind: tiles for kind, tiles in kinds.items() if tiles.fits}


def _in_place(record: Convolution, weight: Trits, input_shape: Shape, border: int) -> Tiles | None:
    """Without anything laid out, all channels are summed at once: sums must not become too long for it."""
    tiles = Tiles(record, weight, input_shape=input_shape, border=border)
    short = int(np.count_nonzero(weight, axis=(1, 2, 3)).max()) <= _SUM_LENGTH
    return tiles if tiles.fits and short and weight[0].size <= MOST_TRITS else None


def _check_taps(record: Convolution, most: int) -> None:
    if _taps(record) > most:
        size = " x ".join(map(str, record.weight.shape[2:]))
        raise ExportError(f"{record.name}: a Convolution in C may have {most} weights per kernel, this is {size}")


def map_fields(record: Convolution, input_shape: Shape) -> Fields:
    """The sizes of input and output, the first fields of a convolution's struct."""
    names = ("in_height", "in_width", "out_height", "out_width")
    return dict(zip(names, (*input_shape[1:], *record.shape[1:]), strict=True))


def kernel_fields(record: Convolution, name: str) -> Fields:
    """Padding and kernel."""
    names = ("pad_top", "pad_left", "kernel_y", "kernel_x", "kernel_rows")
    return dict(zip(names, (*record.padding[::2], *record.weight.shape[2:], f"{name}_rows"), strict=True))


def group_fields(tiles: Tiling) -> Fields:
    """Groups and their channels."""
    return {
        "groups": tiles.record.groups,
        "group_inputs": tiles.group_inputs,
        "group_outputs": tiles.group_outputs,
    }


def _convolution_struct(step: Step, name: str, maps: LayerMaps, tiles: Tiles) -> tuple[tuple[str, ...], Fields]:
    """Constants that a `struct convolution` refers to, and its fields."""
    record = tiles.record
    affine, finish = _finish(step, name)
    fields: Fields = {
        **map_fields(record, maps.shape),
        "in_row": maps.input.row_step,
        "out_row": maps.output.row_step,
        "residual_row": maps.residual.row_step,
        "in_step": maps.input.channel_step,
        "out_step": maps.output.channel_step,
        "residual_step": maps.residual.channel_step,
        "bordered": int(maps.output.border is not None),
        "stride_y": record.stride[0],
        "stride_x": record.stride[1],
        **kernel_fields(record, name),
        "kernel_columns": f"{name}_columns",
        "tile_rows": tiles.rows,
        "tile_cells": tiles.cells,
        "phases": tiles.phases,
        "phase_rows": tiles.phase_rows,
        **group_fields(tiles),
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


def _padded(rows: Any, length: int) -> Any:
    return np.pad(rows, ((0, 0), (0, length - rows.shape[1])))


def _float_convolution(step: Step, name: str, maps: LayerMaps) -> Call:
    record = step.record
    assert isinstance(record, Convolution)
    _check_taps(record, _MOST_FLOATS)
    taps = _taps(record)
    group_outputs = len(record.weight) // record.groups
    at_once = OUTPUTS_AT_ONCE if group_outputs > 1 and taps * OUTPUTS_AT_ONCE <= _MOST_FLOATS else 1
    most = max(1, min(_MOST_FLOATS // (taps * at_once), _SUM_LENGTH // taps))
    tiles = Tiles(record, record.weight, 1, most, maps.shape)
    weights = Literal(f"{name}_weights", float_chunks(_float_rows(tiles, at_once)))
    constants, fields = _convolution_struct(step, name, maps, tiles)
    literal = f"static const struct literal {name}_floats = {weights.initializer};"
    sizes = f"{at_once}, {tiles.planes_floats}"
    return Call(
        f"float_convolution(&{name}, &{name}_floats, {sizes}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "float_convolution",
        (weights,),
        (*constants, struct("convolution", name, fields), literal),
        work_floats=tiles.planes_floats + OUTPUTS_AT_ONCE * tiles.rows * CELLS + tiles.sums_floats,
    )


def _float_rows(tiles: Tiles, at_once: int) -> Any:
    """A chunk has some outputs side by side for each channel, column and row of the kernel, in this order."""
    length = at_once * min(tiles.block, tiles.group_inputs) * _taps(tiles.record)
    rows = []
    for outputs, channels, _ in tiles.blocks():
        for group in range(outputs.start, outputs.stop, tiles.group_outputs):
            for begin in range(group, group + tiles.group_outputs, at_once):
                chunk = tiles.weight[begin : min(begin + at_once, group + tiles.group_outputs), channels]
                rows.append(_padded(chunk.transpose(1, 3, 2, 0).reshape(1, -1), length))
    return np.concatenate(rows)


def _ternary_linear(step: Step, record: WeightRecord, name: str, live: Living, options: COptions) -> Call:
    layer = ternary_linear(record, name, live.weight, some(live.outputs), FLOAT_LINEAR, options)
    kernel = f"ternary_linear_{layer.kind}"
    affine, finish = _finish(step, name)
    coded = layer.kind == "codes"
    return Call(
        f"{kernel}(&{name}, {{table}}, {{in0}}, {{out}}{', {work}' if coded else ''});",
        kernel,
        constants=(affine, *layer.constants, struct("ternary_linear", name, layer.fields | {"finish": finish})),
        work_floats=2 * live.weight[0].size if coded else 0,
        table=layer.table,
    )


def ternary_linear(
    record: WeightRecord, name: str, trits: Trits, outputs: Mask, costs: LinearCosts, options: COptions
) -> TernaryLinear:
    """A ternary linear layer with these of its outputs, for the kernel that costs least."""
    weight = trits[outputs].reshape(int(outputs.sum()), -1)
    listed = int(np.count_nonzero(weight))
    kind = choose_linear(record.name, weight, costs, options)
    block = _linear_block(weight, listed / costs.most_listed if kind == "lists" else 0.0)
    rows = linear_rows(weight, block)
    numbers = linear_lists_of(weight, block) if kind == "lists" else linear_codes_of(weight)
    lines, output_name = indices(f"{name}_outputs", outputs)
    fields = {"inputs": weight.shape[1], "outputs": len(weight), "block": block, "outputs_read": output_name}
    table = Table(
        numbers,
        f"expand_linear_{kind}",
        Literal(f"{name}_weights", trit_chunks(rows)),
        f"lists of {len(rows)} blocks" if kind == "lists" else "codes",
        int(np.count_nonzero(record.weight)) - listed,
    )
    return TernaryLinear(kind, fields, table, lines)


def _linear_block(weight: Trits, lists: float) -> int:
    """Inputs at a time: short lists, of which all outputs together need `lists`, and a chunk of trits per literal."""
    inputs = int(weight.shape[1])
    blocks = max(1, math.ceil(lists / len(weight)), math.ceil(inputs / MOST_TRITS))
    return math.ceil(inputs / blocks / TRITS_A_CHARACTER) * TRITS_A_CHARACTER


def linear_rows(weight: Any, block: int) -> Any:
    """Block after block of an output's inputs, then the next output."""
    blocks = math.ceil(weight.shape[1] / block)
    return _padded(weight, blocks * block).reshape(len(weight) * blocks, block)


def linear_lists_of(weight: Trits, block: int) -> Numbers:
    """The lists that kernels/ternary_linear_lists.c reads."""
    rows = linear_rows(weight, block)
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


def _float_linear(step: Step, record: WeightRecord, name: str) -> Call:
    weight = record.weight.reshape(len(record.weight), -1)
    outputs, inputs = weight.shape
    block = math.ceil(inputs / math.ceil(inputs / _FLOAT_BLOCK))
    weights = Literal(f"{name}_weights", float_chunks(linear_rows(weight, block)))
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
