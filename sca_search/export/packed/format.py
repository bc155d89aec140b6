"""The packed format: a whole model in one small safetensors file, its trits in an entropy code.

The README describes it in ten bullets. The reader rejects what is invalid and repairs nothing.
"""

import functools
import json
import math
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from sca_search.errors import ExportError, ScaError
from sca_search.export.graph import records as r
from sca_search.export.graph.shapes import check_graph
from sca_search.export.packed.container import Tensors, from_bytes, strict_json, to_bytes
from sca_search.export.packed.test_vectors import check_vectors, take_vectors, vector_tensors
from sca_search.export.packed.trit_code import decode_trits, encode_trits
from sca_search.system.files import atomic_path

KINDS = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in r.RECORDS}
"""Types of records by the names that files have for them, such as adaptive_pool."""
_NAMES = {kind: name for name, kind in KINDS.items()}
ARRAYS = ("weight", "scale", "bias")
"""The fields of a record that are arrays; a file has each as a tensor, named record.field."""


def describe(record: r.Record) -> dict[str, Any]:
    """A record's JSON: what is not its default, no arrays, and of a weight its shape and whether it is ternary."""
    plain = {
        field.name: getattr(record, field.name)
        for field in fields(record)
        if field.name not in ARRAYS and getattr(record, field.name) != field.default
    }
    # pools and activations have a field `kind`; the type of the record is `type`
    described = {"type": _NAMES[type(record)], **plain}
    if isinstance(record, r.WeightRecord):
        described |= {"ternary": record.ternary, "weight_shape": list(record.weight.shape)}
    return described


def restore(
    description: Any, array: Callable[[str, str], r.Floats], trits: Callable[[str, r.Shape], r.Trits]
) -> r.Record:
    """The record that was described.

    `array(record, field)` reads float values, `trits(record, shape)` a ternary weight. Types are checked here; whether
    shapes fit each other is checked by the rules of a graph.
    """
    if not isinstance(description, dict) or description.get("type") not in tuple(KINDS):  # a list has no hash
        raise ExportError(f"a record must have one of the types {', '.join(KINDS)}")
    kind = KINDS[description["type"]]
    types = {field.name: get_type_hints(kind)[field.name] for field in fields(kind)}
    is_weight = issubclass(kind, r.WeightRecord)
    plain = types.keys() - set(ARRAYS)
    known = plain | {"type"} | ({"ternary", "weight_shape"} if is_weight else set())
    optional = {field.name for field in fields(kind) if field.default is not MISSING}
    odd = sorted((description.keys() - known) | (known - description.keys() - optional))
    if odd:
        raise ExportError(f"a record of type {description['type']} lacks or does not know {odd[0][:80]!r}")
    values = {name: _parsed(name, types[name], description[name]) for name in plain & description.keys()}
    values |= {name: array(values["name"], name) for name in types.keys() & {"scale", "bias"}}
    if is_weight:
        shape = _parsed("weight_shape", r.Shape, description["weight_shape"])
        ternary = _parsed("ternary", bool, description["ternary"])
        # Before anything is decoded: scales lie in the file, so that many outputs need a large file.
        if shape[:1] != values["scale"].shape:
            raise ExportError(f"{values['name']}: the weight has the shape {shape}, the scale {values['scale'].shape}")
        values["weight"] = trits(values["name"], shape) if ternary else array(values["name"], "weight")
        if shape != values["weight"].shape:
            raise ExportError(f"{values['name']}: the weight has not the shape {shape}")
    return kind(**values)


@functools.cache
def _adapter(type_: Any) -> TypeAdapter[Any]:
    return TypeAdapter(type_)


def _parsed(name: str, type_: Any, value: Any) -> Any:
    """A JSON value as one of this type, without any conversion."""
    try:
        return _adapter(type_).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        _, found, rule = error.errors()[0]["msg"].partition("Input should be ")
        raise ExportError(f"{name} must be {rule if found else type_}, got {str(value)[:80]}") from error


FORMAT = "sca-search/packed"
VERSION = "1"
# A few bytes can stand for any number of equal trits, so a file's size does not limit its number of weights.
MOST_WEIGHTS = 2**28
MOST_RECORDS = 10_000


def write_packed(path: Path, graph: r.Graph, vectors: r.TestVectors, *, half: bool = False) -> None:
    """Writes the model; with `half`, all numbers but trits are stored as float16."""
    content = packed_bytes(graph, vectors, half=half)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_packed(path: Path) -> tuple[r.Graph, r.TestVectors]:
    """The model and its test vectors; ExportError, with the file's name, unless it is complete and valid."""
    if not path.is_file():
        raise ExportError(f"{path} is not a file")
    try:
        return from_packed_bytes(path.read_bytes())
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error
    except ScaError as error:
        raise ExportError(f"{path} is not a valid packed model: {error}") from error


def packed_bytes(graph: r.Graph, vectors: r.TestVectors, *, half: bool = False) -> bytes:
    """The file's content."""
    check_graph(graph)
    check_vectors(graph, vectors)
    tensors: Tensors = {"input.mean": graph.mean, "input.std": graph.std}
    for record in graph.records:
        tensors |= _tensors(record, half=half)
    tensors |= vector_tensors(vectors)
    model = {
        "input_shape": graph.input_shape,
        "records": [describe(record) for record in graph.records],
        "output": graph.output,
        "class_names": graph.class_names,
    }
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "model": _json(model),
        "sparsity": _json({layer.name: [layer.zeros, layer.weight.size] for layer in graph.ternary_layers}),
        "about": _json(dict(graph.about)),
    }
    return to_bytes(tensors, metadata)


