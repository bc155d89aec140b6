"""MNIST, CIFAR-10 and CIFAR-100, read by torchvision: a local copy first, a download if there is none."""

import hashlib
import importlib
import math
import struct
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.data.arrays import Arrays, data_of_arrays
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.download import fetch_files
from sca_search.data.npz import load_npz
from sca_search.data.targets import Rows
from sca_search.errors import DataError
from sca_search.system.machine import cache_folder
from sca_search.system.torchvision import patch_torchvision

# Everything torchvision's parsers raise on a file that is truncated or has another format.
_DAMAGED = (AssertionError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError)

_IDX_UINT8 = 8  # the type code of bytes in MNIST's file format

_KINDS = {"mnist": "MNIST", "cifar10": "CIFAR10", "cifar100": "CIFAR100"}  # classes of torchvision.datasets
# One file with all of CIFAR-10, preferred where present, and its classes, whose names it does not have.
_NPZ = {"cifar10": "cifar10.npz"}
_CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def load_archive(name: str, request: DataRequest) -> DataSet:
    """The data set from the requested data folder, or from the cache."""
    root = request.data_dir or cache_folder()
    if name in _NPZ and (root / _NPZ[name]).is_file():
        return _from_npz(name, root / _NPZ[name], request)
    # Imported here: it takes a second, and the embedded data set does not need it.
    patch_torchvision()
    copy = Copy(name, root, getattr(importlib.import_module("torchvision.datasets"), _KINDS[name]))
    if not all((root / file).is_file() for file in copy.files):
        copy.check_packed()
        files = (*copy.files, _NPZ[name]) if name in _NPZ else copy.files
        fetch = partial(copy.kind, train=True, download=True)
        fetch_files(root, fetch, name=name, files=files, packed=tuple(copy.packed))
    train, classes = copy.read(train=True)
    if request.check_test:
        copy.read(train=False)  # an incomplete copy is reported now, not after all training
    return data_of_arrays(name, classes, train, None, lambda: copy.read(train=False)[0], request)


def _from_npz(name: str, path: Path, request: DataRequest) -> DataSet:
    data = load_npz(name, path, request, _CIFAR10)
    size = request.image_size or 32
    if (data.input_shape, len(data.classes)) != ((3, size, size), len(_CIFAR10)):
        raise DataError(
            f"{path}: {name} must have color images of 32×32 pixels in {len(_CIFAR10)} classes, got inputs of shape "
            f"{data.input_shape} in {len(data.classes)}; load other data as npz:PATH"
        )
    return data


@dataclass(frozen=True)
class Copy:
    """A data set in a folder; `kind` is torchvision's class, which reads and downloads it."""

    name: str
    root: Path
    kind: Any

    @property
    def packed(self) -> dict[str, str]:
        """The archives that a copy is unpacked from, relative to the folder, each with its MD5."""
        if self.name == "mnist":
            return {f"MNIST/raw/{file}": md5 for file, md5 in self.kind.resources}
        return {self.kind.filename: self.kind.tgz_md5}

    @property
    def files(self) -> tuple[str, ...]:
        """The files of a complete copy; of MNIST, images and labels of training, then of the test."""
        if self.name == "mnist":
            return tuple(file.removesuffix(".gz") for file in self.packed)
        lists = [name for name, _ in self.kind.train_list + self.kind.test_list]
        return tuple(f"{self.kind.base_folder}/{name}" for name in (*lists, self.kind.meta["filename"]))

    def check_packed(self) -> None:
        """DataError for another or a truncated archive under the right name: torchvision would silently download it."""
        for file, expected in self.packed.items():
            path = self.root / file
            if not path.is_file():
                continue
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
            if found != expected:
                raise DataError(
                    f"{path}: the archive of {self.name} must have the MD5 {expected}, this one has {found}; "
                    "delete it to download it again"
                )

    def read(self, *, train: bool) -> tuple[Arrays, tuple[str, ...]]:
        """A split and the names of the classes."""
        # For messages, the places of images and labels; for CIFAR, torchvision does not say which file is damaged.
        folder = (self.root / self.files[0]).parent
        places = [folder, folder]
        if self.name == "mnist":
            places = [self.root / file for file in (self.files[:2] if train else self.files[2:])]
            for place, axes in zip(places, (3, 1), strict=True):
                if fault := idx_fault(place, axes):
                    raise self._damaged(place, fault)
        try:
            with warnings.catch_warnings():
                # CIFAR's files were pickled by a numpy of 2009, whose dtypes are deprecated.
                warnings.simplefilter("ignore", np.exceptions.VisibleDeprecationWarning)
                stored = self.kind(self.root, train=train, download=False)
            images, labels = np.asarray(stored.data), np.asarray(stored.targets, dtype=np.int64)
        except _DAMAGED as error:
            # torchvision's message ends with advice for its caller, and its assertions have no message.
            reason = " ".join(str(error).split()).partition(" You can use")[0] or "it is not in its format"
            raise self._damaged(folder, reason) from None
        self._check_content(places, images, labels, len(stored.classes))
        return Arrays(str(places[1]), images, labels), tuple(stored.classes)

    def _check_content(self, places: list[Path], images: NDArray[Any], labels: Rows, classes: int) -> None:
        """DataError for readable files of another data set."""
        shape = (28, 28) if self.name == "mnist" else (32, 32, 3)
        if images.shape[1:] != shape:
            raise DataError(
                f"{places[0]}: {self.name} must have images of shape {shape}, got {images.shape[1:]}; load other data "
                "as npz:PATH"
            )
        if not len(images):
            raise self._damaged(places[0], "it has no images")
        if len(images) != len(labels):
            raise self._damaged(places[1], f"{len(images)} images, {len(labels)} labels")
        low, high = labels.min(), labels.max()
        if low < 0 or high >= classes:
            raise self._damaged(places[1], f"labels must be 0..{classes - 1}, got {low if low < 0 else high}")

    def _damaged(self, place: Path, reason: str) -> DataError:
        return DataError(
            f"{place}: the copy of {self.name} is incomplete or corrupt ({reason}); delete it to download it again"
        )


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
