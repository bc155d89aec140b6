"""Labeled image files: in memory if they fit, else read in every epoch.

A folder has one subfolder per class. Either PATH/train, PATH/test and optionally PATH/val contain the class folders, or
PATH contains them directly and all three splits are taken from it.
"""

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from sca_search.data.dataset import DataRequest, DataSet, assemble_parts, raw_input
from sca_search.data.image_reader import ImageReader, is_gray, is_readable
from sca_search.data.splits import Split
from sca_search.data.targets import Rows, carve_test, carve_val, limit_rows, require_every_class
from sca_search.errors import DataError

_DEFAULT_SIZE = 64
# As ImageNet's networks are trained and tested: random crops in training, the central 224 of 256 pixels afterwards.
CENTER = 224 / 256
_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

# Files whose headers decide between gray and color; more would make a large folder slow to open.
_SAMPLE_MODES = 32


@dataclass(frozen=True)
class Files:
    """Image files with the class of each, and the files that were left out."""

    paths: tuple[Path, ...]
    labels: Rows
    left_out: tuple[Path, ...] = ()

    def take(self, rows: Rows) -> "Files":
        """Without the files that were left out, which `carve` keeps in its larger part."""
        return Files(tuple(self.paths[row] for row in rows), self.labels[rows])

    def carve(self, rows: Rows, others: Rows) -> tuple["Files", "Files"]:
        return self.take(rows), replace(self.take(others), left_out=self.left_out)


@dataclass(frozen=True)
class Parts:
    """The three splits."""

    train: Files
    val: Files
    test: Files
    classes: tuple[str, ...]

    @classmethod
    def of(
        cls, path: Path, train: Files, val: Files | None, test: Files, classes: tuple[str, ...], request: DataRequest
    ) -> "Parts":
        """Without a validation split, it is taken from training."""
        if val is None:
            val, train = train.carve(*carve_val(train.labels, request.seed))
        require_every_class(str(path), train.labels, classes)
        return cls(train, val, test, classes)


def load_folder(name: str, path: Path, request: DataRequest) -> DataSet:
    """The data set in `path`, in memory where it fits."""
    if not path.is_dir():
        raise DataError(f"{path}: the data folder must exist, there is none")
    parts = _parts(path, request)
    rows = np.unique(np.linspace(0, len(parts.train.paths) - 1, _SAMPLE_MODES).astype(np.int64))
    channels = 1 if all(map(is_gray, parts.train.take(rows).paths)) else 3
    reader = ImageReader(request.image_size or _DEFAULT_SIZE, channels, center_for(request))
    return data_of_files(name, parts, reader, request)


def center_for(request: DataRequest) -> float:
    """The side of the center crop relative to the shorter side: less than 1 where training uses enlarged crops."""
    return CENTER if request.augment == "scale-aspect" else 1.0


def _parts(path: Path, request: DataRequest) -> Parts:
    train_folder = path / "train"
    # A class may also be called "train", but then it contains no folders.
    if not train_folder.is_dir() or not subfolders(train_folder):
        classes = class_names(path)
        files, val = list_files(path, classes, request), None
        test, train = files.carve(*carve_test(files.labels))
    elif not (path / "test").is_dir():
        raise DataError(f"{path}: a folder with train must have test next to it, there is none")
    else:
        classes = class_names(train_folder)
        train, test = (list_files(path / part, classes, request) for part in ("train", "test"))
        val = list_files(path / "val", classes, request) if (path / "val").is_dir() else None
    return Parts.of(path, train, val, test, classes, request)


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
    return readable_files(path, files, classes, request)


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


def readable_files(
    where: Path, found: Sequence[tuple[Path, int]], classes: Sequence[str], request: DataRequest
) -> Files:
    """All files, or with `skip_unreadable` those that can be read: checking takes as long as reading them.

    They are left out before any split is taken, so that splits depend on the files alone.
    """
    files = Files(tuple(path for path, _ in found), np.array([label for _, label in found], dtype=np.int64))
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


@dataclass(frozen=True)
class _ReadFiles:
    """Files with what reads them."""

    files: Files
    reader: ImageReader

    @property
    def entries(self) -> tuple[Path, ...]:
        return self.files.paths

    @property
    def targets(self) -> Rows:
        return self.files.labels

    def in_memory(self, shape: tuple[int, ...], /) -> Split:
        images = torch.empty(len(self.entries), *shape)
        for row, path in enumerate(self.entries):
            images[row] = self.reader(path)
        return Split(images, torch.from_numpy(self.targets))


def data_of_files(name: str, parts: Parts, reader: ImageReader, request: DataRequest) -> DataSet:
    """The data set; the training split is read from its files in every epoch where augmentation crops them."""
    if request.check_test:
        # A broken training image is reported when its set is read, or in the first epoch; a broken test image would be
        # reported after all training. One of ImageNet's size takes 1 ms: its 50,000 take a minute of a study of days.
        with ThreadPoolExecutor() as threads:
            list(threads.map(reader.check, parts.test.paths))
    train = parts.train.take(limit_rows(parts.train.labels, request.train_limit, request.seed))
    first, second, last = (_ReadFiles(files, reader) for files in (train, parts.val, parts.test))
    images = sum(len(part.entries) for part in (first, second, last))
    raw = raw_input(reader.image_shape, parts.classes, "classes")
    cropped, values = request.augment == "scale-aspect", images * math.prod(reader.image_shape)
    data = assemble_parts(name, raw, (first, second), lambda: last, request, changes=cropped, values=values)
    trained = parts.train.left_out + parts.val.left_out
    left_out = trained + parts.test.left_out
    count = len(left_out)
    what = "1 unreadable image is left out," if count == 1 else f"{count} unreadable images are left out, the first"
    return replace(data, notes=(f"{what} {left_out[0]}",) if left_out else (), training_is_whole=not trained)
