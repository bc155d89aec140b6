"""MNIST, CIFAR-10 and CIFAR-100, read by torchvision: a local copy first, a download if there is none."""

import hashlib
import importlib
import math
import struct
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sca_search.data.dataset import DataRequest, DataSet, assemble
from sca_search.data.download import fetch_files
from sca_search.data.npz import load_npz, split_from_arrays
from sca_search.data.splits import Split
from sca_search.data.stratify import Rows, carve_val, limit_rows, require_every_class
from sca_search.errors import DataError
from sca_search.system.machine import cache_folder
from sca_search.system.torchvision import patch_torchvision

# Everything torchvision's parsers raise on a file that is truncated or has another format.
_DAMAGED = (AssertionError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError)

_IDX_UINT8 = 8  # the type code of bytes in MNIST's file format


class Stored(Protocol):
    """The attributes of a torchvision data set that are used."""

    data: Any  # uint8, NHW or NHWC
    targets: Any
    classes: Sequence[str]


Opener = Callable[..., Stored]  # called as (folder, train=..., download=...)


@dataclass(frozen=True)
class Archive:
    """A data set's files, relative to the data folder."""

    name: str
    kind: str  # the class in torchvision.datasets
    files: tuple[str, ...]  # a complete copy
    packed: dict[str, str]  # the archives that a copy is unpacked from, each with its MD5
    npz: str | None = None  # one file with the whole data set, preferred where present
    classes: tuple[str, ...] | None = None  # names for the npz, which has none
    shape: tuple[int, ...] = (32, 32, 3)  # of an image
    is_idx: bool = False  # whether its files are images and labels of training, then of the test, in MNIST's format

    def places(self, root: Path, train: bool) -> tuple[Path, Path]:
        """The files of a split's images and labels, for messages; for CIFAR, torchvision does not say which."""
        if not self.is_idx:
            return ((root / self.files[0]).parent,) * 2
        images, labels = self.files[:2] if train else self.files[2:]
        return root / images, root / labels


_MNIST = {
    "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
}
_CIFAR10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")

_ARCHIVES = (
    Archive(
        "mnist",
        "MNIST",
        tuple(f"MNIST/raw/{file}-ubyte" for file in _MNIST),
        {f"MNIST/raw/{file}-ubyte.gz": md5 for file, md5 in _MNIST.items()},
        shape=(28, 28),
        is_idx=True,
    ),
    Archive(
        "cifar10",
        "CIFAR10",
        tuple(f"cifar-10-batches-py/{file}" for file in _CIFAR10),
        {"cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a"},
        npz="cifar10.npz",
        classes=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    ),
    Archive(
        "cifar100",
        "CIFAR100",
        tuple(f"cifar-100-python/{file}" for file in ("train", "test", "meta")),
        {"cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85"},
    ),
)
ARCHIVES = {archive.name: archive for archive in _ARCHIVES}


def load_archive(name: str, request: DataRequest, *, opener: Opener | None = None) -> DataSet:
    """The data set from the requested data folder, or from the cache."""
    archive = ARCHIVES[name]
    root = request.data_dir or cache_folder()
    if archive.npz and (root / archive.npz).is_file():
        return _from_npz(archive, root / archive.npz, request)
    opener = opener or _torchvision_opener(archive.kind)
    if not _is_complete(archive, root):
        _check_packed(archive, root)
        fetch_files(
            root,
            lambda folder: opener(folder, train=True, download=True),
            name=archive.name,
            files=archive.files + ((archive.npz,) if archive.npz else ()),
            packed=tuple(archive.packed),
        )
    return _from_copy(archive, root, request, opener)


def _from_npz(archive: Archive, path: Path, request: DataRequest) -> DataSet:
    data = load_npz(archive.name, path, request, archive.classes)
    assert archive.classes is not None
    height, width, channels = archive.shape
    size = request.image_size or height
    if (data.input_shape, len(data.classes)) != ((channels, size, size), len(archive.classes)):
        raise DataError(
            f"{path}: {archive.name} must have colour images of {height}×{width} pixels in "
            f"{len(archive.classes)} classes, got inputs of shape {data.input_shape} in {len(data.classes)}; load "
            f"other data as npz:PATH"
        )
    return data


def _is_complete(archive: Archive, root: Path) -> bool:
    return all((root / file).is_file() for file in archive.files)


