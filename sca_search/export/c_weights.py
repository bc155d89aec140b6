"""Convolutions and linear layers as calls of kernels.

The weights are laid out in the order in which their kernel reads them, so that a kernel and its layout are chosen
together: a new kernel is a file in kernels/ and a function here.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.c_call import Call, pairs, struct
from sca_search.export.c_literals import MOST_CHARACTERS, TRITS_A_CHARACTER, Literal, float_chunks, trit_chunks
from sca_search.export.records import Convolution, Linear, Shape, WeightRecord

# Products that are summed before they join the others: short sums lose less to rounding.
SUM_LENGTH = 144
LINEAR_BLOCK = 256
# Channels that are laid out at a time, so that they stay in a first-level cache.
CHANNEL_BLOCK = 16


def _weights(name: str, rows: Any) -> Literal:
    return Literal(name, trit_chunks(rows) if rows.dtype == np.int8 else float_chunks(rows))


def _weight_call(record: WeightRecord, name: str, kind: str, rows: Any, fields: Mapping[str, object]) -> Call:
    weights, affine = _weights(f"{name}_weights", rows), pairs(f"{name}_affine", record.scale, record.bias)
    described = dict(fields) | {"weights": weights.initializer, "affine": affine.initializer}
    kernel = f"{'ternary' if record.ternary else 'float'}_{kind}"
    work = ", {work}" if kind == "convolution" else ""
    return Call(
        f"{kernel}(&{name}, {{in0}}, {{out}}{work});",
        kernel,
        literals=(weights, affine),
        tables=(struct(kind, name, described),),
        trits=weights if record.ternary else None,
    )


def linear_call(record: Linear | Convolution, name: str, _: tuple[Shape, ...]) -> Call:
    """A linear layer: block after block of an output's inputs, then the next output."""
    weight = record.weight.reshape(len(record.weight), -1)
    outputs, inputs = weight.shape
    blocks = math.ceil(inputs / LINEAR_BLOCK)
    block = math.ceil(inputs / blocks / TRITS_A_CHARACTER) * TRITS_A_CHARACTER
    rows = np.pad(weight, ((0, 0), (0, blocks * block - inputs))).reshape(outputs * blocks, block)
    return _weight_call(record, name, "linear", rows, {"inputs": inputs, "outputs": outputs, "block": block})


def convolution_call(record: Convolution, name: str, inputs: tuple[Shape, ...]) -> Call:
    """A convolution; one of a single cell is a linear layer."""
    if inputs[0][1:] == record.weight.shape[2:] == (1, 1) and record.padding == (0, 0, 0, 0) and record.groups == 1:
        return linear_call(record, name, inputs)
    taps = math.prod(record.weight.shape[2:])
    most_taps = MOST_CHARACTERS * TRITS_A_CHARACTER if record.ternary else MOST_CHARACTERS // 4
    if taps > most_taps:
        size = " x ".join(map(str, record.weight.shape[2:]))
        raise ExportError(f"{record.name}: a Convolution in C may have {most_taps} weights a kernel, this is {size}")
    layout = _layout(record, inputs[0])
    block = _block(record.weight.shape[1], taps, bool(layout["ready"]), most_taps)
    fields = layout | {"block": block, "taps": taps, "tap_offsets": f"{name}_taps"}
    call = _weight_call(record, name, "convolution", _convolution_rows(record, block), fields)
    offsets = ", ".join(map(str, _tap_offsets(record, layout)))
    run = (record.shape[1] - 1) * layout["plane_width"] + record.shape[2]
    channel = layout["phases_y"] * layout["phases_x"] * layout["plane_height"] * layout["plane_width"]
    return replace(
        call,
        tables=(f"static const size_t {name}_taps[{taps}] = {{{offsets}}};", *call.tables),
        work_floats=run + (0 if layout["ready"] else block * channel),
    )


def _layout(record: Convolution, given: Shape) -> dict[str, int]:
    """The sizes in `struct convolution`: those of the maps, and of the planes that a channel is laid out in."""
    spans = [(size - 1) * step for size, step in zip(record.weight.shape[2:], record.dilation, strict=True)]
    (stride_y, stride_x), (top, bottom, left, right) = record.stride, record.padding
    plane_height, plane_width = record.shape[1] + spans[0] // stride_y, record.shape[2] + spans[1] // stride_x
    unpadded = top == bottom == left == right == 0
    return {
        "in_height": given[1],
        "in_width": given[2],
        "out_height": record.shape[1],
        "out_width": record.shape[2],
        "groups": record.groups,
        "group_inputs": record.weight.shape[1],
        "group_outputs": record.shape[0] // record.groups,
        "stride_y": stride_y,
        "stride_x": stride_x,
        "pad_top": top,
        "pad_left": left,
        # A kernel shorter than the stride does not reach all phases.
        "phases_y": min(stride_y, spans[0] + 1),
        "phases_x": min(stride_x, spans[1] + 1),
        "plane_height": plane_height,
        "plane_width": plane_width,
        "ready": int(unpadded and record.stride == (1, 1)),
    }


def _tap_offsets(record: Convolution, layout: Mapping[str, int]) -> list[int]:
    """Where the cells begin that each weight of a kernel is multiplied with, within a channel's planes."""
    height, width, stride_y, stride_x = (layout[f] for f in ("plane_height", "plane_width", "stride_y", "stride_x"))
    offsets = []
    for y in range(0, record.weight.shape[2] * record.dilation[0], record.dilation[0]):
        for x in range(0, record.weight.shape[3] * record.dilation[1], record.dilation[1]):
            phase = y % stride_y * layout["phases_x"] + x % stride_x
            offsets.append((phase * height + y // stride_y) * width + x // stride_x)
    return offsets


def _block(channels: int, taps: int, ready: bool, most_taps: int) -> int:
    """Input channels at a time, evenly: 17 are better 9 and 8 than 16 and 1, since chunks are of one size."""
    most = max(1, min(SUM_LENGTH // taps if ready else min(SUM_LENGTH // taps, CHANNEL_BLOCK), most_taps // taps))
    return math.ceil(channels / math.ceil(channels / most))


def _convolution_rows(record: Convolution, block: int) -> Any:
    """The weights by group, block, output, channel of the block, row and column of the kernel: a block's in a row."""
    outputs, channels, *kernel = record.weight.shape
    blocks = math.ceil(channels / block)
    padded = np.pad(record.weight, ((0, 0), (0, blocks * block - channels), (0, 0), (0, 0)))
    grouped = padded.reshape(record.groups, outputs // record.groups, blocks, block * math.prod(kernel))
    return grouped.transpose(0, 2, 1, 3).reshape(outputs * blocks, -1)
