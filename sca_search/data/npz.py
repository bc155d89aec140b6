"""A data set in one .npz file, under the names that MedMNIST's files use, or channels first.

    train_images, train_labels    or train_inputs, train_targets; required
    val_images,   val_labels      or val_inputs, val_targets; without them, validation is taken from training
    test_images,  test_labels     or test_inputs, test_targets; required, read at the very end
    output_names                  optional: a string for each class, label or value

Images are (N, H, W) or (N, H, W, C), uint8 (scaled by 1/255) or float (unchanged). Inputs have any rank,
(N, C), (N, C, L), (N, C, H, W) or more, channels first, of the same types. The kind of task follows from the targets
(targets.py). Names, shapes and types of all arrays are checked in their headers before anything is read, and test
inputs are checked in pieces and discarded: a long study must not fail at its end because of a malformed test split.
"""

import lzma
import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from sca_search.config.names import Kind
from sca_search.data.arrays import Arrays, data_of_arrays
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.targets import Values, check_targets, count_outputs, kind_of, numbered, require_kind, targets_of
from sca_search.errors import DataError
from sca_search.system.machine import available_bytes

# zipfile raises RuntimeError where a password is needed.
_BROKEN = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
_NAMES = "output_names"
# Values of an array that are checked together: their float32 copies take 4 MB.
_PIECE = 1024**2

_Header = tuple[tuple[int, ...], np.dtype[Any]]


@dataclass(frozen=True)
class _File:
    """A file whose headers are valid."""

    path: Path
    parts: tuple[str, ...]  # training first
    inputs: str  # the name of its arrays: images or inputs
    targets: str
    kind: Kind

    def read(self, part: str) -> Arrays:
        key = f"{part}_{self.inputs}"
        inputs, is_first = _finite(self.path, key, _read(self.path, key)), self.inputs == "inputs"
        return Arrays(str(self.path), inputs, self.read_targets(part), self.kind, is_first)

    def read_targets(self, part: str) -> Values:
        key = f"{part}_{self.targets}"
        return targets_of(f"{self.path}: {key}", _read(self.path, key), self.kind)


def load_npz(name: str, path: Path, request: DataRequest, classes: Sequence[str] | None = None) -> DataSet:
    """The data set in `path`; `classes` are the names of the classes where they are known."""
    file = _checked(path)
    if request.image_size is not None and file.inputs == "inputs":
        raise DataError(f"data set {name!r}: an image size is for arrays named images, these are named inputs")
    count = count_outputs(f"{path}: train_{file.targets}", file.read_targets("train"), file.kind)
    for part in file.parts[1:]:
        check_targets(f"{path}: {part}_{file.targets}", file.read_targets(part), file.kind, count)
    if request.check_test:
        _check_values(path, f"test_{file.inputs}")
    names = _output_names(path, file.kind, count, classes)
    val = file.read("val") if "val" in file.parts else None
    return data_of_arrays(name, names, file.read("train"), val, lambda: file.read("test"), request)


def _output_names(path: Path, kind: Kind, count: int, known: Sequence[str] | None) -> tuple[str, ...]:
    header = _read_headers(path).get(_NAMES)
    if header is not None:
        shape, dtype = header
        if shape != (count,) or dtype.kind != "U":
            raise DataError(f"{path}: {_NAMES} must be {count} strings, got {dtype} of shape {shape}")
        return tuple(map(str, _read(path, _NAMES)))
    return tuple(known) if known and len(known) == count else numbered(kind, count)


