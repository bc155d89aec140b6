"""A data set in one .npz file, under the names that MedMNIST's files use, or channels first.

    train_images, train_labels    or train_inputs, train_targets; required
    val_images,   val_labels      or val_inputs, val_targets; without them, validation is carved from training
    test_images,  test_labels     or test_inputs, test_targets; required, read at the very end
    output_names                  optional: a text for each class, label or value

Images are (N, H, W) or (N, H, W, C), uint8 (scaled by 1/255) or float (taken as they are). Inputs have any rank,
(N, C), (N, C, L), (N, C, H, W) or more, channels first, of the same types. What is predicted follows from the targets
(targets.py). Every rule about names, shapes and types is checked on the arrays' headers before anything is read, the
test arrays' too, and test inputs are walked through in pieces, of which nothing is kept: a long study must not end on a
malformed test split.
"""

import lzma
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sca_search.data.arrays import split_from_arrays
from sca_search.data.dataset import DataRequest, DataSet, assemble
from sca_search.data.splits import Split
from sca_search.data.stratify import carve_val, limit_rows, require_every_class
from sca_search.data.targets import Kind, Values, check_targets, count_outputs, kind_of, numbered, strata, targets_of
from sca_search.errors import DataError

# RuntimeError is what zipfile says of a password.
_BROKEN = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
_NAMES = "output_names"
# Values of an array that are looked at together: their float32 copies are 4 MB.
_PIECE = 1024**2


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class _File:
    """A file whose headers are in order."""

    path: Path
    parts: tuple[str, ...]  # training first
    inputs: str  # what its arrays are called: images or inputs
    targets: str
    kind: Kind

    def read_inputs(self, part: str) -> NDArray[Any]:
        return _read_inputs(self.path, f"{part}_{self.inputs}")

    def check_inputs(self, part: str) -> None:
        _check_values(self.path, f"{part}_{self.inputs}")

    def read_targets(self, part: str) -> Values:
        key = f"{part}_{self.targets}"
        return targets_of(f"{self.path}: {key}", _read(self.path, key), self.kind)

    def read_split(self, part: str, image_size: int | None) -> Split:
        return split_from_arrays(
            self.read_inputs(part), self.read_targets(part), image_size=image_size, channels_first=self.channels_first
        )

    @property
    def channels_first(self) -> bool:
        return self.inputs == "inputs"


def load_npz(name: str, path: Path, request: DataRequest, classes: Sequence[str] | None = None) -> DataSet:
    """The data set in `path`; `classes` names the classes where their names are known."""
    file = _checked(path)
    if request.image_size is not None and file.channels_first:
        raise DataError(f"data set {name!r}: an image size is for arrays named images, these are named inputs")
    targets = file.read_targets("train")
    count = count_outputs(f"{path}: train_{file.targets}", targets, file.kind)
    for part in file.parts[1:]:
        check_targets(f"{path}: {part}_{file.targets}", file.read_targets(part), file.kind, count)
    if request.check_test:
        file.check_inputs("test")
    names = _output_names(path, file.kind, count, classes)
    train, val = _read_train_and_val(file, names, request)
    return assemble(
        name,
        names,
        train,
        val,
        lambda: file.read_split("test", request.image_size),
        kind=file.kind,
        normalise=request.normalise,
    )


def _output_names(path: Path, kind: Kind, count: int, known: Sequence[str] | None) -> tuple[str, ...]:
    header = _read_headers(path).get(_NAMES)
    if header is not None:
        if header.shape != (count,) or header.dtype.kind != "U":
            raise DataError(f"{path}: {_NAMES} must be {count} texts, got {header.dtype} of shape {header.shape}")
        return tuple(map(str, _read(path, _NAMES)))
    return tuple(known) if known and len(known) == count else numbered(kind, count)


def _read_train_and_val(file: _File, classes: tuple[str, ...], request: DataRequest) -> tuple[Split, Split]:
    inputs, targets = file.read_inputs("train"), file.read_targets("train")
    size, mixture = request.image_size, strata(targets, file.kind)
    if "val" in file.parts:
        train, val = np.arange(len(targets)), file.read_split("val", size)
    else:
        val_rows, train = carve_val(mixture, request.seed)
        if file.kind == "classes":
            require_every_class(str(file.path), targets[train], classes)
        val = split_from_arrays(inputs, targets, val_rows, image_size=size, channels_first=file.channels_first)
    train = train[limit_rows(mixture[train], request.train_limit, request.seed)]
    return split_from_arrays(inputs, targets, train, image_size=size, channels_first=file.channels_first), val


