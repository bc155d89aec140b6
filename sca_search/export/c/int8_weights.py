"""Convolutions and linear layers with integer activations as calls of kernels."""

import math

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.c import weights as w
from sca_search.export.c.choose_kernel import (
    INTEGER_CONVOLUTION_KERNELS,
    INTEGER_LINEAR,
    COptions,
    choose_integer_tiles,
)
from sca_search.export.c.emit import MOST_CHARACTERS, Call, Literal, integers, struct
from sca_search.export.c.int8_tiles import IntegerTiles
from sca_search.export.c.tiles import CELLS, combinations
from sca_search.export.graph.fuse import is_convolution
from sca_search.export.graph.liveness import Living
from sca_search.export.graph.records import Convolution, Shape, Trits, WeightRecord
from sca_search.export.integer.model import IntegerStep
from sca_search.export.integer.requantize import Requantization

_BYTES_PER_TAP = 2


def requantize_lines(name: str, to: Requantization) -> str:
    """The definition of an array of `struct requantize`."""
    lowest, highest = to.sum_limits
    rows = [
        "    {" + ", ".join(map(str, numbers)) + "},"
        for numbers in zip(to.factor, to.bias, to.other, lowest, highest, to.shift, strict=True)
    ]
    return f"static const struct requantize {name}[{len(rows)}] = {{\n" + "\n".join(rows) + "\n};"


def integer_weight_call(
    step: IntegerStep, name: str, input_shape: Shape, live: Living | None, options: COptions
) -> Call:
    """A layer with weights; `live` of those that are ternary."""
    record = step.record
    assert isinstance(record, WeightRecord)
    if not is_convolution(record):
        return _ternary_linear(step, record, name, live, options) if live else _linear(step, name)
    assert isinstance(record, Convolution)
    if live:
        return _ternary_convolution(step, record, name, input_shape, live, options)
    return _convolution(step, record, name, input_shape)


def _ternary_convolution(
    step: IntegerStep, record: Convolution, name: str, input_shape: Shape, live: Living, options: COptions
) -> Call:
    part = w.LivePart.of(record, live)
    tiles = _tiles(record, part.weight[:, part.channels], options)
    output_lines, output_name = w.indices(f"{name}_outputs", part.outputs)
    channel_lines, channel_name = w.indices(f"{name}_channels", part.channels)
    planes = tiles.planes(1) if tiles.kernel_x > 1 else combinations(tiles.combined)
    columns = f"{tiles.combined} columns in {planes} planes of {tiles.plane_cells} cells"
    constants, fields = _convolution_struct(step, name, input_shape, tiles)
    fields |= {"channels": channel_name, "outputs": output_name}
    planes_bytes = _aligned(tiles.planes_bytes)
    return Call(
        f"integer_ternary_convolution(&{name}, {{table}}, {planes_bytes}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "integer_ternary_convolution",
        constants=(*constants, *output_lines, *channel_lines, struct("integer_convolution", name, fields)),
        work_floats=_words(planes_bytes + tiles.sums_bytes),
        table=w.convolution_table(tiles, name, "expand_integer_convolution", columns),
    )


def _words(size_bytes: int) -> int:
    """Scratch memory is counted in floats."""
    return math.ceil(size_bytes / 4)


def _aligned(size_bytes: int) -> int:
    return math.ceil(size_bytes / 64) * 64