def from_packed_bytes(content: bytes) -> tuple[r.Graph, r.TestVectors]:
    """The graph and vectors that `packed_bytes` wrote."""
    tensors, metadata = from_bytes(content)
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
        found = f"{metadata.get('format', 'nothing')} {metadata.get('version', '')}"[:80]
        raise ExportError(f"it must be {FORMAT} of version {VERSION}, got {found}")
    if metadata.keys() != {"format", "version", "model", "sparsity", "about"}:
        raise ExportError("its metadata must be format, version, model, sparsity, about and checksum")
    graph, left = _graph(metadata, tensors)
    check_graph(graph)
    _check_sparsity(graph, strict_json(metadata["sparsity"], "sparsity"))
    vectors = take_vectors(left)
    check_vectors(graph, vectors)
    if left:
        raise ExportError(f"the tensor {min(left)[:80]!r} belongs to no record")
    return graph, vectors


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def round_to_half(graph: r.Graph) -> r.Graph:
    """The graph with all numbers but trits rounded to float16, as `half` stores them."""
    return replace(graph, records=tuple(map(_rounded, graph.records)))


def _rounded(record: r.Record) -> r.Record:
    arrays = {name: getattr(record, name) for name in ARRAYS if hasattr(record, name)}
    rounded: dict[str, Any] = {
        name: _half(record, name, values).astype(np.float32)
        for name, values in arrays.items()
        if values.dtype == np.float32
    }
    return replace(record, **rounded)


def _half(record: r.Record, field: str, values: r.Floats) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = values.astype(np.float16)
    if not np.isfinite(halves).all():
        raise ExportError(f"{record.name}: its {field} has a number too large for float16")
    return halves


def _tensors(record: r.Record, *, half: bool) -> Tensors:
    tensors: Tensors = {}
    for field in ARRAYS:
        values = getattr(record, field, None)
        if values is None:
            continue
        if values.dtype == np.int8:
            tensors[f"{record.name}.trits"] = np.frombuffer(encode_trits(values), dtype=np.uint8)
        else:
            tensors[f"{record.name}.{field}"] = _half(record, field, values) if half else values
    return tensors


def _graph(metadata: dict[str, str], tensors: Tensors) -> tuple[r.Graph, Tensors]:
    """The graph, and the tensors that do not belong to it."""
    model = strict_json(metadata["model"], "model")
    about = strict_json(metadata["about"], "about")
    keys = {"input_shape", "records", "output", "class_names"}
    if not isinstance(model, dict) or model.keys() != keys or not isinstance(about, dict):
        raise ExportError(f"the model must be described by {', '.join(sorted(keys))}")
    if not isinstance(model["records"], list) or not 1 <= len(model["records"]) <= MOST_RECORDS:
        raise ExportError(f"a model must have 1 to {MOST_RECORDS} records")
    if not isinstance(model["class_names"], list) or not all(isinstance(name, str) for name in model["class_names"]):
        raise ExportError("class_names must be a list of strings")
    stored = _StoredTensors(tensors)
    graph = r.Graph(
        input_shape=_parsed("input_shape", r.Shape, model["input_shape"]),
        mean=stored.array("input", "mean"),
        std=stored.array("input", "std"),
        records=tuple(restore(record, stored.array, stored.trits) for record in model["records"]),
        output=_parsed("output", str, model["output"]),
        class_names=tuple(model["class_names"]),
        about=about,
    )
    return graph, stored.left


class _StoredTensors:
    """Tensors of a file, each of which is read once."""

    def __init__(self, tensors: Tensors) -> None:
        self.left = dict(tensors)
        self._weights_left = MOST_WEIGHTS

    def array(self, record: str, field: str) -> r.Floats:
        values = self._pop(f"{record}.{field}")
        if values.dtype not in (np.float32, np.float16):
            raise ExportError(f"the tensor {record}.{field} must hold float32 or float16")
        return values.astype(np.float32)

    def trits(self, record: str, shape: r.Shape) -> r.Trits:
        payload = self._pop(f"{record}.trits")
        count = math.prod(shape)
        if payload.dtype != np.uint8 or payload.ndim != 1 or min(shape, default=0) < 1:
            raise ExportError(f"the tensor {record}.trits must be a payload of bytes, its weight have sizes above 0")
        self._weights_left -= count
        if self._weights_left < 0:
            raise ExportError(f"a model may have at most {MOST_WEIGHTS} ternary weights")
        try:
            return decode_trits(payload.tobytes(), count).reshape(shape)
        except ExportError as error:
            raise ExportError(f"{record}: {error}") from error

    def _pop(self, name: str) -> NDArray[Any]:
        if name not in self.left:
            raise ExportError(f"the tensor {name[:200]!r} is missing")
        return self.left.pop(name)


def _check_sparsity(graph: r.Graph, claimed: Any) -> None:
    counted = {layer.name: [layer.zeros, layer.weight.size] for layer in graph.ternary_layers}
    if claimed != counted:
        raise ExportError("the zeros counted in its trits differ from its metadata")


def payload_bytes(graph: r.Graph) -> dict[str, int]:
    """Bytes of the encoded trits per ternary layer."""
    return {layer.name: len(encode_trits(_trits(layer))) for layer in graph.ternary_layers}


def _trits(layer: r.WeightRecord) -> r.Trits:
    return layer.weight.astype(np.int8, copy=False)
