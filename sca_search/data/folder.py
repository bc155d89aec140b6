"""A folder of image files, one subfolder a class.

Either PATH/train, PATH/test and optionally PATH/val each hold the class folders, or PATH holds them
directly and all three splits are carved from it.
"""

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sca_search.data.carve import (
    TEST_SEED,
    Rows,
    carve,
    carve_val,
    limit_rows,
    require_every_class,
    share_of,
)
from sca_search.data.dataset import DataRequest, DataSet, Scaling, assemble
from sca_search.data.lazy import ImageReader, LazySplit, is_grey
from sca_search.data.splits import Split
from sca_search.errors import DataError

# Up to this many bytes as float32 the whole set is kept in memory: reading files in every epoch is
# then slower than the small networks that train on them.
MEMORY_BYTES = 2 * 1024**3

_DEFAULT_SIZE = 64
TEST_SHARE = 0.2
_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

# Files whose headers decide between grey and colour; more would make a large folder slow to open.
_SAMPLE_MODES = 32
# Images that give the mean and spread of a set too large for memory: even if all pixels of an image were
# alike, 4096 images know the mean to 1/64 of a standard deviation.
SAMPLE_STATISTICS = 4096


@dataclass(frozen=True)
class _Files:
    paths: tuple[Path, ...]
    labels: Rows

    def take(self, rows: Rows) -> "_Files":
        return _Files(tuple(self.paths[row] for row in rows), self.labels[rows])

    def spread(self, count: int) -> tuple[Path, ...]:
        """At most `count` files, evenly over all classes."""
        rows = np.unique(np.linspace(0, len(self.paths) - 1, count).astype(np.int64))
        return self.take(rows).paths


@dataclass(frozen=True)
class _Parts:
    train: _Files
    val: _Files
    test: _Files
    classes: tuple[str, ...]


def load_folder(name: str, path: Path, request: DataRequest, *, memory_bytes: int = MEMORY_BYTES) -> DataSet:
    """The data set in `path`, in memory where it fits into `memory_bytes`."""
    if not path.is_dir():
        raise DataError(f"{path}: the data folder must exist, there is none")
    parts = _divided(path, request) if _is_divided(path) else _carved(path, request)
    train = parts.train.take(limit_rows(parts.train.labels, request.train_limit, request.seed))
    channels = 1 if all(map(is_grey, train.spread(_SAMPLE_MODES))) else 3
    reader = ImageReader(request.image_size or _DEFAULT_SIZE, channels)
    images = sum(map(len, (train.paths, parts.val.paths, parts.test.paths)))
    if images * int(np.prod(reader.image_shape)) * 4 > memory_bytes:
        return _lazy(name, train, parts, reader, request.normalise)
    read = partial(_read_split, reader)
    return assemble(
        name, parts.classes, read(train), read(parts.val), lambda: read(parts.test), normalise=request.normalise
    )


def _is_divided(path: Path) -> bool:
    """Whether PATH/train is a split; a class may be called "train" too, but then it has no folders in it."""
    train = path / "train"
    if not train.is_dir() or not _subfolders(train):
        return False
    if not (path / "test").is_dir():
        raise DataError(f"{path}: a folder with train must have test beside it, there is none")
    return True


def _divided(path: Path, request: DataRequest) -> _Parts:
    classes = _class_names(path / "train")
    train, test = _list_files(path / "train", classes), _list_files(path / "test", classes)
    if (path / "val").is_dir():
        return _Parts(train, _list_files(path / "val", classes), test, classes)
    val, kept = carve_val(train.labels, request.seed)
    require_every_class(str(path), train.labels[kept], classes)
    return _Parts(train.take(kept), train.take(val), test, classes)


def _carved(path: Path, request: DataRequest) -> _Parts:
    classes = _class_names(path)
    files = _list_files(path, classes)
    test, others = carve(files.labels, share_of(len(files.paths), TEST_SHARE), TEST_SEED)
    val, train = carve_val(files.labels[others], request.seed)
    require_every_class(str(path), files.labels[others[train]], classes)
    return _Parts(files.take(others[train]), files.take(others[val]), files.take(test), classes)


def _class_names(path: Path) -> tuple[str, ...]:
    names = tuple(folder.name for folder in _subfolders(path))
    if len(names) < 2:
        raise DataError(f"{path}: at least 2 class folders are required, got {len(names)}")
    return names


def _list_files(path: Path, classes: tuple[str, ...]) -> _Files:
    """All images under the class folders, in the order of their names."""
    folders = _subfolders(path)
    unknown = [folder.name for folder in folders if folder.name not in classes]
    if unknown:
        raise DataError(f"{path}: class folders must be those of training, got {unknown[0]!r} besides")
    if not folders:
        raise DataError(f"{path}: at least 1 class folder with images is required, got none")
    found = [(file, classes.index(folder.name)) for folder in folders for file in _images_in(folder)]
    return _Files(tuple(file for file, _ in found), np.array([label for _, label in found], dtype=np.int64))


def _images_in(folder: Path) -> list[Path]:
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _SUFFIXES and path.is_file()]
    if not files:
        raise DataError(
            f"{folder}: a class folder must hold at least 1 image ({', '.join(sorted(_SUFFIXES))}), got none"
        )
    return files


def _subfolders(path: Path) -> list[Path]:
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _read_split(reader: ImageReader, files: _Files) -> Split:
    images = torch.empty(len(files.paths), *reader.image_shape)
    for row, path in enumerate(files.paths):
        images[row] = reader(path)
    return Split(images, torch.from_numpy(files.labels))


def _lazy(name: str, train: _Files, parts: _Parts, reader: ImageReader, normalise: bool) -> DataSet:
    sample = (reader(path).unsqueeze(0) for path in train.spread(SAMPLE_STATISTICS))
    scaling = Scaling.of(sample, reader.channels, torch.from_numpy(train.labels), "classes", normalise)
    mean, std = scaling.mean, scaling.std

    def split(files: _Files) -> LazySplit:
        return LazySplit(files.paths, torch.from_numpy(files.labels), reader, mean, std)

    return DataSet(name, split(train), split(parts.val), lambda: split(parts.test), parts.classes, mean, std)
