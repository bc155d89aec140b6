"""MNIST, CIFAR-10 and CIFAR-100, read by torchvision: a local copy first, a download if there is none."""

import hashlib
import importlib
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sca_search.data.arrays import split_from_arrays
from sca_search.data.carve import Rows, carve_val, limit_rows
from sca_search.data.dataset import DataRequest, DataSet, assemble
from sca_search.data.download import cache_folder, fetch_files
from sca_search.data.npz import load_npz
from sca_search.data.splits import Split
from sca_search.errors import DataError
from sca_search.wheels import heal_torchvision

# Everything torchvision's parsers raise on a file that is cut short or is something else.
_DAMAGED = (AssertionError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError)


class Stored(Protocol):
    """What is used of a torchvision data set."""

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
    packed: dict[str, str]  # what a copy can be unpacked from, and the MD5 of each
    npz: str | None = None  # one file with all of it, preferred where present
    classes: tuple[str, ...] | None = None  # names for the npz, which has none
    pixels: int = 32  # of the npz's images, each way


_MNIST = {
    "train-images-idx3": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1": "ec29112dd5afa0611ce80d1b7f02629c",
}
_CIFAR10 = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "batches.meta")

ARCHIVES = (
    Archive(
        "mnist",
        "MNIST",
        tuple(f"MNIST/raw/{file}-ubyte" for file in _MNIST),
        {f"MNIST/raw/{file}-ubyte.gz": md5 for file, md5 in _MNIST.items()},
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


def load_archive(archive: Archive, request: DataRequest, *, opener: Opener | None = None) -> DataSet:
    """The data set from the data folder asked for, or from the cache."""
    root = request.data_dir or cache_folder()
    if archive.npz and (root / archive.npz).is_file():
        return _from_npz(archive, root / archive.npz, request)
    opener = opener or _torchvision_opener(archive.kind)
    if not _is_complete(archive, root):
        _refuse_others(archive, root)
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
    size = request.image_size or archive.pixels
    if (data.input_shape, len(data.classes)) != ((3, size, size), len(archive.classes)):
        raise DataError(
            f"{path}: {archive.name} must have colour images of {archive.pixels}×{archive.pixels} pixels in "
            f"{len(archive.classes)} classes, got inputs of the shape {data.input_shape} in {len(data.classes)}; any "
            f"other data can be named by its path"
        )
    return data


def _is_complete(archive: Archive, root: Path) -> bool:
    return all((root / file).is_file() for file in archive.files)


def _refuse_others(archive: Archive, root: Path) -> None:
    """An archive under the right name that is another, or cut short: torchvision would fetch it without a word."""
    for file, expected in archive.packed.items():
        path = root / file
        if not path.is_file():
            continue
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != expected:
            raise DataError(
                f"{path}: the archive of {archive.name} must have the MD5 {expected}, this one has {found}; "
                "delete it to have it downloaded again"
            )


def _torchvision_opener(kind: str) -> Opener:
    # Imported here: it takes a second, and the embedded data set does without it.
    heal_torchvision()
    opener: Opener = getattr(importlib.import_module("torchvision.datasets"), kind)
    return opener


def _from_copy(archive: Archive, root: Path, request: DataRequest, opener: Opener) -> DataSet:
    images, labels, classes = _read(archive, root, opener, train=True)
    _read(archive, root, opener, train=False)  # half a copy is found out now, and not when all is trained
    val, train = carve_val(labels, request.seed)
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
    try:
        with warnings.catch_warnings():
            # CIFAR's files were pickled by a numpy of 2009, whose dtypes the present one deprecates.
            warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
            stored = opener(root, train=train, download=False)
        images, labels = np.asarray(stored.data), np.asarray(stored.targets, dtype=np.int64)
        if len(images) != len(labels) or labels.max() >= len(stored.classes):
            raise ValueError(f"{len(images)} images, {len(labels)} labels up to {labels.max()}")
    except _DAMAGED as error:
        # torchvision ends with advice for whoever calls it.
        reason = " ".join(str(error).split()).partition(" You can use")[0] or type(error).__name__
        folder = (root / archive.files[0]).parent  # torchvision does not say which of its files it is
        raise DataError(
            f"{folder}: the copy of {archive.name} must be whole, this one is damaged "
            f"({reason}); delete it to have it downloaded again"
        ) from None
    return images, labels, tuple(stored.classes)
