"""The packed format: a whole model in one small safetensors file, its trits in an entropy code.

The README describes it in ten bullets. The reader rejects invalid files and repairs nothing.
"""

import json
import math
import re
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, Strict, ValidationError, create_model

from sca_search.errors import ExportError, ScaError
from sca_search.export.graph import records as r
from sca_search.export.graph.shapes import check_graph
from sca_search.export.packed.container import Tensors, from_bytes, strict_json, to_bytes
from sca_search.export.packed.test_vectors import check_vectors, take_vectors, vector_tensors
from sca_search.export.packed.trit_code import decode_trits, encode_trits
from sca_search.system.files import atomic_path, require_loadable

FORMAT = "sca-search/packed"
VERSION = "1"
# A few bytes can stand for any number of equal trits, so a file's size does not limit its number of weights.
MOST_WEIGHTS = 2**28
MOST_RECORDS = 10_000

KINDS = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in r.RECORDS}
"""Types of records by the names that files have for them, such as adaptive_pool."""
_NAMES = {kind: name for name, kind in KINDS.items()}
_STRICT = ConfigDict(extra="forbid", strict=True)
_FROM_LIST = Strict(False)  # of a tuple, which is a list in JSON; what is in it is not converted


def describe(record: r.Record) -> dict[str, Any]:
    """A record as JSON: fields that differ from their defaults, without arrays; of a weight, its shape and whether it
    is ternary."""
    plain = {
        field.name: getattr(record, field.name)
        for field in fields(record)
        if field.name not in r.ARRAYS and getattr(record, field.name) != field.default
    }
    # pools and activations have a field `kind`; the type of the record is `type`
    described = {"type": _NAMES[type(record)], **plain}
    if isinstance(record, r.WeightRecord):
        described |= {"ternary": record.ternary, "weight_shape": list(record.weight.shape)}
    return described


def _description_of(kind: type[r.Record]) -> type[BaseModel]:
    """What `describe` gives for a record of this type."""
    hints = get_type_hints(kind)
    known: dict[str, Any] = {"type": (Literal[_NAMES[kind]], ...)}
    for field in fields(kind):
        if field.name not in r.ARRAYS:
            hint = hints[field.name]
            known[field.name] = (
                Annotated[hint, _FROM_LIST] if get_origin(hint) is tuple else hint,
                ... if field.default is MISSING else field.default,
            )
    if issubclass(kind, r.WeightRecord):
        known |= {"ternary": (bool, ...), "weight_shape": (Annotated[r.Shape, _FROM_LIST], ...)}
    return create_model(kind.__name__, __config__=_STRICT, **known)


_KINDS = tuple(map(_description_of, r.RECORDS))
_DESCRIPTION: Any = Annotated[Union[_KINDS], Field(discriminator="type")]  # noqa: UP007 - they are computed
_MODEL: Any = create_model(
    "Model",
    __config__=_STRICT,
    input_shape=(Annotated[r.Shape, _FROM_LIST], ...),
    records=(Annotated[list[_DESCRIPTION], Field(min_length=1, max_length=MOST_RECORDS)], ...),
    output=(str, ...),
    class_names=(Annotated[tuple[str, ...], _FROM_LIST], ...),
)