def _tiles(record: Convolution, weight: Trits, options: COptions) -> IntegerTiles:
    taps = math.prod(weight.shape[2:])
    # A chunk of trits, those of one output and block, lies in one literal.
    most = max(1, w.MOST_TRITS // taps)
    kinds = {kind: IntegerTiles(record, weight, columns, most) for kind, columns in INTEGER_CONVOLUTION_KERNELS.items()}
    possible = {kind: tiles for kind, tiles in kinds.items() if tiles.fits}
    if not possible or taps > w.MOST_TRITS:
        size = " x ".join(map(str, weight.shape))
        raise ExportError(f"{record.name}: a ternary Convolution of {size} weights is too large for integer kernels")
    return choose_integer_tiles(record.name, possible, options)


def _convolution_struct(
    step: IntegerStep, name: str, input_shape: Shape, tiles: IntegerTiles
) -> tuple[tuple[str, ...], w.Fields]:
    """Constants that a `struct integer_convolution` refers to, and its fields."""
    record, to = tiles.record, step.requantizations[0]
    fields: w.Fields = {
        **w.map_fields(record, input_shape),
        "stride_y": record.stride[0],
        "stride_x": record.stride[1],
        "dilation_x": record.dilation[1],
        **w.kernel_fields(record, name),
        "tile_rows": tiles.rows,
        "phases": tiles.phases,
        "phase_rows": tiles.phase_rows,
        "plane_cells": tiles.plane_cells,
        **w.group_fields(tiles),
        "block": tiles.block,
        "unit": tiles.combined,
        "channels": "NULL",
        "outputs": "NULL",
        "finish": f"{name}_finish",
        "limits": f"{{{to.lowest}, {to.highest}}}",
    }
    return (requantize_lines(f"{name}_finish", to), integers(f"{name}_rows", tiles.kernel_cells)), fields


def _convolution(step: IntegerStep, record: Convolution, name: str, input_shape: Shape) -> Call:
    assert step.weight is not None
    taps = math.prod(record.weight.shape[2:])
    group_outputs = len(record.weight) // record.groups
    fits = _chunk_bytes(taps, w.OUTPUTS_AT_ONCE) <= MOST_CHARACTERS
    at_once = w.OUTPUTS_AT_ONCE if group_outputs > 1 and fits else 1
    most = max(1, (MOST_CHARACTERS // (_BYTES_PER_TAP * at_once) - 1) // taps)
    tiles = IntegerTiles(record, step.weight, 1, most, sums_16=False)
    if _chunk_bytes(taps, at_once) > MOST_CHARACTERS or not tiles.fits:
        raise ExportError(f"{record.name}: a Convolution of {taps} weights per kernel is too large for integer kernels")
    weights = Literal(f"{name}_weights", _dense_chunks(tiles, at_once))
    constants, fields = _convolution_struct(step, name, input_shape, tiles)
    columns = range(tiles.block * tiles.kernel_x)
    offsets = [column * tiles.plane_cells + row for column in columns for row in tiles.kernel_cells]
    dense = {
        "weights": weights.initializer,
        "offsets": f"{name}_offsets",
        "taps": taps,
        "outputs_at_once": at_once,
    }
    planes_bytes = _aligned(tiles.planes_bytes)
    return Call(
        f"integer_convolution(&{name}, &{name}_dense, {planes_bytes}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "integer_convolution",
        (weights,),
        (
            *constants,
            integers(f"{name}_offsets", offsets),
            struct("integer_convolution", name, fields),
            struct("integer_taps", f"{name}_dense", dense),
        ),
        work_floats=_words(planes_bytes + 4 * w.OUTPUTS_AT_ONCE * (tiles.rows + 1) * CELLS + tiles.sums_bytes),
    )


def _chunk_bytes(taps: int, outputs: int) -> int:
    return 2 * math.ceil(taps / 2) * _BYTES_PER_TAP * outputs


def _dense_chunks(tiles: IntegerTiles, at_once: int) -> NDArray[np.uint8]:
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


def _ternary_linear(step: IntegerStep, record: WeightRecord, name: str, live: Living, options: COptions) -> Call:
    outputs = np.ones(len(live.weight), dtype=bool) if step.is_logits else w.some(live.outputs)
    layer = w.ternary_linear(record, name, live.weight, outputs, INTEGER_LINEAR, options)
    count, inputs = int(outputs.sum()), live.weight[0].size
    lines, finish, finisher = _finish(step, name, str(layer.fields["outputs_read"]), count)
    kernel, coded = f"integer_linear_{layer.kind}", layer.kind == "codes"
    packed = f", (int32_t *){{work}} + {count}" if coded else ""
    return Call(
        f"{kernel}(&{name}, {{table}}, {{in0}}, (int32_t *){{work}}{packed});\n{finish}",
        kernel,
        constants=(*layer.constants, lines, struct("ternary_linear", name, layer.fields)),
        work_floats=count + (2 * inputs + 2 if coded else 0),
        table=layer.table,
        more_kernels=(finisher,),
    )


def _finish(step: IntegerStep, name: str, places: str, count: int) -> tuple[str, str, str]:
    """How the sums of a linear layer become its outputs: definition, statement and kernel."""
    to = step.requantizations[0]
    if not step.is_logits:
        statement = f"requantize_sums({name}_finish, {to.lowest}, {to.highest}, {places}, {{work}}, {count}, {{out}});"
        return requantize_lines(f"{name}_finish", to), statement, "requantize_sums"
    numbers = [f"    {{INT64_C({f}), INT64_C({b})}}," for f, b in zip(to.factor, to.bias, strict=True)]
    lines = f"static const struct logit {name}_finish[{count}] = {{\n" + "\n".join(numbers) + "\n};"
    statement = (
        f"requantize_logits({name}_finish, {to.shift[0]}, {to.lowest}, {to.highest}, {{unit}}, {{work}}, {count},"
        " {logits});"
    )
    return lines, statement, "requantize_logits"


def _linear(step: IntegerStep, name: str) -> Call:
    assert step.weight is not None
    weight = step.weight.reshape(len(step.weight), -1)
    outputs, inputs = weight.shape
    block = math.ceil(inputs / math.ceil(inputs / MOST_CHARACTERS))
    rows = np.ascontiguousarray(w.linear_rows(weight, block))
    weights = Literal(f"{name}_weights", rows.view(np.uint8))
    lines, finish, finisher = _finish(step, name, "NULL", outputs)
    fields = {"inputs": inputs, "outputs": outputs, "block": block, "weights": weights.initializer}
    return Call(
        f"integer_linear(&{name}, {{in0}}, {{work}});\n{finish}",
        "integer_linear",
        (weights,),
        (lines, struct("integer_linear", name, fields)),
        work_floats=outputs,
        more_kernels=(finisher,),
    )
