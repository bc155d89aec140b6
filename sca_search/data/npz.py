"""A data set in one .npz file, under the names that MedMNIST's files use, or channels first.

    train_images, train_labels    or train_inputs, train_targets; required
    val_images,   val_labels      or val_inputs, val_targets; without them, validation is taken from training
    test_images,  test_labels     or test_inputs, test_targets; required, read at the very end
    output_names                  optional: a string for each class, label or value

Images are (N, H, W) or (N, H, W, C), uint8 (scaled by 1/255) or float (unchanged). Inputs have any rank,
(N, C), (N, C, L), (N, C, H, W) or more, channels first, of the same types. The kind of task follows from the targets
(targets.py). Names, shapes and types of all arrays are checked in their headers before anything is read, and test
inputs are checked in pieces and discarded: a long study must not end on a malformed test split.
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
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sca_search.config.names import Kind
from sca_search.data.dataset import DataRequest, DataSet, assemble
from sca_search.data.splits import Split
from sca_search.data.stratify import Rows, carve_val, limit_rows, require_every_class
from sca_search.data.targets import Values, check_targets, count_outputs, kind_of, numbered, strata, targets_of
from sca_search.errors import DataError

# zipfile raises RuntimeError where a password is needed.
_BROKEN = (OSError, ValueError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error, lzma.LZMAError)
_NAMES = "output_names"
# Values of an array that are checked together: their float32 copies take 4 MB.
_PIECE = 1024**2
# Images per step: the float copies of a step must not add up to a second copy of the set.
_STEP = 1024


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class _File:
    """A file whose headers are valid."""

    path: Path
    parts: tuple[str, ...]  # training first
    inputs: str  # the name of its arrays: images or inputs
    targets: str
    kind: Kind

    def read_inputs(self, part: str) -> NDArray[Any]:
        key = f"{part}_{self.inputs}"
        return _finite(self.path, key, _read(self.path, key))

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
    """The data set in `path`; `classes` are the names of the classes where they are known."""
    file = _checked(path)
    if request.image_size is not None and file.channels_first:
        raise DataError(f"data set {name!r}: an image size is for arrays named images, these are named inputs")
    targets = file.read_targets("train")
    count = count_outputs(f"{path}: train_{file.targets}", targets, file.kind)
    for part in file.parts[1:]:
        check_targets(f"{path}: {part}_{file.targets}", file.read_targets(part), file.kind, count)
    if request.check_test:
        _check_values(path, f"test_{file.inputs}")
    names = _output_names(path, file.kind, count, classes)
    train, val = _read_train_and_val(file, names, request)

    def read_test() -> Split:
        return file.read_split("test", request.image_size)

    return assemble(name, names, train, val, read_test, kind=file.kind, normalise=request.normalise)


def _output_names(path: Path, kind: Kind, count: int, known: Sequence[str] | None) -> tuple[str, ...]:
    header = _read_headers(path).get(_NAMES)
    if header is not None:
        if header.shape != (count,) or header.dtype.kind != "U":
            raise DataError(f"{path}: {_NAMES} must be {count} strings, got {header.dtype} of shape {header.shape}")
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
        raise DataError(f"{path}: {key} must be of the same kind as in training, {kind}, got {found}")
    if shape[0] != count:
        raise DataError(f"{path}: {key} must have one row for each of {count} examples, got {shape[0]}")


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
    """An array's header; ValueError unless the file has as many bytes as it claims, which numpy would allocate."""
    with archive.open(name) as member:
        header = _read_header(member)
        present = archive.getinfo(name).file_size - member.tell()
    claimed = math.prod(header.shape) * header.dtype.itemsize
    if claimed != present and not header.dtype.hasobject:  # objects are pickled, in any number of bytes
        raise ValueError(
            f"{name} has the shape {header.shape} of {header.dtype}, which is {claimed:,} bytes, but holds {present:,}"
        )
    return header


def _read_header(member: IO[bytes]) -> _Header:
    version = np.lib.format.read_magic(member)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(member)
    return _Header(shape, dtype)


def _check_values(path: Path, key: str) -> None:
    """Check inputs as reading them would, including the checksum, without keeping them."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as member:
            dtype = _read_header(member).dtype
            while piece := member.read(_PIECE * dtype.itemsize):
                _finite(path, key, np.frombuffer(piece, dtype))
    except _BROKEN as error:
        raise _unreadable(path, key, error) from None


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
    try:
        # Without pickle: an untrusted file must not be able to run code.
        with np.load(path, allow_pickle=False) as archive:
            array: NDArray[Any] = archive[key]
    except MemoryError:
        raise DataError(f"{path}: {key} must fit into memory, it does not") from None
    except _BROKEN as error:
        raise _unreadable(path, key, error) from None
    return array


def _unreadable(path: Path, key: str, error: Exception) -> DataError:
    return DataError(f"{path}: {key} must be readable, got: {error}")


def split_from_arrays(
    images: NDArray[Any],
    labels: NDArray[Any],
    rows: Rows | None = None,
    *,
    image_size: int | None = None,
    channels_first: bool = False,
) -> Split:
    """The selected rows (all by default) of uint8 inputs, scaled to 0..1, or float inputs, and of targets.

    Images are (N, H, W) or (N, H, W, C); with `channels_first`, inputs of any rank keep their layout.
    """
    if rows is None:
        rows = np.arange(len(labels))

    def tensor(some: Rows) -> Tensor:
        values = _to_float(images[some])
        return values if channels_first else _to_images(values, image_size)

    filled = torch.empty(len(rows), *tensor(rows[:1]).shape[1:])
    for start in range(0, len(rows), _STEP):
        part = slice(start, start + _STEP)
        filled[part] = tensor(rows[part])
    return Split(filled, torch.from_numpy(labels[rows]))


def fit_size(images: Tensor, size: int) -> Tensor:
    """Resize so that the shorter side is `size`, then crop the centre square."""
    height, width = images.shape[2:]
    scale = size / min(height, width)
    resized = (max(size, round(height * scale)), max(size, round(width * scale)))
    images = F.interpolate(images, resized, mode="bilinear", align_corners=False, antialias=True)
    top, left = (resized[0] - size) // 2, (resized[1] - size) // 2
    return images[:, :, top : top + size, left : left + size]


def _to_float(values: NDArray[Any]) -> Tensor:
    tensor = torch.from_numpy(values.astype(np.float32))
    return tensor / 255 if values.dtype == np.uint8 else tensor


def _to_images(tensor: Tensor, image_size: int | None) -> Tensor:
    tensor = tensor.unsqueeze(1) if tensor.ndim == 3 else tensor.permute(0, 3, 1, 2)
    if image_size is None or tuple(tensor.shape[2:]) == (image_size, image_size):
        return tensor
    return fit_size(tensor, image_size)