def write_packed(path: Path, graph: r.Graph, vectors: r.TestVectors, *, half: bool = False) -> None:
    """Writes the model; with `half`, all numbers but trits are stored as float16."""
    content = packed_bytes(graph, vectors, half=half)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_packed(path: Path) -> tuple[r.Graph, r.TestVectors]:
    """The model and its test vectors; ExportError, with the file's name, unless it is complete and valid."""
    if not path.is_file():
        raise ExportError(f"{path} is not a file")
    require_loadable(path, ExportError)
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
    graph = round_to_half(graph) if half else graph
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
        "sparsity": _json(graph.zeros),
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
    stored = _StoredTensors(tensors)
    graph = _graph(metadata, stored)
    check_graph(graph)
    if strict_json(metadata["sparsity"], "sparsity") != {name: [*count] for name, count in graph.zeros.items()}:
        raise ExportError("the zeros counted in its trits differ from its metadata")
    vectors = take_vectors(stored.left)
    check_vectors(graph, vectors)
    if stored.left:
        raise ExportError(f"the tensor {min(stored.left)[:80]!r} belongs to no record")
    return graph, vectors


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def round_to_half(graph: r.Graph) -> r.Graph:
    """The graph with all numbers but trits rounded to float16, as `half` stores them."""
    with np.errstate(over="ignore"):
        return replace(graph, records=tuple(map(_rounded, graph.records)))


def _rounded(record: r.Record) -> r.Record:
    floats = {name: values for name, values in record.arrays.items() if values.dtype == np.float32}
    halves: dict[str, Any] = {name: values.astype(np.float16).astype(np.float32) for name, values in floats.items()}
    for name, values in halves.items():
        if not np.isfinite(values).all():
            raise ExportError(f"{record.name}: its {name} has a number too large for float16")
    return replace(record, **halves)


def _tensors(record: r.Record, *, half: bool) -> Tensors:
    tensors: Tensors = {}
    for field, values in record.arrays.items():
        if values.dtype == np.int8:
            tensors[f"{record.name}.trits"] = np.frombuffer(encode_trits(values), dtype=np.uint8)
        else:
            tensors[f"{record.name}.{field}"] = values.astype(np.float16) if half else values
    return tensors


def _graph(metadata: dict[str, str], stored: "_StoredTensors") -> r.Graph:
    about = strict_json(metadata["about"], "about")
    if not isinstance(about, dict):
        raise ExportError("about must be a JSON object")
    try:
        model: Any = _MODEL.model_validate(strict_json(metadata["model"], "model"))
    except ValidationError as error:
        first = error.errors()[0]
        rule = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".replace(": Input should be", " must be")
        raise ExportError(f"{rule[:300]}, got {str(first['input'])[:80]}") from error
    mean, std = stored.array("input.mean"), stored.array("input.std")
    records = tuple(map(stored.record, model.records))
    return r.Graph(model.input_shape, mean, std, records, model.output, model.class_names, about)


class _StoredTensors:
    """Tensors of a file, each of which is read once."""

    def __init__(self, tensors: Tensors) -> None:
        self.left = dict(tensors)
        self._weights_left = MOST_WEIGHTS

    def record(self, description: Any) -> r.Record:
        """The record that was described; whether shapes fit each other is checked by the rules of a graph."""
        kind, name = KINDS[description.type], description.name
        values = {field: value for field, value in description if field not in ("type", "ternary", "weight_shape")}
        values |= {
            field: self.array(f"{name}.{field}") for field in ("scale", "bias") if field in kind.__dataclass_fields__
        }
        if issubclass(kind, r.WeightRecord):
            shape = description.weight_shape
            # Before anything is decoded: scales lie in the file, so that many outputs need a large file.
            if shape[:1] != values["scale"].shape:
                raise ExportError(f"{name}: the weight has the shape {shape}, the scale {values['scale'].shape}")
            values["weight"] = self.trits(name, shape) if description.ternary else self.array(f"{name}.weight")
            if shape != values["weight"].shape:
                raise ExportError(f"{name}: the weight has not the shape {shape}")
        return kind(**values)

    def array(self, name: str) -> r.Floats:
        values = self._pop(name)
        if values.dtype not in (np.float32, np.float16):
            raise ExportError(f"the tensor {name} must hold float32 or float16")
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


def payload_bytes(graph: r.Graph) -> dict[str, int]:
    """Bytes of the encoded trits per ternary layer."""
    return {layer.name: len(encode_trits(layer.weight.astype(np.int8, copy=False))) for layer in graph.ternary_layers}
