"""A data set ready for a study: normalized by its training split, with the test split not yet read."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sca_search.config.names import Augmentation, Kind
from sca_search.data.augment import CropFlipSplit
from sca_search.data.image_reader import ImageReader
from sca_search.data.input_spec import InputSpec
from sca_search.data.splits import LazySplit, Reader, Split
from sca_search.errors import DataError

AnySplit = Split | LazySplit
TrainingSplit = Split | LazySplit | CropFlipSplit

# Images per step over a whole split: small enough that float64 copies stay near 100 MB.
_STEP = 1024

# Up to this many bytes as float32 the whole set is in memory: reading files in every epoch is
# slower than the small networks that train on them.
MEMORY_BYTES = 2 * 1024**3

# Inputs that give the mean and standard deviation of a set that is not in memory: even if all pixels of an image were
# equal, 4096 images determine the mean to 1/64 of a standard deviation.
SAMPLE_STATISTICS = 4096

# Inputs per split in the checksum of a set that is not in memory.
_CHECKSUM_SAMPLE = 256

# Below this, relative to the mean, the standard deviation of a channel is float32 rounding and not signal.
_NO_SPREAD = 1e-7


@dataclass(frozen=True)
class DataRequest:
    """The settings of a data source besides its name."""

    seed: int
    data_dir: Path | None = None  # of local copies; None: the cache, where mnist and cifar are downloaded to
    image_size: int | None = None  # of a square; None: the images' own size, 64 for folders, 224 for imagenet
    train_limit: int | None = None  # the highest number of training examples, stratified
    normalize: bool = True  # inputs per channel, and targets of a regression
    columns: tuple[str, ...] = ()  # of inputs and targets, where a source has columns of ambiguous types
    augment: Augmentation = "none"  # determines how image files are read
    skip_unreadable: bool = False  # whether unreadable image files are left out
    check_test: bool = True  # whether test examples are checked now; False where they have just been checked
    memory_bytes: int = MEMORY_BYTES


class Part(Protocol):
    """Entries of a data set with their targets, which are read all at once or, by a reader, when they are needed."""

    @property
    def entries(self) -> Sequence[Any]: ...

    @property
    def targets(self) -> NDArray[Any]: ...

    @property
    def reader(self) -> Reader: ...

    def in_memory(self, shape: tuple[int, ...], /) -> Split: ...


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and validation split, and a function for the test split, which is read only at the very end."""

    name: str
    train: AnySplit
    val: AnySplit
    read_test: Callable[[], AnySplit]
    input: InputSpec
    notes: tuple[str, ...] = ()  # notes for the user on how it was read
    training_is_whole: bool = True  # whether no unreadable file was left out of training and validation
    augmentation: Augmentation = "none"  # applies to `training` only
    checksum: str = ""  # of training and validation before normalization

    @property
    def training(self) -> TrainingSplit:
        """The training split with augmentation, for weights and normalization statistics."""
        if self.augmentation == "crop-flip":
            # Zeros before normalization, as if the raw image had a black border.
            return CropFlipSplit(
                self.train, self.input_shape, -torch.tensor(self.input.mean) / torch.tensor(self.input.std)
            )
        if self.augmentation == "scale-aspect":
            assert isinstance(self.train, LazySplit)
            assert isinstance(self.train.reader, ImageReader)
            return replace(self.train, augmented=self.train.reader)
        return self.train

    @property
    def changes(self) -> bool:
        """Whether inputs differ from epoch to epoch, by our augmentation or the user's."""
        return self.augmentation != "none" or (isinstance(self.train, LazySplit) and self.train.changes)

    def augmented_by(self, augmentation: Augmentation) -> "DataSet":
        """The same data set with another augmentation; DataError where it is not applicable."""
        rule = ""
        if augmentation == "crop-flip" and not self.input.is_image:
            rule = f"is for images (channels, height, width), inputs have the shape {self.input_shape}"
        reader = self.train.reader if isinstance(self.train, LazySplit) else None
        if augmentation == "scale-aspect" and not isinstance(reader, ImageReader):
            rule = "is for image files (folder:PATH, tiny-imagenet, imagenet), which are cropped at random sizes"
        if rule:
            raise DataError(f"data set {self.name!r}: augmentation {augmentation!r} {rule}")
        return replace(self, augmentation=augmentation)

    @property
    def num_classes(self) -> int:
        """The number of outputs of a network, for any kind of task."""
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.input.input_shape

    @property
    def classes(self) -> tuple[str, ...]:
        return self.input.classes

    @property
    def kind(self) -> Kind:
        return self.input.kind

    def in_units(self, values: Tensor) -> Tensor:
        """Targets or outputs in the user's units."""
        if not self.input.is_standardized:
            return values
        return values * torch.tensor(self.input.target_std) + torch.tensor(self.input.target_mean)

    def name_of(self, target: Tensor) -> str:
        """One target as text."""
        if self.kind == "classes":
            return self.classes[int(target)]
        if self.kind == "regression":
            return ", ".join(f"{value:.3g}" for value in self.in_units(target).tolist())
        return ", ".join(name for name, value in zip(self.classes, target.tolist(), strict=True) if value) or "none"


def measured_input(
    inputs: Iterable[Tensor], shape: tuple[int, ...], classes: tuple[str, ...], targets: Tensor, kind: Kind
) -> InputSpec:
    """The spec with the statistics of a training split: of its inputs, and of a regression's targets."""
    by_channel = channel_statistics(inputs)
    by_value = channel_statistics(torch.split(targets, _STEP)) if kind == "regression" else ((), ())
    return InputSpec(shape, classes, *by_channel, kind, *by_value)