def _checked(path: Path) -> _File:
    """The file; DataError where the names, shapes or types of its arrays are invalid."""
    headers = _read_headers(path)
    inputs, targets = ("inputs", "targets") if "train_inputs" in headers else ("images", "labels")
    has_val = f"val_{inputs}" in headers or f"val_{targets}" in headers
    parts = ("train", "val", "test") if has_val else ("train", "test")
    needed = [f"{part}_{what}" for part in parts for what in (inputs, targets)]
    missing = [key for key in needed if key not in headers]
    if missing:
        raise DataError(
            f"{path}: the arrays {', '.join(needed)} are required, {', '.join(missing)} missing; "
            f"it has {', '.join(sorted(headers)) or 'none'}"
        )
    _require_memory(path, [header for key, header in headers.items() if key in {*needed, _NAMES}])
    kind = kind_of(f"{path}: train_{targets}", *headers[f"train_{targets}"])
    for part in parts:
        _check_inputs(f"{path}: {part}_{inputs}", headers[f"{part}_{inputs}"], headers[f"train_{inputs}"][0][1:])
        require_kind(f"{path}: {part}_{targets}", *headers[f"{part}_{targets}"], kind)
        count, found = (headers[f"{part}_{what}"][0][0] for what in (inputs, targets))
        if found != count:
            raise DataError(f"{path}: {part}_{targets} must have one row for each of {count} examples, got {found}")
    return _File(path, parts, inputs, targets, kind)


def _require_memory(path: Path, headers: Sequence[_Header]) -> None:
    """DataError if the arrays are larger than the memory: a small archive can be decompressed to any size."""
    size, most = sum(math.prod(shape) * dtype.itemsize for shape, dtype in headers), available_bytes()
    if size > most:
        raise DataError(f"{path}: its arrays must fit into the available memory, {most:,} bytes, got {size:,}")


def _check_inputs(where: str, header: _Header, expected: tuple[int, ...]) -> None:
    shape, dtype = header
    what = "images" if where.endswith("_images") else "inputs"
    rules = {
        f"be uint8 or float, got {dtype}": dtype == np.uint8 or dtype.kind == "f",
        f"have shape (N, H, W) or (N, H, W, C), got {shape}": what == "inputs" or len(shape) in {3, 4},
        f"have shape (N, C) or (N, C, …), channels first, got {shape}": len(shape) >= 2,
        f"not be empty, got shape {shape}": 0 not in shape,
        f"have {what} of shape {expected} as in training, got {shape[1:]}": shape[1:] == expected,
    }
    for rule, holds in rules.items():
        if not holds:
            raise DataError(f"{where} must {rule}")


def _read_headers(path: Path) -> dict[str, _Header]:
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, there is none")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: the data file must be a .npz archive as numpy.savez writes it, it is not")
    with _reading(path, "every array"), zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        return {name.removesuffix(".npy"): _checked_header(archive, name) for name in names}


def _checked_header(archive: zipfile.ZipFile, name: str) -> _Header:
    """An array's header; ValueError unless the file has as many bytes as it claims, which numpy would allocate."""
    with archive.open(name) as member:
        shape, dtype = _read_header(member)
        present = archive.getinfo(name).file_size - member.tell()
    claimed = math.prod(shape) * dtype.itemsize
    if claimed != present and not dtype.hasobject:  # objects are pickled, in any number of bytes
        raise ValueError(f"{name} has the shape {shape} of {dtype}, which is {claimed:,} bytes, but holds {present:,}")
    return shape, dtype


def _read_header(member: IO[bytes]) -> _Header:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(member)
    return shape, dtype


def _check_values(path: Path, key: str) -> None:
    """Check inputs as reading them would, including the checksum, without keeping them."""
    with _reading(path, key), zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as member:
        _, dtype = _read_header(member)
        while piece := member.read(_PIECE * dtype.itemsize):
            _finite(path, key, np.frombuffer(piece, dtype))


def _finite(path: Path, key: str, inputs: NDArray[Any]) -> NDArray[Any]:
    """Inputs as uint8 or float32; DataError where they are not finite."""
    if inputs.dtype == np.uint8:
        return inputs
    with np.errstate(over="ignore"):  # a finite float64 may overflow: rejected below
        inputs = inputs.astype(np.float32)
    if not np.isfinite(inputs).all():
        raise DataError(f"{path}: {key} must be finite numbers, got NaN or infinity")
    return inputs


def _read(path: Path, key: str) -> NDArray[Any]:
    # Without pickle: an untrusted file must not be able to run code.
    with _reading(path, key), np.load(path, allow_pickle=False) as archive:
        array: NDArray[Any] = archive[key]
        return array


@contextmanager
def _reading(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except MemoryError:
        raise DataError(f"{path}: {what} must fit into memory, it does not") from None
    except _BROKEN as error:
        raise DataError(f"{path}: {what} must be readable, got: {error}") from None