def _checked(path: Path) -> _File:
    """The file, once the names, shapes and types of its arrays are in order."""
    headers = _read_headers(path)
    inputs, targets = ("inputs", "targets") if "train_inputs" in headers else ("images", "labels")
    has_val = f"val_{inputs}" in headers or f"val_{targets}" in headers
    parts = ("train", "val", "test") if has_val else ("train", "test")
    needed = [f"{part}_{what}" for part in parts for what in (inputs, targets)]
    missing = [key for key in needed if key not in headers]
    if missing:
        raise DataError(
            f"{path}: the arrays {', '.join(needed)} are required, {', '.join(missing)} missing; "
            f"given are {', '.join(sorted(headers)) or 'none'}"
        )
    train_key = f"train_{targets}"
    kind = kind_of(f"{path}: {train_key}", *headers[train_key])
    for part in parts:
        _check_inputs(path, f"{part}_{inputs}", headers, headers[f"train_{inputs}"].shape[1:])
        _check_targets(path, f"{part}_{targets}", headers, headers[f"{part}_{inputs}"].shape[0], kind)
    return _File(path, parts, inputs, targets, kind)


def _check_inputs(path: Path, key: str, headers: dict[str, _Header], expected: tuple[int, ...]) -> None:
    shape, dtype = headers[key]
    if dtype != np.uint8 and dtype.kind != "f":
        raise DataError(f"{path}: {key} must be uint8 or float, got {dtype}")
    if key.endswith("_images") and len(shape) not in {3, 4}:
        raise DataError(f"{path}: {key} must have shape (N, H, W) or (N, H, W, C), got {shape}")
    if len(shape) < 2:
        raise DataError(f"{path}: {key} must have shape (N, C) or (N, C, …), channels first, got {shape}")
    if 0 in shape:
        raise DataError(f"{path}: {key} must not be empty, got shape {shape}")
    if shape[1:] != expected:
        what = "images" if key.endswith("_images") else "inputs"
        raise DataError(f"{path}: {key} must have {what} of shape {expected} as in training, got {shape[1:]}")


def _check_targets(path: Path, key: str, headers: dict[str, _Header], count: int, kind: Kind) -> None:
    shape, dtype = headers[key]
    found = kind_of(f"{path}: {key}", shape, dtype)
    if found != kind:
        raise DataError(f"{path}: {key} must be of one kind with training's, {kind}, got {found}")
    if shape[0] != count:
        raise DataError(f"{path}: {key} must have one for each of {count} examples, got {shape[0]}")


def _read_headers(path: Path) -> dict[str, _Header]:
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, there is none")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: the data file must be a .npz archive as numpy.savez writes it, it is not")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            return {name.removesuffix(".npy"): _checked_header(archive, name) for name in names}
    except _BROKEN as error:
        raise DataError(f"{path}: every array must be readable, got: {error}") from None


def _checked_header(archive: zipfile.ZipFile, name: str) -> _Header:
    """An array's header, once it asks for as much as the file has: numpy would make room for what it asks for."""
    with archive.open(name) as member:
        header = _read_header(member)
        given = archive.getinfo(name).file_size - member.tell()
    claimed = math.prod(header.shape) * header.dtype.itemsize
    if claimed != given and not header.dtype.hasobject:  # objects are pickled, in any number of bytes
        raise ValueError(
            f"{name} has the shape {header.shape} of {header.dtype}, which is {claimed:,} bytes, but holds {given:,}"
        )
    return header


def _read_header(member: IO[bytes]) -> _Header:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(member)
    return _Header(shape, dtype)


def _check_values(path: Path, key: str) -> None:
    """Walks through inputs as reading them would, checksum included; nothing of them is kept."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as member:
            dtype = _read_header(member).dtype
            while piece := member.read(_PIECE * dtype.itemsize):
                _finite(path, key, np.frombuffer(piece, dtype))
    except _BROKEN as error:
        raise _unreadable(path, key, error) from None


def _read_inputs(path: Path, key: str) -> NDArray[Any]:
    return _finite(path, key, _read(path, key))


def _finite(path: Path, key: str, inputs: NDArray[Any]) -> NDArray[Any]:
    """Inputs as they are trained on; DataError where that is not a number."""
    if inputs.dtype == np.uint8:
        return inputs
    with np.errstate(over="ignore"):  # a float64 may be finite and still not fit: refused below
        inputs = inputs.astype(np.float32)
    if not np.isfinite(inputs).all():
        raise DataError(f"{path}: {key} must be finite numbers, got NaN or infinity")
    return inputs


def _read(path: Path, key: str) -> NDArray[Any]:
    try:
        # Without pickle: a file that somebody sent must not be able to run code.
        with np.load(path, allow_pickle=False) as archive:
            array: NDArray[Any] = archive[key]
    except MemoryError:
        raise DataError(f"{path}: {key} must fit into memory, there is no room for it") from None
    except _BROKEN as error:
        raise _unreadable(path, key, error) from None
    return array


def _unreadable(path: Path, key: str, error: Exception) -> DataError:
    return DataError(f"{path}: {key} must be readable, got: {error}")
