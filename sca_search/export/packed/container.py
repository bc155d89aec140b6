"""The container of a packed model: a safetensors file, read strictly.

Written here and not by the safetensors library, which orders the metadata differently each time: the same model gives
the same bytes. The library reads these files; the reader here also rejects what the library accepts (a name twice,
a wrong checksum).
"""

import hashlib
import json
import re
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, deserialize

from sca_search.errors import ExportError

Tensors = dict[str, NDArray[Any]]

_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "U8": np.dtype("u1")}
_CHECKSUM = re.compile("[0-9a-f]{64}")
_UNSET = "0" * 64


def to_bytes(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> bytes:
    """The file; `checksum` is added to the metadata."""
    # The widest type first: every tensor then begins at a multiple of its own width.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].dtype.itemsize, item[0]))
    header: dict[str, Any] = {"__metadata__": {**dict(sorted(metadata.items())), "checksum": _UNSET}}
    at = 0
    for name, values in ordered:
        code = next(code for code, kind in _TYPES.items() if kind == values.dtype)
        header[name] = {"dtype": code, "shape": list(values.shape), "data_offsets": [at, at + values.nbytes]}
        at += values.nbytes
    text = json.dumps(header, separators=(",", ":"), allow_nan=False).encode("ascii")
    text += b" " * (-len(text) % 8)
    body = b"".join(np.ascontiguousarray(values).tobytes() for _, values in ordered)
    unsigned = struct.pack("<Q", len(text)) + text + body
    # Quotes inside of other texts are escaped: these bytes occur once.
    place = unsigned.index(b'"checksum":"' + _UNSET.encode()) + len(b'"checksum":"')
    return unsigned[:place] + hashlib.sha256(unsigned).hexdigest().encode() + unsigned[place + 64 :]


def from_bytes(content: bytes) -> tuple[Tensors, dict[str, str]]:
    """Tensors and metadata; ExportError unless the file is whole and nothing in it was changed."""
    try:
        stored = deserialize(content)  # type: ignore[no-untyped-call]
        header_end = 8 + int.from_bytes(content[:8], "little")
        header = strict_json(content[8:header_end], "the header")
        metadata: dict[str, str] = header.get("__metadata__") or {}
        _check_checksum(content, header_end, metadata.pop("checksum", ""))
        tensors: Tensors = {}
        for name, tensor in stored:
            kind = _TYPES.get(tensor["dtype"])
            if kind is None:
                raise ExportError(f"the tensor {name!r} must be of type {', '.join(_TYPES)}, got {tensor['dtype']}")
            tensors[name] = np.frombuffer(tensor["data"], kind).reshape(tensor["shape"])
        return tensors, metadata
    except (SafetensorError, ValueError) as error:  # numpy has shapes that it cannot hold, though they are empty
        raise ExportError(f"the file is damaged or cut short: {error}") from error


def strict_json(text: str | bytes, what: str) -> Any:
    """JSON without repeated names, NaN, infinity or excessive nesting."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{what} is not JSON: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name occurs twice")
    return values


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _check_checksum(content: bytes, header_end: int, checksum: str) -> None:
    """SHA-256 of the whole file, the checksum's own 64 characters counted as zeros."""
    header = content[:header_end]
    if not _CHECKSUM.fullmatch(checksum) or header.count(checksum.encode()) != 1:
        raise ExportError("the file has no checksum")
    unsigned = hashlib.sha256(header.replace(checksum.encode(), _UNSET.encode()))
    unsigned.update(memoryview(content)[header_end:])
    if unsigned.hexdigest() != checksum:
        raise ExportError(f"the checksum is wrong: the file was damaged or changed, {checksum[:12]}… is expected")