def _check_packed(archive: Archive, root: Path) -> None:
    """DataError for another or a truncated archive under the right name: torchvision would silently download it."""
    for file, expected in archive.packed.items():
        path = root / file
        if not path.is_file():
            continue
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != expected:
            raise DataError(
                f"{path}: the archive of {archive.name} must have the MD5 {expected}, this one has {found}; "
                "delete it to download it again"
            )


def _torchvision_opener(kind: str) -> Opener:
    # Imported here: it takes a second, and the embedded data set does not need it.
    patch_torchvision()
    opener: Opener = getattr(importlib.import_module("torchvision.datasets"), kind)
    return opener


def _from_copy(archive: Archive, root: Path, request: DataRequest, opener: Opener) -> DataSet:
    images, labels, classes = _read(archive, root, opener, train=True)
    if request.check_test:
        _read(archive, root, opener, train=False)  # an incomplete copy is reported now, not after all training
    val, train = carve_val(labels, request.seed)
    require_every_class(str(archive.places(root, train=True)[1]), labels[train], classes)
    train = train[limit_rows(labels[train], request.train_limit, request.seed)]

    def part(rows: Rows) -> Split:
        return split_from_arrays(images, labels, rows, image_size=request.image_size)

    def read_test() -> Split:
        test_images, test_labels, _ = _read(archive, root, opener, train=False)
        return split_from_arrays(test_images, test_labels, image_size=request.image_size)

    return assemble(archive.name, classes, part(train), part(val), read_test, normalise=request.normalise)


def _read(
    archive: Archive, root: Path, opener: Opener, *, train: bool
) -> tuple[NDArray[np.uint8], Rows, tuple[str, ...]]:
    places = archive.places(root, train)
    for place, axes in zip(places, (3, 1), strict=True) if archive.is_idx else ():
        if fault := idx_fault(place, axes):
            raise _damaged(archive, place, fault)
    try:
        with warnings.catch_warnings():
            # CIFAR's files were pickled by a numpy of 2009, whose dtypes are deprecated.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            stored = opener(root, train=train, download=False)
        images, labels = np.asarray(stored.data), np.asarray(stored.targets, dtype=np.int64)
    except _DAMAGED as error:
        # torchvision's message ends with advice for its caller, and its assertions have no message.
        reason = " ".join(str(error).split()).partition(" You can use")[0] or "it is not in its format"
        raise _damaged(archive, places[0].parent if archive.is_idx else places[0], reason) from None
    _check_content(archive, places, images, labels, len(stored.classes))
    return images, labels, tuple(stored.classes)


def idx_fault(path: Path, axes: int) -> str:
    """The fault of a file of bytes in MNIST's format, empty if none: torchvision's errors name neither file nor fault.

    Bytes 0, 0, 8 (for uint8) and the number of axes; the length of each axis as a big-endian uint32; values.
    """
    with path.open("rb") as file:
        head = file.read(4 + 4 * axes)
    if len(head) < 4 + 4 * axes:
        return f"it ends in its header, after {len(head)} bytes"
    if head[:4] != bytes((0, 0, _IDX_UINT8, axes)):
        return f"it must begin with the bytes 0 0 {_IDX_UINT8} {axes}, got {' '.join(map(str, head[:4]))}"
    lengths = struct.unpack(f">{axes}I", head[4:])
    if 0 in lengths:
        return "by its header it is empty"
    expected, found = len(head) + math.prod(lengths), path.stat().st_size
    return f"by its header it has {expected:,} bytes, it has {found:,}" if found != expected else ""


def _check_content(
    archive: Archive, places: tuple[Path, Path], images: NDArray[Any], labels: Rows, classes: int
) -> None:
    """DataError for readable files of another data set."""
    if images.shape[1:] != archive.shape:
        raise DataError(
            f"{places[0]}: {archive.name} must have images of shape {archive.shape}, got {images.shape[1:]}; load "
            "other data as npz:PATH"
        )
    if not len(images):
        raise _damaged(archive, places[0], "it has no images")
    if len(images) != len(labels):
        raise _damaged(archive, places[1], f"{len(images)} images, {len(labels)} labels")
    low, high = labels.min(), labels.max()
    if low < 0 or high >= classes:
        raise _damaged(archive, places[1], f"labels must be 0..{classes - 1}, got {low if low < 0 else high}")


def _damaged(archive: Archive, place: Path, reason: str) -> DataError:
    return DataError(
        f"{place}: the copy of {archive.name} is incomplete or corrupt ({reason}); delete it to download it again"
    )
