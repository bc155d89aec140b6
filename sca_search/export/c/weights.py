"""Convolutions and linear layers as calls of kernels, with float and with integer activations.

The weights are laid out in the order in which their kernel reads them, so that a kernel and its layout are chosen
together: a new kernel is a file in kernels/ and a function here.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.c import choose_kernel as choose
from sca_search.export.c import emit, tables
from sca_search.export.c.emit import MOST_CHARACTERS, TRITS_A_CHARACTER, Call, Literal, Table, named
from sca_search.export.c.memory import Layout
from sca_search.export.c.tiles import CELLS, AnyTiles, IntegerTiles, Tiles
from sca_search.export.graph.fuse import Step
from sca_search.export.graph.liveness import Living
from sca_search.export.graph.records import Convolution, Shape, Trits, WeightRecord
from sca_search.export.integer.model import IntegerStep
from sca_search.export.integer.requantize import Requantization

_MOST_TRITS = MOST_CHARACTERS * TRITS_A_CHARACTER
_MOST_WORDS = MOST_CHARACTERS // 4  # floats, or pairs of integer weights
# Outputs of a dense convolution that share a loaded vector.
_OUTPUTS_AT_ONCE = 4
_FLOAT_BLOCK = 256  # inputs of a dense linear layer that are summed before they join the others
_LIST_LENGTH = 512  # the same of a listed one, which sums in eight parts; integer sums are exact
# Weights of a convolution that are summed before they join the others: short sums have smaller rounding errors.
_SUM_LENGTH = 288

_ALL = {"channels": "NULL", "outputs": "NULL"}

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class TernaryConvolution:
    """How a convolution is cut, and which outputs and channels its tiles have."""

    tiles: AnyTiles
    outputs: Mask
    channels: Mask


@dataclass(frozen=True)
class Context:
    """The context of the calls of all steps, values and layers by their names."""

    shapes: Mapping[str, Shape]
    live: Mapping[str, Living]
    options: choose.COptions
    layouts: Mapping[str, Layout]  # of values
    cut: Mapping[str, TernaryConvolution]

    def inputs(self, step: Step) -> tuple[Shape, ...]:
        """The shapes of a step's inputs."""
        return tuple(self.shapes[name] for name in step.inputs)


def cut_convolution(
    record: Convolution, live: Living, input_shape: Shape, border: int | None, options: choose.COptions
) -> TernaryConvolution:
    """Cut for the kernel chosen for a ternary convolution; its input can have `border` rows of zeros.

    Outputs that nothing reads and channels without non-zero weights are left out, but of grouped convolutions none:
    their channels follow from their outputs.
    """
    alone = record.groups == 1
    outputs = _some(live.outputs) if alone else np.ones(len(live.weight), dtype=bool)
    weight = live.weight[outputs]
    channels = _some(np.asarray(weight.any(axis=(0, 2, 3)))) if alone else np.ones(weight.shape[1], dtype=bool)
    kinds = _integer_kinds(record, weight[:, channels]) if options.integer else {}
    if not options.integer:
        _check_taps(record, _MOST_TRITS)
        kinds = _float_kinds(record, weight[:, channels], input_shape)
        if border is not None and (in_place := _in_place(record, weight, input_shape, border)):
            kinds["in-place"] = in_place
    if not kinds:
        size = " x ".join(map(str, weight.shape))
        what = "integer" if options.integer else "the C"
        raise ExportError(f"{record.name}: a ternary Convolution of {size} weights is too large for {what} kernels")
    tiles = choose.choose_tiles(record.name, kinds, options)
    return TernaryConvolution(tiles, outputs, channels if tiles.border is None else np.ones_like(channels))


def _integer_kinds(record: Convolution, weight: Trits) -> dict[str, AnyTiles]:
    """The layouts that are possible. A chunk of trits, those of one output and block, lies in one literal."""
    most = _MOST_TRITS // _taps(record)
    kinds = choose.INTEGER_CONVOLUTION_KERNELS.items()
    tiles = {kind: IntegerTiles(record, weight, columns, max(1, most)) for kind, columns in kinds}
    return {kind: each for kind, each in tiles.items() if each.fits and most > 0}


