"""Each record as ONNX nodes.

A ternary weight is stored as trits; DequantizeLinear applies the scale per output channel. Runtimes disagree about
corner cases of ONNX: windows that extend over an edge are therefore written as explicit padding, and uneven adaptive
pools as gathered windows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from sca_search.export.graph import records as r
from sca_search.export.graph.reference import adaptive_windows


@dataclass
class Nodes:
    """Nodes and constants of a graph in the making.

    Names of records have no slash, so names with one are available for everything else.
    """

    int2: bool
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def constant(self, name: str, values: NDArray[Any]) -> str:
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def trits(self, name: str, trits: NDArray[Any]) -> str:
        """A constant with one byte or two bits per trit."""
        if not self.int2:
            return self.constant(name, trits)
        self.constants.append(helper.make_tensor(name, TensorProto.INT2, trits.shape, pack_int2(trits), raw=True))
        return name

    def node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], name=output, **attributes))
        return output


def pack_int2(trits: NDArray[Any]) -> bytes:
    """Four trits per byte, the first in the lowest bits, as two's complement."""
    bits = np.zeros(math.ceil(trits.size / 4) * 4, dtype=np.uint8)
    bits[: trits.size] = trits.reshape(-1).view(np.uint8) & 3
    shifted = bits.reshape(-1, 4) << np.array([0, 2, 4, 6], dtype=np.uint8)
    packed: NDArray[np.uint8] = shifted.sum(axis=1, dtype=np.uint8)
    return packed.tobytes()


def value_of(record: str) -> str:
    """The name of a record's value."""
    return f"{record}/value"


def add_nodes(nodes: Nodes, record: r.Record, inputs: tuple[r.Shape, ...]) -> None:
    """Appends the nodes of a record."""
    values = [value_of(name) for name in record.inputs]
    kind, operands, attributes = _NODES[type(record)](nodes, record, values, inputs)
    nodes.node(kind, operands, value_of(record.name), **attributes)


def by_channel(values: r.Floats, rank: int) -> r.Floats:
    """Numbers per channel, shaped to broadcast over a batch of values of that rank."""
    return values.reshape(1, -1, *[1] * (rank - 1))


def _weight(nodes: Nodes, record: r.WeightRecord) -> str:
    name = f"{record.name}/weight"
    if not record.ternary:
        spread = record.scale.reshape(-1, *[1] * (record.weight.ndim - 1))
        return nodes.constant(name, (record.weight * spread).astype(np.float32))
    stored = [nodes.trits(f"{record.name}/trits", record.weight), nodes.constant(f"{record.name}/scale", record.scale)]
    return nodes.node("DequantizeLinear", stored, name, axis=0)


Last = tuple[str, list[str], dict[str, Any]]
"""The node that gives a record's value: its type, inputs and attributes. The functions below append those before it."""


def _convolution(nodes: Nodes, record: r.Convolution, values: list[str], _: tuple[r.Shape, ...]) -> Last:
    bias = nodes.constant(f"{record.name}/bias", record.bias)
    top, bottom, left, right = record.padding
    windows = {"strides": record.stride, "dilations": record.dilation, "pads": [top, left, bottom, right]}
    return "Conv", [*values, _weight(nodes, record), bias], {"group": record.groups, **windows}


def _linear(nodes: Nodes, record: r.Linear, values: list[str], _: tuple[r.Shape, ...]) -> Last:
    bias = nodes.constant(f"{record.name}/bias", record.bias)
    return "Gemm", [*values, _weight(nodes, record), bias], {"transB": 1}


def _pool(nodes: Nodes, record: r.Pool, values: list[str], inputs: tuple[r.Shape, ...]) -> Last:
    top, bottom, left, right = record.padding
    if record.count_include_pad:
        # Padding that is part of the map is counted, cells beyond its edge are not.
        pads = nodes.constant(f"{record.name}/pads", np.array([0, 0, top, left, 0, 0, bottom, right], dtype=np.int64))
        values = [nodes.node("Pad", [*values, pads], f"{record.name}/padded")]
    ends = []
    for axis, (before, after) in enumerate(((top, bottom), (left, right))):
        reach = (record.shape[1 + axis] - 1) * record.stride[axis] + record.kernel[axis]
        over = max(0, reach - (before + inputs[0][1 + axis] + after))
        ends.append((0, over) if record.count_include_pad else (before, after + over))
    (top, bottom), (left, right) = ends
    windows = {"kernel_shape": record.kernel, "strides": record.stride, "pads": [top, left, bottom, right]}
    return "MaxPool" if record.kind == "max" else "AveragePool", values, windows


