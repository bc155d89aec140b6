"""Labelled image files as a data set: in memory where they fit, else read when they are due."""

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
from sca_search.data.image_reader import ImageReader, is_readable
from sca_search.data.lazy import LazySplit
from sca_search.data.splits import Split
from sca_search.data.stratify import Rows, limit_rows
from sca_search.errors import DataError

# Up to this many bytes as float32 the whole set is kept in memory: reading files in every epoch is
# then slower than the small networks that train on them.
MEMORY_BYTES = 2 * 1024**3

# Images that give the mean and spread of a set too large for memory: even if all pixels of an image were
# alike, 4096 images know the mean to 1/64 of a standard deviation.
SAMPLE_STATISTICS = 4096


@dataclass(frozen=True)
class Files:
    """Image files and the class of each; and those that were left out."""

    paths: tuple[Path, ...]
    labels: Rows
    left_out: tuple[Path, ...] = ()

    @classmethod
    def of(cls, found: Sequence[tuple[Path, int]]) -> "Files":
        return cls(tuple(path for path, _ in found), np.array([label for _, label in found], dtype=np.int64))

    def take(self, rows: Rows) -> "Files":
        return Files(tuple(self.paths[row] for row in rows), self.labels[rows])

    def spread(self, count: int) -> tuple[Path, ...]:
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
    left_out: tuple[Path, ...] = ()  # of those that training and validation come from
    test_left_out: tuple[Path, ...] = ()


def as_asked(where: Path, files: Files, classes: Sequence[str], request: DataRequest) -> Files:
    """All files, or where that is asked for those that can be read, which is tried: it takes as long as reading them.

    They are left out before anything is carved, so that splits follow from the files alone.
    """
    if not request.skip_unreadable:
        return files
    with ThreadPoolExecutor() as threads:  # Pillow lets other threads run while it decodes
        readable = np.fromiter(threads.map(is_readable, files.paths), dtype=bool, count=len(files.paths))
    kept = files.take(np.flatnonzero(readable))
    lost = np.setdiff1d(files.labels, kept.labels)
    if len(lost):
        raise DataError(
            f"{where}: every class must keep an image where unreadable ones are left out, {classes[lost[0]]!r} has none"
        )
    return Files(kept.paths, kept.labels, files.take(np.flatnonzero(~readable)).paths)


def data_of_files(
    name: str, parts: Parts, reader: ImageReader, request: DataRequest, memory_bytes: int = MEMORY_BYTES
) -> DataSet:
    """The data set; its training split is always read from its files where an augmentation cuts parts out of them."""
    if request.check_test:
        _check(reader, parts.test)
    train = parts.train.take(limit_rows(parts.train.labels, request.train_limit, request.seed))
    images = sum(map(len, (train.paths, parts.val.paths, parts.test.paths)))
    is_large = images * int(np.prod(reader.image_shape)) * 4 > memory_bytes
    notes, is_whole = _notes(parts.left_out + parts.test_left_out), not parts.left_out
    if not is_large and request.augment != "scale-aspect":
        held = partial(_held, reader)
        made = assemble(
            name, parts.classes, held(train), held(parts.val), lambda: held(parts.test), normalise=request.normalise
        )
        return replace(made, notes=notes, training_is_whole=is_whole)
    spec = raw_input(reader.image_shape, parts.classes, "classes")
    if request.normalise:
        sample = (reader(path).unsqueeze(0) for path in train.spread(SAMPLE_STATISTICS))
        labels = torch.from_numpy(train.labels)
        spec = measured_input(sample, reader.image_shape, parts.classes, labels, "classes")

    def lazy(files: Files) -> LazySplit:
        return LazySplit(files.paths, torch.from_numpy(files.labels), reader, spec.mean, spec.std)

    def other(files: Files) -> AnySplit:
        return lazy(files) if is_large else normalise_split_(_held(reader, files), spec)

    return DataSet(
        name,
        lazy(train),
        other(parts.val),
        lambda: other(parts.test),
        spec,
        notes=notes,
        training_is_whole=is_whole,
    )


def _check(reader: ImageReader, files: Files) -> None:
    """Refuses test images that cannot be read; nothing of them is kept.

    A broken training image shows when its set is read, or in the first epoch; a broken test image would show when all
    is trained. One of ImageNet's size takes 1 ms: its 50,000 are a minute of a study that takes days.
    """
    with ThreadPoolExecutor() as threads:
        for _ in threads.map(reader.check, files.paths):
            pass


def _held(reader: ImageReader, files: Files) -> Split:
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