def _float_kinds(record: Convolution, weight: Trits, input_shape: Shape) -> dict[str, AnyTiles]:
    """The layouts whose offsets fit into two bytes."""
    most = max(1, _SUM_LENGTH // _taps(record))
    kinds = choose.INTEGER_CONVOLUTION_KERNELS.items()
    tiles = {kind: Tiles(record, weight, columns, most, input_shape=input_shape) for kind, columns in kinds}
    return {kind: each for kind, each in tiles.items() if each.fits}


def _in_place(record: Convolution, weight: Trits, input_shape: Shape, border: int) -> Tiles | None:
    """Without anything laid out, all channels are summed at once: sums must not become too long for it."""
    tiles = Tiles(record, weight, border=border, input_shape=input_shape)
    short = int(np.count_nonzero(weight, axis=(1, 2, 3)).max()) <= _SUM_LENGTH
    return tiles if tiles.fits and short and weight[0].size <= _MOST_TRITS else None


def _check_taps(record: Convolution, most: int) -> None:
    if _taps(record) > most:
        size = " x ".join(map(str, record.weight.shape[2:]))
        raise ExportError(f"{record.name}: a Convolution in C may have {most} weights per kernel, this is {size}")


def _taps(record: Convolution) -> int:
    return math.prod(record.weight.shape[2:])


def _some(mask: Mask) -> Mask:
    """At least one entry: kernels without outputs or inputs would need a special case."""
    result = mask.copy()
    result[0] |= not mask.any()
    return result


def _indices(name: str, mask: Mask) -> tuple[tuple[str, ...], str]:
    """The definition of a list of indices and its name; none if the mask is all true."""
    return ((), "NULL") if mask.all() else ((emit.integers(name, np.flatnonzero(mask)),), name)


def _finish(step: Step, name: str) -> tuple[str, str]:
    """The definition of scale and bias, and the C value of a `struct finish`."""
    record = step.record
    assert isinstance(record, WeightRecord)
    lowest, highest = map(emit.float_value, step.limits)
    return emit.pairs(f"{name}_affine", record.scale, record.bias), f"{{{name}_affine, {lowest}, {highest}}}"


def requantize_lines(name: str, to: Requantization) -> str:
    """The definition of an array of `struct requantize`."""
    lowest, highest = to.sum_limits
    columns = (to.factor, to.bias, to.other, lowest, highest, to.shift)
    rows = [f"{{{', '.join(map(str, numbers))}}}" for numbers in zip(*columns, strict=True)]
    return emit.array("struct requantize", f"{name}[{len(rows)}]", rows, per_line=1)


def convolution(step: Step, name: str, context: Context) -> Call:
    """A convolution, if it is ternary as it was cut."""
    assert isinstance(step.record, Convolution)
    if step.name in context.cut:
        return _ternary_convolution(step, name, context)
    if isinstance(step, IntegerStep):
        return _integer_convolution(step, step.record, name, context)
    return _float_convolution(step, step.record, name, context)


def _ternary_convolution(step: Step, name: str, context: Context) -> Call:
    cut = context.cut[step.name]
    tiles, kernel = cut.tiles, f"{cut.tiles.prefix}ternary_convolution"
    output_lines, outputs = _indices(f"{name}_outputs", cut.outputs)
    channel_lines, channels = _indices(f"{name}_channels", cut.channels)
    constants, struct = _convolution_struct(step, name, context, tiles, {"channels": channels, "outputs": outputs})
    return Call(
        f"{kernel}(&{name}, {{table}}, {tiles.planes_size}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        kernel,
        constants=(*constants, *output_lines, *channel_lines, struct),
        work_floats=tiles.work_floats,
        table=_convolution_table(tiles, name),
    )


def _convolution_table(tiles: AnyTiles, name: str) -> Table:
    """The trits of a convolution: those of a block and output, by channel, row and column of the kernel, in a row."""
    length = min(tiles.block, tiles.group_inputs) * _taps(tiles.record)
    parts = [tiles.weight[outputs, channels] for outputs, channels, _ in tiles.blocks()]
    rows = np.concatenate([tables.padded(part.reshape(len(part), -1), length) for part in parts])
    return Table(
        tables.lists_of(tiles),
        f"expand_{tiles.prefix}convolution",
        Literal(f"{name}_weights", emit.trit_chunks(rows)),
        f"{tiles.layout}, {len(parts)} blocks",
        int(np.count_nonzero(tiles.record.weight)) - int(np.count_nonzero(tiles.weight)),
    )


def _convolution_struct(
    step: Step, name: str, context: Context, tiles: AnyTiles, read: Mapping[str, str] = _ALL
) -> tuple[tuple[str, ...], str]:
    """What the struct of a convolution refers to, and the struct; `read` are the lists of channels and outputs."""
    record, shape = tiles.record, context.shapes[step.inputs[0]]
    fields = named("in_height in_width out_height out_width", *shape[1:], *record.shape[1:])
    if isinstance(step, IntegerStep) and isinstance(tiles, IntegerTiles):
        return _integer_struct(step, name, tiles, fields, read)
    assert isinstance(tiles, Tiles)
    maps = [context.layouts[each] for each in (step.inputs[0], step.name, step.inputs[-1])]
    affine, finish = _finish(step, name)
    fields |= named("in_row out_row residual_row", *(each.row_step for each in maps))
    fields |= named("in_step out_step residual_step", *(each.channel_step for each in maps))
    fields |= named("bordered stride_y stride_x", int(maps[1].border is not None), *record.stride)
    fields |= _kernel_fields(record, name) | {"kernel_columns": f"{name}_columns"}
    fields |= named("tile_rows tile_cells phases phase_rows", tiles.rows, tiles.cells, tiles.phases, tiles.phase_rows)
    fields |= named("groups group_inputs group_outputs", record.groups, tiles.group_inputs, tiles.group_outputs)
    fields |= named("block_groups block combined", tiles.block_groups, tiles.block, int(tiles.combined > 1))
    fields |= named("laid laid_cells", len(tiles.laid_cells), f"{name}_cells" if tiles.laid_cells else "NULL")
    fields |= {"row_floats": tiles.row_floats, **read, "finish": finish}
    places = {"rows": tiles.kernel_rows, "columns": tiles.kernel_columns, "cells": tiles.laid_cells}
    lists = [emit.integers(f"{name}_{what}", values) for what, values in places.items() if values]
    return (affine, *lists), emit.struct("convolution", name, fields)


def _integer_struct(
    step: IntegerStep, name: str, tiles: IntegerTiles, fields: emit.Fields, read: Mapping[str, str]
) -> tuple[tuple[str, ...], str]:
    record, to = tiles.record, step.requantizations[0]
    fields |= named("stride_y stride_x dilation_x", *record.stride, record.dilation[1])
    fields |= _kernel_fields(record, name)
    fields |= named("tile_rows phases phase_rows", tiles.rows, tiles.phases, tiles.phase_rows)
    fields |= {"plane_cells": tiles.plane_cells}
    fields |= named("groups group_inputs group_outputs", record.groups, tiles.group_inputs, tiles.group_outputs)
    fields |= {"block": tiles.block, "unit": tiles.combined, **read, "finish": f"{name}_finish"}
    fields |= {"limits": f"{{{to.lowest}, {to.highest}}}"}
    rows = [row * CELLS for row in tiles.kernel_rows]
    lines = (requantize_lines(f"{name}_finish", to), emit.integers(f"{name}_rows", rows))
    return lines, emit.struct("integer_convolution", name, fields)


def _kernel_fields(record: Convolution, name: str) -> emit.Fields:
    names = "pad_top pad_left kernel_y kernel_x kernel_rows"
    return named(names, *record.padding[::2], *record.weight.shape[2:], f"{name}_rows")


def _float_convolution(step: Step, record: Convolution, name: str, context: Context) -> Call:
    _check_taps(record, _MOST_WORDS)
    taps, several = _taps(record), len(record.weight) > record.groups
    at_once = _OUTPUTS_AT_ONCE if several and taps * _OUTPUTS_AT_ONCE <= _MOST_WORDS else 1
    most = max(1, min(_MOST_WORDS // (taps * at_once), _SUM_LENGTH // taps))
    tiles = Tiles(record, record.weight, 1, most, input_shape=context.shapes[step.inputs[0]])
    weights = Literal(f"{name}_weights", emit.float_chunks(tables.float_rows(tiles, at_once)))
    constants, struct = _convolution_struct(step, name, context, tiles)
    sizes = f"{at_once}, {tiles.planes_size}"
    return Call(
        f"float_convolution(&{name}, &{name}_floats, {sizes}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "float_convolution",
        (weights,),
        (*constants, struct, f"static const struct literal {name}_floats = {weights.initializer};"),
        work_floats=tiles.work_floats + _OUTPUTS_AT_ONCE * tiles.rows * CELLS,
    )


def _integer_convolution(step: IntegerStep, record: Convolution, name: str, context: Context) -> Call:
    assert step.weight is not None
    taps, several = _taps(record), len(record.weight) > record.groups
    pairs = math.ceil(taps / 2)
    at_once = _OUTPUTS_AT_ONCE if several and pairs * _OUTPUTS_AT_ONCE <= _MOST_WORDS else 1
    most = max(1, (MOST_CHARACTERS // (2 * at_once) - 1) // taps)
    tiles = IntegerTiles(record, step.weight, 1, most, sums_16=False)
    if pairs * at_once > _MOST_WORDS or not tiles.fits:
        raise ExportError(f"{record.name}: a Convolution of {taps} weights per kernel is too large for integer kernels")
    weights = Literal(f"{name}_weights", tables.integer_chunks(tiles, at_once))
    constants, struct = _convolution_struct(step, name, context, tiles)
    columns = range(tiles.block * tiles.kernel_x)
    offsets = [column * tiles.plane_cells + row * CELLS for column in columns for row in tiles.kernel_rows]
    dense = named("weights offsets", weights.initializer, f"{name}_offsets")
    dense |= named("taps outputs_at_once", taps, at_once)
    sizes = f"&{name}_dense, {tiles.planes_size}"
    return Call(
        f"integer_convolution(&{name}, {sizes}, {{in0}}, {{residual}}, {{out}}, {{work}});",
        "integer_convolution",
        (weights,),
        (
            *constants,
            emit.integers(f"{name}_offsets", offsets),
            struct,
            emit.struct("integer_taps", f"{name}_dense", dense),
        ),
        work_floats=tiles.work_floats + _OUTPUTS_AT_ONCE * (tiles.rows + 1) * CELLS,
    )


def linear(step: Step, name: str, context: Context) -> Call:
    """A linear layer, or a convolution of a single cell."""
    live = context.live.get(step.record.name)
    return _dense_linear(step, name) if live is None else _ternary_linear(step, name, live, context.options)


def _ternary_linear(step: Step, name: str, live: Living, options: choose.COptions) -> Call:
    is_logits = isinstance(step, IntegerStep) and step.is_logits
    read = np.ones_like(live.outputs) if is_logits else _some(live.outputs)
    weight = live.weight[read].reshape(int(read.sum()), -1)
    outputs, inputs = weight.shape
    kind = choose.choose_linear(step.record.name, weight, options)
    kernel, coded = f"{'integer' if options.integer else 'ternary'}_linear_{kind}", kind == "codes"
    lists = 0.0 if coded or options.integer else int(np.count_nonzero(weight)) / _LIST_LENGTH
    block = _linear_block(weight, lists)
    lines, places = _indices(f"{name}_outputs", read)
    fields = named("inputs outputs block outputs_read", inputs, outputs, block, places)
    table = _linear_table(step, name, weight, kind, block)
    if isinstance(step, IntegerStep):
        finish, statement, finisher = _integer_finish(step, name, places, outputs)
        packed = f", (int32_t *){{work}} + {outputs}" if coded else ""
        return Call(
            f"{kernel}(&{name}, {{table}}, {{in0}}, (int32_t *){{work}}{packed});\n{statement}",
            kernel,
            constants=(*lines, finish, emit.struct("ternary_linear", name, fields)),
            work_floats=outputs + (2 * inputs + 2 if coded else 0),
            table=table,
            more_kernels=(finisher,),
        )
    affine, finish = _finish(step, name)
    return Call(
        f"{kernel}(&{name}, {{table}}, {{in0}}, {{out}}{', {work}' if coded else ''});",
        kernel,
        constants=(affine, *lines, emit.struct("ternary_linear", name, fields | {"finish": finish})),
        work_floats=2 * inputs if coded else 0,
        table=table,
    )


def _linear_block(weight: Trits, lists: float) -> int:
    """Inputs at a time: short lists, of which all outputs together need `lists`, and a chunk of trits per literal."""
    inputs = int(weight.shape[1])
    blocks = max(1, math.ceil(lists / len(weight)), math.ceil(inputs / _MOST_TRITS))
    return math.ceil(inputs / blocks / TRITS_A_CHARACTER) * TRITS_A_CHARACTER


def _linear_table(step: Step, name: str, weight: Trits, kind: str, block: int) -> Table:
    assert isinstance(step.record, WeightRecord)
    rows = tables.linear_rows(weight, block)
    return Table(
        tables.linear_lists_of(weight, block) if kind == "lists" else tables.linear_codes_of(weight),
        f"expand_linear_{kind}",
        Literal(f"{name}_weights", emit.trit_chunks(rows)),
        f"lists of {len(rows)} blocks" if kind == "lists" else "codes",
        int(np.count_nonzero(step.record.weight)) - int(np.count_nonzero(weight)),
    )


def _dense_linear(step: Step, name: str) -> Call:
    assert isinstance(step.record, WeightRecord)
    integers = step.weight if isinstance(step, IntegerStep) else None
    weight = step.record.weight if integers is None else integers
    outputs, inputs = weight.reshape(len(weight), -1).shape
    block = math.ceil(inputs / math.ceil(inputs / (_FLOAT_BLOCK if integers is None else MOST_CHARACTERS)))
    rows = tables.linear_rows(weight.reshape(outputs, inputs), block)
    chunks = emit.float_chunks(rows) if integers is None else np.ascontiguousarray(rows).view(np.uint8)
    weights = Literal(f"{name}_weights", chunks)
    fields = named("inputs outputs block weights", inputs, outputs, block, weights.initializer)
    if isinstance(step, IntegerStep):
        lines, statement, finisher = _integer_finish(step, name, "NULL", outputs)
        return Call(
            f"integer_linear(&{name}, {{in0}}, {{work}});\n{statement}",
            "integer_linear",
            (weights,),
            (lines, emit.struct("integer_linear", name, fields)),
            work_floats=outputs,
            more_kernels=(finisher,),
        )
    affine, finish = _finish(step, name)
    constants = (affine, emit.struct("float_linear", name, fields | {"finish": finish}))
    return Call(f"float_linear(&{name}, {{in0}}, {{out}});", "float_linear", (weights,), constants)


def _integer_finish(step: IntegerStep, name: str, places: str, count: int) -> tuple[str, str, str]:
    """How the sums of a linear layer become its outputs: definition, statement and kernel."""
    to = step.requantizations[0]
    if not step.is_logits:
        statement = f"requantize_sums({name}_finish, {to.lowest}, {to.highest}, {places}, {{work}}, {count}, {{out}});"
        return requantize_lines(f"{name}_finish", to), statement, "requantize_sums"
    numbers = [f"{{INT64_C({f}), INT64_C({b})}}" for f, b in zip(to.factor, to.bias, strict=True)]
    lines = emit.array("struct logit", f"{name}_finish[{count}]", numbers, per_line=1)
    limits = f"{to.shift[0]}, {to.lowest}, {to.highest}"
    statement = f"requantize_logits({name}_finish, {limits}, {{unit}}, {{work}}, {count}, {{logits}});"
    return lines, statement, "requantize_logits"
