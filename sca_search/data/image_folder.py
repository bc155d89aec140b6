"""Labelled image files: in memory where they fit, else read in every epoch.

A folder has one subfolder per class. Either PATH/train, PATH/test and optionally PATH/val contain the class folders, or
PATH contains them directly and all three splits are taken from it.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sca_search.data.dataset import (
    AnySplit,
    DataRequest,
    DataSet,
    assemble,
    measured_input,
    normalise_split_,
    raw_input,
)
from sca_search.data.image_reader import ImageReader, is_grey, is_readable
from sca_search.data.splits import LazySplit, Split
from sca_search.data.stratify import Rows, carve_test, carve_val, limit_rows, require_every_class
from sca_search.errors import DataError

_DEFAULT_SIZE = 64
# As ImageNet's networks are trained and tested: random crops in training, the central 224 of 256 pixels afterwards.
CENTRE = 224 / 256
_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

# Files whose headers decide between grey and colour; more would make a large folder slow to open.
_SAMPLE_MODES = 32

# Up to this many bytes as float32 the whole set is in memory: reading files in every epoch is
# slower than the small networks that train on them.
MEMORY_BYTES = 2 * 1024**3

# Images that give the mean and standard deviation of a set too large for memory: even if all pixels of an image were
# equal, 4096 images determine the mean to 1/64 of a standard deviation.
SAMPLE_STATISTICS = 4096


@dataclass(frozen=True)
class Files:
    """Image files with the class of each, and the files that were left out."""

    paths: tuple[Path, ...]
    labels: Rows
    left_out: tuple[Path, ...] = ()

    @classmethod
    def of(cls, found: Sequence[tuple[Path, int]]) -> "Files":
        return cls(tuple(path for path, _ in found), np.array([label for _, label in found], dtype=np.int64))

    def take(self, rows: Rows) -> "Files":
        return Files(tuple(self.paths[row] for row in rows), self.labels[rows])

    def sample(self, count: int) -> tuple[Path, ...]:
        """At most `count` files, evenly over all classes."""
        rows = np.unique(np.linspace(0, len(self.paths) - 1, count).astype(np.int64))
        return self.take(rows).paths


@dataclass(frozen=True)
class Parts:
    """The three splits."""

    train: Files
    val: Files
    test: Files
    classes: tuple[str, ...]
    left_out: tuple[Path, ...] = ()  # of the files that training and validation come from
    test_left_out: tuple[Path, ...] = ()

    @classmethod
    def with_carved_val(
        cls, path: Path, train: Files, test: Files, classes: tuple[str, ...], request: DataRequest
    ) -> "Parts":
        """Three splits from two."""
        val, rest = carve_val(train.labels, request.seed)
        require_every_class(str(path), train.labels[rest], classes)
        return cls(train.take(rest), train.take(val), test, classes, train.left_out, test.left_out)


def load_folder(name: str, path: Path, request: DataRequest, *, memory_bytes: int = MEMORY_BYTES) -> DataSet:
    """The data set in `path`, in memory where it fits into `memory_bytes`."""
    if not path.is_dir():
        raise DataError(f"{path}: the data folder must exist, there is none")
    parts = _divided(path, request) if _is_divided(path) else _carved(path, request)
    channels = 1 if all(map(is_grey, parts.train.sample(_SAMPLE_MODES))) else 3
    reader = ImageReader(request.image_size or _DEFAULT_SIZE, channels, centre_for(request))
    return data_of_files(name, parts, reader, request, memory_bytes)


def centre_for(request: DataRequest) -> float:
    """The side of the centre crop relative to the shorter side: less than 1 where training uses enlarged crops."""
    return CENTRE if request.augment == "scale-aspect" else 1.0


def _is_divided(path: Path) -> bool:
    """Whether PATH/train is a split; a class may also be called "train", but then it contains no folders."""
    train = path / "train"
    if not train.is_dir() or not subfolders(train):
        return False
    if not (path / "test").is_dir():
        raise DataError(f"{path}: a folder with train must have test beside it, there is none")
    return True


def _divided(path: Path, request: DataRequest) -> Parts:
    classes = class_names(path / "train")
    train, test = (list_files(path / part, classes, request) for part in ("train", "test"))
    if (path / "val").is_dir():
        val = list_files(path / "val", classes, request)
        return Parts(train, val, test, classes, train.left_out + val.left_out, test.left_out)
    return Parts.with_carved_val(path, train, test, classes, request)


def _carved(path: Path, request: DataRequest) -> Parts:
    classes = class_names(path)
    files = list_files(path, classes, request)
    test, others = carve_test(files.labels)
    val, train = carve_val(files.labels[others], request.seed)
    require_every_class(str(path), files.labels[others[train]], classes)
    return Parts(files.take(others[train]), files.take(others[val]), files.take(test), classes, files.left_out)


def class_names(path: Path) -> tuple[str, ...]:
    """The folders in a folder, sorted."""
    names = tuple(folder.name for folder in subfolders(path))
    if len(names) < 2:
        raise DataError(f"{path}: at least 2 class folders are required, got {len(names)}")
    return names


def list_files(path: Path, classes: tuple[str, ...], request: DataRequest) -> Files:
    """All images under the class folders, sorted by name."""
    folders, number = subfolders(path), {name: index for index, name in enumerate(classes)}
    found = {folder.name for folder in folders}
    if not found:
        raise DataError(f"{path}: must have a folder for each class of training, there is none")
    differing = sorted(found.symmetric_difference(classes))
    if differing:
        what = "got {!r} besides" if differing[0] in found else "{!r} is missing"
        raise DataError(f"{path}: class folders must be those of training, {what.format(differing[0])}")
    files = [(file, number[folder.name]) for folder in folders for file in _images_in(folder)]
    return without_unreadable(path, Files.of(files), classes, request)


def _images_in(folder: Path) -> list[Path]:
    """All images below a folder, sorted by name."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _SUFFIXES and path.is_file()]
    if not files:
        raise DataError(
            f"{folder}: a class folder must contain at least 1 image ({', '.join(sorted(_SUFFIXES))}), got none"
        )
    return files


