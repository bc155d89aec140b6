"""The container of a packed model: a safetensors file, read strictly.

Written here and not by the safetensors library, which orders the metadata differently each time: the same model gives
the same bytes. The library reads these files; the reader here also rejects what the library accepts (a name twice,
NaN).
"""

import hashlib
import json
import math
import re
import struct
from collections.abc import Mapping
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError

Tensors = dict[str, NDArray[Any]]

_TYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "U8": np.dtype("u1")}
_LARGEST_HEADER = 2**24
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
    header, begin = _header(content)
    metadata = _metadata(header.pop("__metadata__", None))
    _check_checksum(content, begin, metadata.pop("checksum", ""))
    entries = sorted(((*_entry(name, content), name) for name, content in header.items()), key=lambda entry: entry[0])
    tensors: Tensors = {}
    at = 0
    for (first, last), kind, shape, name in entries:
        if first != at or last - first != math.prod(shape) * kind.itemsize:
            raise ExportError(f"the tensor {name!r} does not begin where the one before ends, or has another size")
        if begin + last > len(content):
            raise ExportError(f"the file is cut short: the tensor {name!r} ends at byte {begin + last}")
        tensors[name] = np.frombuffer(content, kind, math.prod(shape), begin + first).reshape(shape)
        at = last
    if begin + at != len(content):
        raise ExportError(f"the file has {len(content) - begin - at} bytes after its last tensor")
    return tensors, metadata


def strict_json(text: str | bytes, what: str) -> Any:
    """JSON without repeated names, NaN, infinity or excessive nesting."""
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ExportError(f"{what} is not JSON: {error}") from error


def _header(content: bytes) -> tuple[dict[str, Any], int]:
    if len(content) < 8:
        raise ExportError(f"the file is cut short: it has {len(content)} bytes")
    (size,) = struct.unpack_from("<Q", content)
    if size > _LARGEST_HEADER:
        raise ExportError(f"the header is said to have {size} bytes, at most {_LARGEST_HEADER} are allowed")
    if 8 + size > len(content):
        raise ExportError(f"the file is cut short: its header has {size} bytes, the file {len(content)}")
    header = strict_json(content[8 : 8 + size], "the header")
    if not isinstance(header, dict):
        raise ExportError("the header must be a JSON object")
    return header, 8 + size


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        raise ValueError("a name occurs twice")
    return values


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a number")


def _metadata(content: Any) -> dict[str, str]:
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise ExportError("the header has no metadata")
    return content


def _check_checksum(content: bytes, header_end: int, checksum: str) -> None:
    """SHA-256 of the whole file, the checksum's own 64 characters counted as zeros."""
    header = content[:header_end]
    if not _CHECKSUM.fullmatch(checksum) or header.count(checksum.encode()) != 1:
        raise ExportError("the file has no checksum")
    unsigned = hashlib.sha256(header.replace(checksum.encode(), _UNSET.encode()))
    unsigned.update(memoryview(content)[header_end:])
    if unsigned.hexdigest() != checksum:
        raise ExportError(f"the checksum is wrong: the file was damaged or changed, {checksum[:12]}… is expected")


def _entry(name: str, content: Any) -> tuple[tuple[int, int], np.dtype[Any], tuple[int, ...]]:
    if not isinstance(content, dict) or content.keys() != {"dtype", "shape", "data_offsets"}:
        raise ExportError(f"the tensor {name!r} must have a dtype, a shape and offsets")
    shape, offsets = _sizes(name, content["shape"]), _sizes(name, content["data_offsets"])
    kind = _TYPES.get(str(content["dtype"]))
    if kind is None or len(offsets) != 2:
        raise ExportError(
            f"the tensor {name!r} must be of type {', '.join(_TYPES)}, got {str(content['dtype'])[:40]!r}"
        )
    return (offsets[0], offsets[1]), kind, shape


def _sizes(name: str, content: Any) -> tuple[int, ...]:
    fine = (
        isinstance(content, list)
        and len(content) <= 8
        and all(type(each) is int and 0 <= each < 2**48 for each in content)
    )
    if not fine:
        raise ExportError(f"the tensor {name!r} has invalid sizes")
    return tuple(content)
