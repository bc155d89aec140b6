"""The ONNX export: images in, logits out, any batch, normalization inside; checked by onnx, run by onnxruntime.

Ternary weights are int8 inputs of DequantizeLinear, in opset 20. With `int2` they have two bits each, which requires
opset 25; onnxruntime supports it on CPUs since 1.24 (1.23 rejects the file).
"""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.graph.records import INPUT, Floats, Graph
from sca_search.export.onnx import onnx_missing, onnxruntime_missing
from sca_search.system.files import atomic_path

if missing := onnx_missing():
    raise ExportError(missing)

import onnx
from google.protobuf.message import DecodeError, EncodeError
from onnx import TensorProto, helper, numpy_helper

from sca_search.export.onnx.nodes import Nodes, add_nodes, by_channel, value_of

# (opset, version of the file format released with it); 20 is the first with Gelu, 25 the first with INT2.
INT8_VERSIONS = (20, 9)
INT2_VERSIONS = (25, 13)
IMAGES, LOGITS = "images", "logits"


def write_onnx(path: Path, graph: Graph, *, int2: bool = False) -> None:
    """Writes a model that onnx has checked; ExportError if it is invalid, and nothing is written."""
    model = onnx_model(graph, int2=int2)
    try:
        onnx.checker.check_model(model, full_check=True)
        content = model.SerializeToString()
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, EncodeError, ValueError) as error:
        raise ExportError(f"{path}: onnx rejects the model: {error}") from error
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def onnx_model(graph: Graph, *, int2: bool = False) -> onnx.ModelProto:
    """The model in memory, not yet checked."""
    nodes = Nodes(int2)
    rank = len(graph.input_shape)
    mean = nodes.constant("images/mean", by_channel(graph.mean, rank))
    std = nodes.constant("images/std", by_channel(graph.std, rank))
    nodes.node("Div", [nodes.node("Sub", [IMAGES, mean], "images/centred"), std], value_of(INPUT))
    shapes = {INPUT: graph.input_shape} | {record.name: record.shape for record in graph.records}
    for record in graph.records:
        add_nodes(nodes, record, tuple(shapes[name] for name in record.inputs))
    nodes.node("Identity", [value_of(graph.output)], LOGITS)
    images = helper.make_tensor_value_info(IMAGES, TensorProto.FLOAT, ["batch", *graph.input_shape])
    logits = helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, ["batch", len(graph.class_names)])
    opset, file_version = INT2_VERSIONS if int2 else INT8_VERSIONS
    made = helper.make_graph(nodes.nodes, "sca-search", [images], [logits], nodes.constants)
    versions = {"opset_imports": [helper.make_opsetid("", opset)], "ir_version": file_version}
    model = helper.make_model(made, producer_name="sca-search", **versions)
    helper.set_model_props(model, {"class_names": json.dumps(graph.class_names)})
    return model


def open_onnx(path: Path) -> Callable[[Floats], Floats]:
    """A function from a batch of images to logits, run by onnxruntime on one thread of the CPU."""
    if sentence := onnxruntime_missing():
        raise ExportError(sentence)
    import onnxruntime  # noqa: PLC0415 - onnx may be there without it

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    try:
        session = onnxruntime.InferenceSession(path.read_bytes(), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime's errors have no common ancestor
        raise ExportError(f"{path}: onnxruntime rejects the model: {error}") from error

    def run(images: Floats) -> Floats:
        (logits,) = session.run([LOGITS], {IMAGES: np.ascontiguousarray(images, dtype=np.float32)})
        return np.asarray(logits, dtype=np.float32)

    return run


def count_zeros_onnx(path: Path) -> dict[str, tuple[int, int]]:
    """Zeros and weights of each ternary layer, counted in the written file."""
    try:
        model = onnx.load_model_from_string(path.read_bytes())
    except (OSError, DecodeError, TypeError, ValueError) as error:
        raise ExportError(f"{path} cannot be read as an ONNX model: {error}") from error
    constants = {constant.name: constant for constant in model.graph.initializer}
    if any(constant.data_location == TensorProto.EXTERNAL for constant in constants.values()):
        raise ExportError(f"{path}: all weights must be in the file itself, some are said to be in others")
    counts = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear" and node.input and node.input[0] in constants:
            if not isinstance(node.name, str):  # protobuf returns bytes for a name that is not UTF-8
                raise ExportError(f"{path} cannot be read as an ONNX model: a node's name must be a string")
            counts[node.name.removesuffix("/weight")] = _zeros_in(path, constants[node.input[0]])
    return counts


def _zeros_in(path: Path, constant: TensorProto) -> tuple[int, int]:
    try:
        trits = numpy_helper.to_array(constant).astype(np.int8)
    except (ValueError, TypeError, LookupError) as error:  # an unknown type is a LookupError
        raise ExportError(f"{path}: {constant.name[:80]!r} cannot be read: {error}") from error
    if not ((trits >= -1) & (trits <= 1)).all():
        raise ExportError(f"{path}: {constant.name} may hold only -1, 0 and 1")
    return int((trits == 0).sum()), trits.size
