"""One ATen call -> one or two records: the table of supported operations."""

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from sca_search.errors import ExportError
from sca_search.export.graph import records as r

BATCH = 2
"""Batch size for tracing: two and not one, so that mixing images shows in a shape."""


def as_map(shape: r.Shape) -> r.Shape:
    """A sequence (channels, length) as a map (channels, 1, length): the same values in the same order."""
    return (shape[0], 1, shape[1]) if len(shape) == 2 else shape


@dataclass(frozen=True)
class Value:
    """The value of a record, by name; `padding` is zeros around it, which the next convolution absorbs."""

    name: str
    shape: r.Shape
    padding: r.Sides = (0, 0, 0, 0)

    @property
    def padded_shape(self) -> r.Shape:
        """The shape with the zeros around it, as torch has it."""
        if not any(self.padding):
            return self.shape
        top, bottom, left, right = self.padding
        channels, height, width = self.shape
        return (channels, top + height + bottom, left + width + right)


def depends_on_input(argument: Any) -> bool:
    """Whether an argument of a call is, or holds, a value of the graph."""
    if isinstance(argument, list | tuple):
        return any(map(depends_on_input, argument))
    return isinstance(argument, Value)


@dataclass(frozen=True)
class Call:
    """A call, the layer that makes it, its arguments (constants are tensors), and a function that adds records."""

    node: Node
    place: str
    arguments: list[Any]
    options: dict[str, Any]
    keep: Callable[[r.Record], Value]

    def __getitem__(self, name: str) -> Any:
        """An argument by its name in ATen's signature, or its default."""
        for index, argument in enumerate(self.node.target._schema.arguments):  # type: ignore[union-attr]
            if argument.name == name:
                positional = index < len(self.arguments)
                return self.arguments[index] if positional else self.options.get(name, argument.default_value)
        raise AssertionError(f"{self.node.target} has no argument {name}")

    def value(self, name: str) -> Value:
        """An argument that must depend on the input."""
        value = self[name]
        if not isinstance(value, Value):
            self.reject(f"needs a value that depends on the input as its {name}")
        return self.unpadded(value)

    def unpadded(self, value: Value) -> Value:
        """The value, which must not have padding."""
        if any(value.padding):
            self.reject("follows a padding with zeros, which only a convolution can absorb")
        return value

    @property
    def sizes(self) -> tuple[int, ...]:
        """The result's shape in torch, with the batch."""
        result = self.node.meta["val"]
        return tuple((result[0] if isinstance(result, tuple | list) else result).shape)

    @property
    def shape(self) -> r.Shape:
        """The result's shape without the batch; a sequence counts as a map one pixel high."""
        sizes = self.sizes
        if len(sizes) not in (2, 3, 4) or sizes[0] != BATCH:
            self.reject(f"must give one map or vector per image: two images became the shape {sizes}")
        return as_map(sizes[1:])

    def add(self, record: type[r.Record], inputs: Sequence[Value], shape: r.Shape, **fields: Any) -> Value:
        """A record of that type under the layer's name."""
        return self.keep(record(self.place, tuple(value.name for value in inputs), shape, **fields))

    def reject(self, why: str) -> NoReturn:
        """ExportError with the layer, the operation and the reason."""
        raise ExportError(f"{self.place}: the operation {self.node.target} {why}")


_aten = torch.ops.aten
EXPORTABLE = (
    "supported are convolutions over images and sequences, linear layers on vectors, pools, BatchNorm, sums, channel "
    "gates and the common activations"
)
PoolKind = Literal["max", "average"]


def translate(call: Call) -> Any:
    """The result of the call; of several results the first."""
    if call.node.target is operator.getitem:
        source, index = call.arguments
        return source if index == 0 else call.reject("gives indices or statistics")
    if call.node.target not in _TABLE:
        call.reject(f"cannot be exported; {EXPORTABLE}")
    return _TABLE[call.node.target](call)


def _floats(tensor: Tensor) -> r.Floats:
    return np.ascontiguousarray(tensor.detach().numpy(), dtype=np.float32)


def _pair(call: Call, name: str, along_rows: int) -> r.Pair:
    """A setting along height and width; a sequence has only one, along its length, which is the width."""
    values = call[name]
    numbers = list(values) if isinstance(values, list | tuple) else [values]
    first = along_rows if _is_over_sequences(call) else numbers[0]
    return (int(first), int(numbers[-1]))


