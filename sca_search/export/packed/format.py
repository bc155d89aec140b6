"""The packed format: a whole model in one small safetensors file, its trits in an entropy code.

The README describes it in ten bullets. The reader refuses rather than repairs.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError, ScaError
from sca_search.export.graph import records as r
from sca_search.export.graph.shapes import check_graph
from sca_search.export.packed.container import Tensors, from_bytes, strict_json, to_bytes
from sca_search.export.packed.test_vectors import check_vectors, take_vectors, vector_tensors
from sca_search.export.packed.trit_code import decode_trits, encode_trits
from sca_search.system.files import atomic_path

KINDS: dict[str, type[r.Record]] = {
    "convolution": r.Convolution,
    "linear": r.Linear,
    "pool": r.Pool,
    "adaptive_pool": r.AdaptivePool,
    "activation": r.Activation,
    "add": r.Add,
    "multiply": r.Multiply,
    "concat": r.Concat,
    "reshape": r.Reshape,
    "channel_affine": r.ChannelAffine,
}
_NAMES = {kind: name for name, kind in KINDS.items()}
ARRAYS = ("weight", "scale", "bias")
"""The fields of a record that are arrays; a file keeps each as a tensor, named record.field."""


def describe(record: r.Record) -> dict[str, Any]:
    """A record's JSON: what is not its default, no arrays, and of a weight its shape and whether it is ternary."""
    plain = {
        field.name: getattr(record, field.name)
        for field in fields(record)
        if field.name not in ARRAYS and getattr(record, field.name) != field.default
    }
    # `kind` is what pools and activations call themselves; the record's own is its type
    described = {"type": _NAMES[type(record)], **plain}
    if isinstance(record, r.WeightRecord):
        described |= {"ternary": record.ternary, "weight_shape": list(record.weight.shape)}
    return described


def restore(given: Any, array: Callable[[str, str], NDArray[np.float32]], trits: Callable[..., Any]) -> r.Record:
    """The record that was described.

    `array(record, field)` fetches float values, `trits(record, shape)` a ternary weight. What is said of types is
    checked here; whether shapes fit each other is for the rules of a graph to say.
    """
    if not isinstance(given, dict) or given.get("type") not in tuple(KINDS):  # a list has no hash
        raise ExportError(f"a record must have one of the types {', '.join(KINDS)}")
    kind = KINDS[given["type"]]
    names = {field.name for field in fields(kind)}
    is_weight = issubclass(kind, r.WeightRecord)
    known = (names - set(ARRAYS)) | {"type"} | ({"ternary", "weight_shape"} if is_weight else set())
    odd = sorted((given.keys() - known) | (known - given.keys() - _with_default(kind)))
    if odd:
        raise ExportError(f"a record of type {given['type']} lacks or does not know {odd[0][:80]!r}")
    values = {name: _PARSERS[name](name, given[name]) for name in names & given.keys() - set(ARRAYS)}
    values |= {name: array(values["name"], name) for name in names & {"scale", "bias"}}
    if is_weight:
        shape = _integers("weight_shape", given["weight_shape"])
        ternary = _flag("ternary", given["ternary"])
        # Before anything is decoded: scales lie in the file, so that many outputs need a large file.
        if shape[:1] != values["scale"].shape:
            raise ExportError(f"{values['name']}: the weight has the shape {shape}, the scale {values['scale'].shape}")
        values["weight"] = trits(values["name"], shape) if ternary else array(values["name"], "weight")
        if shape != values["weight"].shape:
            raise ExportError(f"{values['name']}: the weight has not the shape {shape}")
    return kind(**values)


def _with_default(kind: type[r.Record]) -> set[str]:
    return {field.name for field in fields(kind) if field.default is not MISSING}


def text(what: str, given: Any, longest: int = 200) -> str:
    """A text that is not too long."""
    if not isinstance(given, str) or len(given) > longest:
        raise ExportError(f"{what} must be a string of at most {longest} characters")
    return given


def texts(what: str, given: Any) -> tuple[str, ...]:
    """A list of them."""
    if not isinstance(given, list):
        raise ExportError(f"{what} must be a list of texts")
    return tuple(text(what, each) for each in given)


def _integers(what: str, given: Any) -> tuple[int, ...]:
    # `type` and not isinstance: True is an int to Python
    if not isinstance(given, list) or not all(type(each) is int for each in given) or len(given) > 8:
        raise ExportError(f"{what} must be a list of whole numbers")
    return tuple(given)