def raw_input(shape: tuple[int, ...], classes: tuple[str, ...], kind: Kind) -> InputSpec:
    """The spec of inputs and targets that are not normalized."""
    return InputSpec(shape, classes, (0.0,) * shape[0], (1.0,) * shape[0], kind)


def normalize_split_(split: Split, spec: InputSpec) -> Split:
    """Normalize a split's inputs, and standardize its targets, in place."""
    normalize_(split.images, spec.mean, spec.std)
    if spec.is_standardized:
        normalize_(split.labels, spec.target_mean, spec.target_std)
    return split


def assemble(
    name: str,
    classes: tuple[str, ...],
    train: Split,
    val: Split,
    read_test: Callable[[], Split],
    *,
    kind: Kind = "classes",
    normalize: bool = True,
) -> DataSet:
    """Normalize splits in memory by the training split's statistics, in place."""
    parts, shape = torch.split(train.images, _STEP), train.image_shape
    found = checksum((train.images, train.labels, val.images, val.labels))
    spec = measured_input(parts, shape, classes, train.labels, kind) if normalize else raw_input(shape, classes, kind)
    for split in (train, val):
        normalize_split_(split, spec)
    return DataSet(name, train, val, lambda: normalize_split_(read_test(), spec), spec, checksum=found)


def assemble_parts(
    name: str,
    raw: InputSpec,
    parts: tuple[Part, Part],
    read_test: Callable[[], Part],
    request: DataRequest,
    *,
    changes: bool,
    values: int,
) -> DataSet:
    """Training, validation and test of entries, read lazily where all their `values` do not fit into memory.

    `raw` is their spec without statistics. Training is also read lazily if its inputs are others in each epoch.
    """
    (train, val), shape, is_large = parts, raw.input_shape, 4 * values > request.memory_bytes
    if not (is_large or changes):
        splits = train.in_memory(shape), val.in_memory(shape), lambda: read_test().in_memory(shape)
        return assemble(name, raw.classes, *splits, kind=raw.kind, normalize=request.normalize)
    spec, reader = raw, train.reader
    # The user's own augmentation gives other inputs whenever they are read.
    read = () if changes and not isinstance(reader, ImageReader) else parts
    inputs = (each for part in read for each in _sample(part, _CHECKSUM_SAMPLE))
    found = checksum((*(torch.from_numpy(part.targets.copy()) for part in parts), *inputs))
    if request.normalize:
        sample = (each.unsqueeze(0) for each in _sample(train, SAMPLE_STATISTICS))
        spec = measured_input(sample, shape, raw.classes, torch.from_numpy(train.targets), raw.kind)

    def lazy(part: Part, reader: Reader, changes: bool) -> LazySplit:
        labels = torch.from_numpy(part.targets.copy())
        if spec.is_standardized:
            normalize_(labels, spec.target_mean, spec.target_std)
        return LazySplit(part.entries, labels, reader, spec.mean, spec.std, changes=changes)

    def other(part: Part) -> AnySplit:
        return lazy(part, part.reader, False) if is_large else normalize_split_(part.in_memory(shape), spec)

    return DataSet(name, lazy(train, reader, changes), other(val), lambda: other(read_test()), spec, checksum=found)


def _sample(part: Part, count: int) -> Iterator[Tensor]:
    """Inputs at even distances."""
    for row in np.unique(np.linspace(0, len(part.entries) - 1, count).astype(np.int64)):
        yield part.reader(part.entries[row])


def channel_statistics(parts: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation per channel, the second axis, over all other axes and all parts.

    Each part gives its own mean m and variance v; together, with w as a part's fraction of the pixels,
    M = Σ w·m and V = Σ w·(v + (m - M)²). One pass, without the cancellation of E[x²] - E[x]².
    """
    # One buffer for all parts: malloc would allocate a new one for each, and not return them to the system.
    buffer, found = torch.empty(0, dtype=torch.float64), []
    for part in parts:
        pixels = buffer.resize_(part.shape).copy_(part)
        found.append((len(part), *torch.var_mean(pixels, dim=(0, *range(2, part.ndim)), correction=0)))
    sizes, variances, means = zip(*found, strict=True)
    weight = torch.tensor(sizes, dtype=torch.float64).view(-1, 1) / sum(sizes)
    mean = (weight * torch.stack(means)).sum(0)
    spread = torch.stack(variances) + (torch.stack(means) - mean).square()
    std = (weight * spread).sum(0).sqrt()
    std[std <= _NO_SPREAD * mean.abs()] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def normalize_(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Shift and scale each channel in place: memory may not hold a second copy of a large set."""
    ones = [1] * (images.ndim - 2)
    images.sub_(torch.tensor(mean).view(-1, *ones)).div_(torch.tensor(std).view(-1, *ones))


def checksum(tensors: Iterable[Tensor]) -> str:
    """CRC-32 over types, shapes and values, in hex, by which other data is noticed.

    It detects mistakes, not attacks, and is several times faster than reading data.
    """
    found = 0
    for tensor in tensors:
        found = zlib.crc32(f"{tensor.dtype} {tuple(tensor.shape)}".encode(), found)
        found = zlib.crc32(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data, found)
    return f"{found:08x}"