def _is_over_sequences(call: Call) -> bool:
    return len(call.sizes) == 3


def _both_sides(call: Call, name: str) -> r.Sides:
    rows, columns = _pair(call, name, 0)
    return (rows, rows, columns, columns)


def _constant(call: Call, name: str) -> Tensor:
    value = call[name]
    return value if isinstance(value, Tensor) else call.reject(f"needs a constant {name}")


def _weight_fields(call: Call) -> dict[str, Any]:
    weight = _floats(_constant(call, "weight"))
    bias = call["bias"]
    return {
        "weight": weight,
        "scale": np.ones(len(weight), dtype=np.float32),
        "bias": np.zeros(len(weight), dtype=np.float32) if bias is None else _floats(_constant(call, "bias")),
    }


def _convolution(call: Call) -> Value:
    source = call["input"]
    if not isinstance(source, Value):
        call.reject("needs a value that depends on the input")
    fields = _weight_fields(call)
    if _is_over_sequences(call):
        fields["weight"] = fields["weight"][:, :, None]
    dilation = _pair(call, "dilation", 1)
    name = call["padding"]
    if isinstance(name, str):  # torch's "same" puts the odd row or column at the end; "valid" pads nothing
        sizes = zip(fields["weight"].shape[2:], dilation, strict=True)
        rows, columns = (step * (size - 1) if name == "same" else 0 for size, step in sizes)
        own = (rows // 2, rows - rows // 2, columns // 2, columns - columns // 2)
    else:
        own = _both_sides(call, "padding")
    padding = tuple(mine + before for mine, before in zip(own, source.padding, strict=True))
    fields |= {"stride": _pair(call, "stride", 1), "padding": padding, "dilation": dilation, "groups": call["groups"]}
    return call.add(r.Convolution, [source], call.shape, **fields)


def _linear(call: Call) -> Value:
    source = call.value("input")
    if len(source.shape) != 1:
        call.reject(f"takes vectors only, got the shape {source.shape}")
    return call.add(r.Linear, [source], call.shape, **_weight_fields(call))


def _batch_norm(call: Call) -> Value:
    """(x - mean) / √(variance + eps) · weight + bias, as one scale and one bias, computed in float64."""
    mean, variance = (_constant(call, f"running_{name}").double() for name in ("mean", "var"))
    weight, bias = call["weight"], call["bias"]
    scale = (variance + call["eps"]).rsqrt() * (1.0 if weight is None else weight.double())
    shift = (0.0 if bias is None else bias.double()) - mean * scale
    return call.add(r.ChannelAffine, [call.value("input")], call.shape, scale=_floats(scale), bias=_floats(shift))


def _pool(kind: PoolKind, call: Call) -> Value:
    source = call.value("self")
    if kind == "max" and _pair(call, "dilation", 1) != (1, 1):
        call.reject("is dilated, which a pool cannot be")
    if kind == "average" and not _is_over_sequences(call) and call["divisor_override"] is not None:
        call.reject("has divisor_override, which is not supported")
    kernel = _pair(call, "kernel_size", 1)
    stride = _pair(call, "stride", 1) if call["stride"] else kernel
    windows = {"kernel": kernel, "stride": stride, "padding": _both_sides(call, "padding")}
    counted = kind == "average" and bool(call["count_include_pad"])
    modes = {"ceil_mode": bool(call["ceil_mode"]), "count_include_pad": counted}
    return call.add(r.Pool, [source], call.shape, kind=kind, **windows, **modes)


def _adaptive_pool(kind: PoolKind, call: Call) -> Value:
    return call.add(r.AdaptivePool, [call.value("self")], call.shape, kind=kind)


def _reduction(kind: PoolKind, call: Call) -> Value:
    """A mean or maximum over rows, columns or both is an adaptive pool to one of each."""
    source = call.value("self")
    rank = call.node.all_input_nodes[0].meta["val"].ndim
    dims = {dim % rank for dim in call["dim"] or range(rank)}
    if rank == 3:
        dims = {3 if dim == 2 else dim for dim in dims}  # a sequence lies along the width
    if len(source.shape) != 3 or not dims <= {2, 3}:
        call.reject(f"goes over the dimensions {sorted(dims)}; it may go over height and width")
    channels, height, width = source.shape
    pooled = (channels, 1 if 2 in dims else height, 1 if 3 in dims else width)
    return _shaped(call, call.add(r.AdaptivePool, [source], pooled, kind=kind))


def _shaped(call: Call, value: Value) -> Value:
    """The value in the shape of the call's result."""
    return value if value.shape == call.shape else call.add(r.Reshape, [value], call.shape)


def _view(call: Call) -> Value:
    return _shaped(call, call.unpadded(call.arguments[0]))


def _permute(call: Call) -> Value:
    """If only axes of size 1 move, the order of the values stays."""
    sizes = call.node.all_input_nodes[0].meta["val"].shape
    order = [dim % len(sizes) for dim in call["dims"]]
    moved = [dim for dim in order if sizes[dim] != 1]
    return _view(call) if moved == sorted(moved) else call.reject("changes the order of the values")


def _pad(call: Call) -> Value:
    """Zeros around a map are left to the next convolution."""
    source = call.value("self")
    if call.node.target is _aten.pad.default and call["mode"] != "constant":
        call.reject(f"pads in the mode {call['mode']}, which a convolution cannot absorb")
    widths = [*call["pad"], 0, 0, 0, 0]
    left, right, top, bottom = widths[:4]
    around = 2 if _is_over_sequences(call) else 4
    if call["value"] or any(widths[around:]) or min(widths) < 0 or len(call.sizes) not in (3, 4):
        call.reject("may only put zeros around the rows and columns of a map")
    return Value(source.name, source.shape, (top, bottom, left, right))


def _activation(kind: r.ActivationKind, call: Call) -> Value:
    return call.add(r.Activation, [call.unpadded(call.arguments[0])], call.shape, kind=kind)


def _leaky_relu(call: Call) -> Value:
    slope = float(np.float32(call["negative_slope"]))
    return call.add(r.Activation, [call.value("self")], call.shape, kind="leaky_relu", slope=slope)


def _clamp(lowest: str, highest: str | None, call: Call) -> Value:
    limits = (call[lowest], None if highest is None else call[highest])
    kinds: dict[Any, r.ActivationKind] = {(0, None): "relu", (0, 6): "relu6"}
    if limits not in kinds:
        call.reject(f"limits values to {limits}; it may limit them to 0 and above, or to 0 and 6")
    return _activation(kinds[limits], call)


def _sum(sign: float, call: Call) -> Value:
    left, right, factor = call["self"], call["other"], call["alpha"] * sign
    if isinstance(left, Value) and isinstance(right, Value):
        if factor != 1:
            right = _affine(call, call.unpadded(right), factor, 0.0)
        return _joined(call, r.Add, left, right)
    if isinstance(left, Value):
        return _affine(call, left, 1.0, right * factor)
    return _affine(call, right, factor, left)


def _reversed_difference(call: Call) -> Value:
    """other - alpha · self: torch's form of a number minus a value."""
    other = call["other"]
    if isinstance(other, Value):
        call.reject("subtracts in reverse from a value that depends on the input")
    return _affine(call, call.value("self"), -call["alpha"], other)


def _product(call: Call) -> Value:
    left, right = call["self"], call["other"]
    if isinstance(left, Value) and isinstance(right, Value):
        return _joined(call, r.Multiply, *((left, right) if left.shape == call.shape else (right, left)))
    return _affine(call, left, right, 0.0) if isinstance(left, Value) else _affine(call, right, left, 0.0)


def _quotient(call: Call) -> Value:
    divisor = call["other"]
    if isinstance(divisor, Value):
        call.reject("divides by a value that depends on the input")
    return _affine(call, call["self"], 1.0 / np.asarray(divisor, dtype=np.float64), 0.0)


def _joined(call: Call, kind: type[r.Add] | type[r.Multiply], value: Value, other: Value) -> Value:
    gate = kind is r.Multiply and other.shape == (value.shape[0], 1, 1)
    if value.shape != call.shape or (other.shape != value.shape and not gate):
        call.reject(f"joins the shapes {value.shape} and {other.shape}")
    return call.add(kind, [call.unpadded(value), call.unpadded(other)], call.shape)


def _affine(call: Call, value: Value, scale: Any, bias: Any) -> Value:
    """Constants per channel; one number applies to all channels."""
    scales, shifts = _by_channel(call, scale), _by_channel(call, bias)
    # Zeros around a map stay zeros where nothing is added.
    source = call.unpadded(value) if shifts.any() else value
    if source.padded_shape != call.shape:
        call.reject(f"widens the shape {source.shape} to {call.shape}")
    return replace(call.add(r.ChannelAffine, [source], source.shape, scale=scales, bias=shifts), padding=source.padding)


def _by_channel(call: Call, constant: Any) -> r.Floats:
    values = np.asarray(constant, dtype=np.float32)
    sizes = (1,) * (len(call.sizes) - values.ndim) + values.shape
    if any(size != 1 for axis, size in enumerate(sizes) if axis != 1):
        call.reject(f"takes a constant of shape {values.shape}; it may have one value per channel")
    return np.ascontiguousarray(np.broadcast_to(values.ravel(), call.shape[:1]))


def _concat(call: Call) -> Value:
    values = call["tensors"]
    if call["dim"] % len(call.sizes) != 1 or not all(isinstance(value, Value) for value in values):
        call.reject("may join values that depend on the input, along the channels")
    inputs = [call.unpadded(value) for value in values]
    return inputs[0] if len(inputs) == 1 else call.add(r.Concat, inputs, call.shape)


_KINDS: tuple[r.ActivationKind, ...] = ("relu", "relu6", "hardsigmoid", "hardswish", "sigmoid", "silu", "tanh")
_VIEWS = (
    _aten.view.default,
    _aten.reshape.default,
    _aten._unsafe_view.default,
    _aten.flatten.using_ints,
    _aten.squeeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.unsqueeze.default,
    _aten.clone.default,
    _aten.alias.default,
    _aten.detach.default,
    _aten.contiguous.default,
    _aten.dropout.default,  # the network is traced in evaluation mode
    _aten.expand.default,
)
_CONVOLUTIONS = (_aten.conv1d.default, _aten.conv1d.padding, _aten.conv2d.default, _aten.conv2d.padding)
_TABLE: dict[Any, Callable[[Call], Any]] = {
    **{getattr(_aten, kind).default: partial(_activation, kind) for kind in _KINDS},
    **dict.fromkeys(_VIEWS, _view),
    **dict.fromkeys(_CONVOLUTIONS, _convolution),
    _aten.linear.default: _linear,
    _aten._native_batch_norm_legit_no_training.default: _batch_norm,
    _aten.max_pool2d.default: partial(_pool, "max"),
    _aten.avg_pool2d.default: partial(_pool, "average"),
    _aten.max_pool1d.default: partial(_pool, "max"),
    _aten.avg_pool1d.default: partial(_pool, "average"),
    _aten.adaptive_avg_pool1d.default: partial(_adaptive_pool, "average"),
    _aten.adaptive_avg_pool2d.default: partial(_adaptive_pool, "average"),
    _aten.adaptive_max_pool1d.default: partial(_adaptive_pool, "max"),
    _aten.adaptive_max_pool2d.default: partial(_adaptive_pool, "max"),
    _aten.mean.dim: partial(_reduction, "average"),
    _aten.amax.default: partial(_reduction, "max"),
    _aten.permute.default: _permute,
    _aten.constant_pad_nd.default: _pad,
    _aten.pad.default: _pad,
    _aten.gelu.default: lambda call: _activation("gelu_tanh" if call["approximate"] == "tanh" else "gelu", call),
    _aten.leaky_relu.default: _leaky_relu,
    _aten.hardtanh.default: partial(_clamp, "min_val", "max_val"),
    _aten.clamp.default: partial(_clamp, "min", "max"),
    _aten.clamp_min.default: partial(_clamp, "min", None),
    _aten.add.Tensor: partial(_sum, 1.0),
    _aten.sub.Tensor: partial(_sum, -1.0),
    _aten.rsub.Scalar: _reversed_difference,
    _aten.rsub.Tensor: _reversed_difference,
    _aten.mul.Tensor: _product,
    _aten.div.Tensor: _quotient,
    _aten.cat.default: _concat,
}
