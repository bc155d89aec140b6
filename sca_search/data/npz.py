"""A data set in one .npz file, under the names that MedMNIST's files use.

    train_images, train_labels    required
    val_images,   val_labels      optional; without them a validation split is carved from training
    test_images,  test_labels     required, read at the very end

Images are (N, H, W) or (N, H, W, C), uint8 (scaled by 1/255) or float (taken as they are). Labels are
integers, (N,) or (N, 1). Every rule about names, shapes and types is checked on the arrays' headers
before anything is read, the test arrays' too: a long study must not end on a malformed test split.
"""

import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sca_search.data.arrays import split_from_arrays
from sca_search.data.carve import Rows, carve_val, limit_rows, require_every_class
from sca_search.data.dataset import DataRequest, DataSet, assemble
from sca_search.data.splits import Split
from sca_search.errors import DataError

_BROKEN = (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error)


class _Header(NamedTuple):
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


def load_npz(name: str, path: Path, request: DataRequest, classes: Sequence[str] | None = None) -> DataSet:
    """The data set in `path`; `classes` names the classes where their names are known."""
    parts = _check_headers(path)
    train_labels = _read_labels(path, "train")
    count = _count_classes(path, train_labels)
    for part in parts[1:]:
        _check_range(path, part, _read_labels(path, part), count)
    names = tuple(classes) if classes and len(classes) == count else tuple(map(str, range(count)))
    train, val = _read_train_and_val(path, "val" in parts, names, request)
    return assemble(name, names, train, val, lambda: _read_split(path, "test", request.image_size))


def _read_train_and_val(
    path: Path, has_val: bool, classes: tuple[str, ...], request: DataRequest
) -> tuple[Split, Split]:
    images, labels = _read_images(path, "train"), _read_labels(path, "train")
    size = request.image_size
    if has_val:
        train, val = np.arange(len(labels)), _read_split(path, "val", size)
    else:
        val_rows, train = carve_val(labels, request.seed)
        require_every_class(str(path), labels[train], classes)
        val = split_from_arrays(images, labels, val_rows, image_size=size)
    train = train[limit_rows(labels[train], request.train_limit, request.seed)]
    return split_from_arrays(images, labels, train, image_size=size), val


def _read_split(path: Path, part: str, image_size: int | None) -> Split:
    return split_from_arrays(_read_images(path, part), _read_labels(path, part), image_size=image_size)


def _check_headers(path: Path) -> list[str]:
    """The parts that the file holds, training first, once their names, shapes and types are in order."""
    headers = _read_headers(path)
    parts = [part for part in ("train", "val", "test") if part != "val" or _has_val(headers)]
    needed = [f"{part}_{what}" for part in parts for what in ("images", "labels")]
    missing = [key for key in needed if key not in headers]
    if missing:
        raise DataError(
            f"{path}: the arrays {', '.join(needed)} are required, {', '.join(missing)} missing; "
            f"given are {', '.join(sorted(headers)) or 'none'}"
        )
    for part in parts:
        _check_images(path, f"{part}_images", headers)
        _check_labels(path, part, headers)
    return parts


def _has_val(headers: dict[str, _Header]) -> bool:
    return "val_images" in headers or "val_labels" in headers


def _check_images(path: Path, key: str, headers: dict[str, _Header]) -> None:
    shape, dtype = headers[key]
    if dtype != np.uint8 and dtype.kind != "f":
        raise DataError(f"{path}: {key} must be uint8 or float, got {dtype}")
    if len(shape) not in {3, 4}:
        raise DataError(f"{path}: {key} must have shape (N, H, W) or (N, H, W, C), got {shape}")
    if 0 in shape:
        raise DataError(f"{path}: {key} must not be empty, got shape {shape}")
    expected = headers["train_images"].shape[1:]
    if shape[1:] != expected:
        raise DataError(f"{path}: {key} must have images of shape {expected} as in training, got {shape[1:]}")


def _check_labels(path: Path, part: str, headers: dict[str, _Header]) -> None:
    key = f"{part}_labels"
    shape, dtype = headers[key]
    if dtype.kind not in "iu":
        raise DataError(f"{path}: {key} must be integers, got {dtype}")
    if len(shape) != 1 and shape[1:] != (1,):
        raise DataError(f"{path}: {key} must have shape (N,) or (N, 1), got {shape}")
    count = headers[f"{part}_images"].shape[0]
    if shape[0] != count:
        raise DataError(f"{path}: {key} must have one label for each of {count} images, got {shape[0]}")


def _count_classes(path: Path, labels: Rows) -> int:
    """The number of classes, once the training labels are 0..n-1 without a gap."""
    found = np.unique(labels)
    if found[0] < 0:
        raise DataError(f"{path}: train_labels must not be negative, got {found[0]}")
    if len(found) < 2:
        raise DataError(f"{path}: train_labels must have at least 2 classes, got 1")
    gaps = np.flatnonzero(found != np.arange(len(found)))
    if len(gaps):
        # A gap would give the network an output that no image ever asks for.
        raise DataError(
            f"{path}: train_labels must use every class from 0 to the highest, got {found[-1]} but no {gaps[0]}"
        )
    return len(found)


def _check_range(path: Path, part: str, labels: Rows, count: int) -> None:
    low, high = labels.min(), labels.max()
    if low < 0 or high >= count:
        given = low if low < 0 else high
        raise DataError(f"{path}: {part}_labels must be 0..{count - 1} as in training, got {given}")


def _read_headers(path: Path) -> dict[str, _Header]:
    if not path.is_file():
        raise DataError(f"{path}: the data file must exist, there is none")
    if not zipfile.is_zipfile(path):
        raise DataError(f"{path}: the data file must be a .npz archive as numpy.savez writes it, it is not")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            return {name.removesuffix(".npy"): _read_header(archive, name) for name in names}
    except _BROKEN as error:
        raise DataError(f"{path}: every array must be readable, got: {error}") from None


def _read_header(archive: zipfile.ZipFile, name: str) -> _Header:
    with archive.open(name) as member:
        version = np.lib.format.read_magic(member)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    return _Header(shape, dtype)


def _read_images(path: Path, part: str) -> NDArray[Any]:
    images = _read(path, f"{part}_images")
    if images.dtype == np.uint8:
        return images
    with np.errstate(over="ignore"):  # a float64 may be finite and still not fit: refused below
        images = images.astype(np.float32)
    if not np.isfinite(images).all():
        raise DataError(f"{path}: {part}_images must be finite numbers, got NaN or infinity")
    return images


def _read_labels(path: Path, part: str) -> Rows:
    labels: Rows = _read(path, f"{part}_labels").reshape(-1).astype(np.int64)
    return labels


def _read(path: Path, key: str) -> NDArray[Any]:
    try:
        # Without pickle: a file that somebody sent must not be able to run code.
        with np.load(path, allow_pickle=False) as archive:
            array: NDArray[Any] = archive[key]
    except _BROKEN as error:
        raise DataError(f"{path}: {key} must be readable, got: {error}") from None
    return array