def integers(count: int | None = None) -> Callable[[str, Any], tuple[int, ...]]:
    """A parser of so many whole numbers."""

    def parse(what: str, given: Any) -> tuple[int, ...]:
        numbers = _integers(what, given)
        if count is not None and len(numbers) != count:
            raise ExportError(f"{what} must be {count} whole numbers, got {len(numbers)}")
        return numbers

    return parse


def _integer(what: str, given: Any) -> int:
    return _integers(what, [given])[0]


def _flag(what: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise ExportError(f"{what} must be true or false")
    return given


def _number(what: str, given: Any) -> float:
    if type(given) not in (int, float) or not abs(given) < 1e30:
        raise ExportError(f"{what} must be a number")
    return float(given)


_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "name": text,
    "inputs": texts,
    "shape": integers(),
    "kind": text,  # which kinds there are, a graph's rules know
    "slope": _number,
    "kernel": integers(2),
    "stride": integers(2),
    "dilation": integers(2),
    "padding": integers(4),
    "groups": _integer,
    "ceil_mode": _flag,
    "count_include_pad": _flag,
}


FORMAT = "sca-search/packed"
VERSION = "1"
# A few bytes can stand for any number of equal trits, so that a file's size says nothing of what it asks for.
MOST_WEIGHTS = 2**28
MOST_RECORDS = 10_000


def write_packed(path: Path, graph: r.Graph, vectors: r.TestVectors, *, half: bool = False) -> None:
    """Writes the model; with `half`, numbers that are no trits are stored as float16."""
    content = packed_bytes(graph, vectors, half=half)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_packed(path: Path) -> tuple[r.Graph, r.TestVectors]:
    """The model and its test vectors; ExportError, naming the file, unless it is whole and right."""
    if not path.is_file():
        raise ExportError(f"{path} is no file")
    try:
        return from_packed_bytes(path.read_bytes())
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error
    except ScaError as error:
        raise ExportError(f"{path} is no packed model that can be trusted: {error}") from error


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
    """What `packed_bytes` was given."""
    tensors, metadata = from_bytes(content)
    if (metadata.get("format"), metadata.get("version")) != (FORMAT, VERSION):
        given = f"{metadata.get('format', 'nothing')} {metadata.get('version', '')}"[:80]
        raise ExportError(f"it must be {FORMAT} of version {VERSION}, got {given}")
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
    """The graph with every number that is no trit as a float16 can hold it: what `half` stores."""
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
    """The graph, and the tensors that it did not take."""
    model = strict_json(metadata["model"], "model")
    about = strict_json(metadata["about"], "about")
    keys = {"input_shape", "records", "output", "class_names"}
    if not isinstance(model, dict) or model.keys() != keys or not isinstance(about, dict):
        raise ExportError(f"the model must be described by {', '.join(sorted(keys))}")
    if not isinstance(model["records"], list) or not 1 <= len(model["records"]) <= MOST_RECORDS:
        raise ExportError(f"a model must have 1 to {MOST_RECORDS} records")
    shelf = _Shelf(tensors)
    graph = r.Graph(
        input_shape=integers()("input_shape", model["input_shape"]),
        mean=shelf.array("input", "mean"),
        std=shelf.array("input", "std"),
        records=tuple(restore(record, shelf.array, shelf.trits) for record in model["records"]),
        output=text("output", model["output"]),
        class_names=texts("class_names", model["class_names"]),
        about=about,
    )
    return graph, shelf.left


class _Shelf:
    """Tensors to be taken once each."""

    def __init__(self, tensors: Tensors) -> None:
        self.left = dict(tensors)
        self._weights_left = MOST_WEIGHTS

    def array(self, record: str, field: str) -> r.Floats:
        values = self._take(f"{record}.{field}")
        if values.dtype not in (np.float32, np.float16):
            raise ExportError(f"the tensor {record}.{field} must hold float32 or float16")
        return values.astype(np.float32)

    def trits(self, record: str, shape: r.Shape) -> r.Trits:
        payload = self._take(f"{record}.trits")
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

    def _take(self, name: str) -> NDArray[Any]:
        if name not in self.left:
            raise ExportError(f"the tensor {name[:200]!r} is missing")
        return self.left.pop(name)


def _check_sparsity(graph: r.Graph, given: Any) -> None:
    counted = {layer.name: [layer.zeros, layer.weight.size] for layer in graph.ternary_layers}
    if given != counted:
        raise ExportError("the zeros counted in its trits are not those that it names")


def payload_bytes(graph: r.Graph) -> dict[str, int]:
    """Bytes of each ternary layer's trits in the code."""
    return {layer.name: len(encode_trits(_trits(layer))) for layer in graph.ternary_layers}


def _trits(layer: r.WeightRecord) -> r.Trits:
    return layer.weight.astype(np.int8, copy=False)