def _adaptive_pool(nodes: Nodes, record: r.AdaptivePool, values: list[str], inputs: tuple[r.Shape, ...]) -> Last:
    if record.shape[1:] == (1, 1):
        return "GlobalMaxPool" if record.kind == "max" else "GlobalAveragePool", values, {}
    (_, height, width), (_, rows, columns) = inputs[0], record.shape
    if record.kind == "average":
        # A mean over a rectangle is a mean over its rows of means over its columns: two matrix products.
        down = nodes.constant(f"{record.name}/down", _means(height, rows))
        across = nodes.constant(f"{record.name}/across", np.ascontiguousarray(_means(width, columns).T))
        return "MatMul", [down, nodes.node("MatMul", [*values, across], f"{record.name}/rows")], {}
    down_cells = nodes.constant(f"{record.name}/down", _cells(height, rows))
    across_cells = nodes.constant(f"{record.name}/across", _cells(width, columns))
    kind, operands, attributes = _largest(nodes, f"{record.name}/rows", values[0], down_cells, axis=2)
    reduced = nodes.node(kind, operands, f"{record.name}/rows", **attributes)
    return _largest(nodes, value_of(record.name), reduced, across_cells, axis=3)


def _largest(nodes: Nodes, output: str, value: str, cells: str, *, axis: int) -> Last:
    """The maximum of these cells along one axis."""
    windows = nodes.node("Gather", [value, cells], f"{output}/windows", axis=axis)
    axes = nodes.constant(f"{output}/axis", np.array([axis + 1], dtype=np.int64))
    return "ReduceMax", [windows, axes], {"keepdims": 0}


def _means(size: int, parts: int) -> r.Floats:
    """(parts, size): a row has 1 / n at the n cells of its part."""
    means = np.zeros((parts, size), dtype=np.float32)
    for row, part in zip(means, adaptive_windows(size, parts), strict=True):
        row[part] = 1 / (part.stop - part.start)
    return means


def _cells(size: int, parts: int) -> NDArray[np.int64]:
    """(parts, most cells of a part): the cells of each part; a smaller part has its last cell more than once."""
    windows = adaptive_windows(size, parts)
    most = max(part.stop - part.start for part in windows)
    return np.array([[min(part.start + index, part.stop - 1) for index in range(most)] for part in windows], np.int64)


def _activation(nodes: Nodes, record: r.Activation, values: list[str], _: tuple[r.Shape, ...]) -> Last:
    if record.kind == "relu6":
        bounds = [nodes.constant(f"{record.name}/{bound}", np.array(bound, dtype=np.float32)) for bound in (0, 6)]
        return "Clip", [*values, *bounds], {}
    if record.kind == "silu":
        return "Mul", [*values, nodes.node("Sigmoid", values, f"{record.name}/sigmoid")], {}
    kind, attributes = _FUNCTIONS[record.kind]
    return kind, values, attributes | ({"alpha": record.slope} if kind == "LeakyRelu" else {})


_FUNCTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}),
    "hardsigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
    "hardswish": ("HardSwish", {}),
    "sigmoid": ("Sigmoid", {}),
    "gelu": ("Gelu", {}),
    "gelu_tanh": ("Gelu", {"approximate": "tanh"}),
    "tanh": ("Tanh", {}),
    "leaky_relu": ("LeakyRelu", {}),
}


def _reshape(nodes: Nodes, record: r.Reshape, values: list[str], _: tuple[r.Shape, ...]) -> Last:
    # 0 keeps the batch, whatever it is
    shape = nodes.constant(f"{record.name}/shape", np.array([0, *record.shape], dtype=np.int64))
    return "Reshape", [*values, shape], {}


def _channel_affine(nodes: Nodes, record: r.ChannelAffine, values: list[str], _: tuple[r.Shape, ...]) -> Last:
    scale = nodes.constant(f"{record.name}/scale", by_channel(record.scale, len(record.shape)))
    bias = nodes.constant(f"{record.name}/bias", by_channel(record.bias, len(record.shape)))
    return "Add", [nodes.node("Mul", [*values, scale], f"{record.name}/scaled"), bias], {}


_NODES: dict[type[r.Record], Callable[..., Last]] = {
    r.Convolution: _convolution,
    r.Linear: _linear,
    r.Pool: _pool,
    r.AdaptivePool: _adaptive_pool,
    r.Activation: _activation,
    r.Add: lambda _nodes, _record, values, _: ("Add", values, {}),
    r.Multiply: lambda _nodes, _record, values, _: ("Mul", values, {}),
    r.Concat: lambda _nodes, _record, values, _: ("Concat", values, {"axis": 1}),
    r.Reshape: _reshape,
    r.ChannelAffine: _channel_affine,
}