def subfolders(path: Path) -> list[Path]:
    """The folders in a folder, sorted by name."""
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def without_unreadable(where: Path, files: Files, classes: Sequence[str], request: DataRequest) -> Files:
    """All files, or with `skip_unreadable` those that can be read: checking takes as long as reading them.

    They are left out before any split is taken, so that splits depend on the files alone.
    """
    if not request.skip_unreadable:
        return files
    with ThreadPoolExecutor() as threads:  # Pillow releases the GIL while it decodes
        readable = np.fromiter(threads.map(is_readable, files.paths), dtype=bool, count=len(files.paths))
    rest = files.take(np.flatnonzero(readable))
    lost = np.setdiff1d(files.labels, rest.labels)
    if len(lost):
        raise DataError(
            f"{where}: every class must keep an image where unreadable ones are left out, {classes[lost[0]]!r} has none"
        )
    return Files(rest.paths, rest.labels, files.take(np.flatnonzero(~readable)).paths)


def data_of_files(
    name: str, parts: Parts, reader: ImageReader, request: DataRequest, memory_bytes: int = MEMORY_BYTES
) -> DataSet:
    """The data set; the training split is read from its files in every epoch where augmentation crops them."""
    if request.check_test:
        _check(reader, parts.test)
    train = parts.train.take(limit_rows(parts.train.labels, request.train_limit, request.seed))
    images = sum(map(len, (train.paths, parts.val.paths, parts.test.paths)))
    is_large = images * int(np.prod(reader.image_shape)) * 4 > memory_bytes

    in_memory = partial(_read, reader)
    if not is_large and request.augment != "scale-aspect":
        splits = in_memory(train), in_memory(parts.val), lambda: in_memory(parts.test)
        data = assemble(name, parts.classes, *splits, normalise=request.normalise)
    else:
        spec = raw_input(reader.image_shape, parts.classes, "classes")
        if request.normalise:
            sample = (reader(path).unsqueeze(0) for path in train.sample(SAMPLE_STATISTICS))
            labels = torch.from_numpy(train.labels)
            spec = measured_input(sample, reader.image_shape, parts.classes, labels, "classes")

        def lazy(files: Files) -> LazySplit:
            return LazySplit(files.paths, torch.from_numpy(files.labels), reader, spec.mean, spec.std)

        def other(files: Files) -> AnySplit:
            return lazy(files) if is_large else normalise_split_(in_memory(files), spec)

        data = DataSet(name, lazy(train), other(parts.val), lambda: other(parts.test), spec)
    return replace(data, notes=_notes(parts.left_out + parts.test_left_out), training_is_whole=not parts.left_out)


def _check(reader: ImageReader, files: Files) -> None:
    """DataError for unreadable test images.

    A broken training image is reported when its set is read, or in the first epoch; a broken test image would be
    reported after all training. One of ImageNet's size takes 1 ms: its 50,000 take a minute of a study of days.
    """
    with ThreadPoolExecutor() as threads:
        for _ in threads.map(reader.check, files.paths):
            pass


def _read(reader: ImageReader, files: Files) -> Split:
    images = torch.empty(len(files.paths), *reader.image_shape)
    for row, path in enumerate(files.paths):
        images[row] = reader(path)
    return Split(images, torch.from_numpy(files.labels))


def _notes(left_out: tuple[Path, ...]) -> tuple[str, ...]:
    if not left_out:
        return ()
    if len(left_out) == 1:
        return (f"1 unreadable image is left out, {left_out[0]}",)
    return (f"{len(left_out)} unreadable images are left out, the first {left_out[0]}",)
