"""A data set ready for a study: normalised by its training split, its test split still unread."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from sca_search.config.names import Augmentation
from sca_search.data.augment import CropFlipSplit
from sca_search.data.image_reader import ImageReader
from sca_search.data.input_spec import InputSpec
from sca_search.data.lazy import LazySplit
from sca_search.data.splits import Split
from sca_search.data.targets import Kind
from sca_search.errors import DataError

AnySplit = Split | LazySplit
TrainingSplit = Split | LazySplit | CropFlipSplit

# Images a step when a whole split is walked: small enough that float64 copies stay near 100 MB.
_STEP = 1024

# Below this, relative to the mean, the spread of a channel is a float32's rounding and not signal.
_NO_SPREAD = 1e-7


@dataclass(frozen=True)
class DataRequest:
    """What is asked of a source besides its name."""

    seed: int
    data_dir: Path | None = None
    image_size: int | None = None
    train_limit: int | None = None
    normalise: bool = True  # inputs by channel, and targets of a regression
    columns: tuple[str, ...] = ()  # of inputs and targets, where a source has columns and does not tell which
    augment: Augmentation = "none"  # which decides how image files are read
    skip_unreadable: bool = False  # whether image files that cannot be read are left out
    check_test: bool = True  # whether test examples are looked through now; somebody may just have done so


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and validation split, and a way to the test split, which is read at the very end only."""

    name: str
    train: AnySplit
    val: AnySplit
    read_test: Callable[[], AnySplit]
    input: InputSpec
    notes: tuple[str, ...] = ()  # what a user should know of how it was read
    training_is_whole: bool = True  # whether no unreadable file was left out of training and validation
    augmentation: Augmentation = "none"  # of `training`, and of nothing else

    @property
    def training(self) -> TrainingSplit:
        """What weights and normalisation statistics come from: augmented where that is asked for."""
        if self.augmentation == "crop-flip":
            # Zeros before normalisation, as if the raw image had a black border.
            return CropFlipSplit(
                self.train, self.input_shape, -torch.tensor(self.input.mean) / torch.tensor(self.input.std)
            )
        if self.augmentation == "scale-aspect":
            assert isinstance(self.train, LazySplit)
            assert isinstance(self.train.reader, ImageReader)
            return replace(self.train, varied=self.train.reader.varied)
        return self.train

    @property
    def changes(self) -> bool:
        """Whether a training sees other inputs in each epoch, by our doing or by the user's."""
        return self.augmentation != "none" or (isinstance(self.train, LazySplit) and self.train.changes)

    def augmented_by(self, augmentation: Augmentation) -> "DataSet":
        """The same with another augmentation; DataError where it does not fit."""
        rule = ""
        if augmentation == "crop-flip" and not self.input.is_image:
            rule = f"is for images (channels, height, width), inputs have the shape {self.input_shape}"
        reader = self.train.reader if isinstance(self.train, LazySplit) else None
        if augmentation == "scale-aspect" and not isinstance(reader, ImageReader):
            rule = "is for image files (folder:PATH, tiny-imagenet, imagenet), from which parts of any size are cut"
        if rule:
            raise DataError(f"data set {self.name!r}: augmentation {augmentation!r} {rule}")
        return replace(self, augmentation=augmentation)

    @property
    def num_classes(self) -> int:
        """How many outputs a network has, whatever they are."""
        return len(self.classes)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.input.classes

    @property
    def kind(self) -> Kind:
        return self.input.kind

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.input.input_shape

    def in_units(self, values: Tensor) -> Tensor:
        """Targets or answers as the user has them."""
        if not self.input.is_standardised:
            return values
        return values * torch.tensor(self.input.target_std) + torch.tensor(self.input.target_mean)

    def name_of(self, target: Tensor) -> str:
        """One target in words."""
        if self.kind == "classes":
            return self.classes[int(target)]
        if self.kind == "regression":
            return ", ".join(f"{value:.3g}" for value in self.in_units(target).tolist())
        return ", ".join(name for name, value in zip(self.classes, target.tolist(), strict=True) if value) or "none"


def measured_input(
    inputs: Iterable[Tensor], shape: tuple[int, ...], classes: tuple[str, ...], targets: Tensor, kind: Kind
) -> InputSpec:
    """The spec with the statistics of the training split: of its inputs, and of a regression's targets."""
    by_channel = channel_statistics(inputs)
    by_value = channel_statistics(torch.split(targets, _STEP)) if kind == "regression" else ((), ())
    return InputSpec(shape, classes, *by_channel, kind, *by_value)


def raw_input(shape: tuple[int, ...], classes: tuple[str, ...], kind: Kind) -> InputSpec:
    """The spec of inputs and targets that are not normalised."""
    return InputSpec(shape, classes, (0.0,) * shape[0], (1.0,) * shape[0], kind)


def normalise_split_(split: Split, spec: InputSpec) -> Split:
    """Normalises a split's inputs, and standardises its targets, in place."""
    normalise_(split.images, spec.mean, spec.std)
    if spec.is_standardised:
        normalise_(split.labels, spec.target_mean, spec.target_std)
    return split


def assemble(
    name: str,
    classes: tuple[str, ...],
    train: Split,
    val: Split,
    read_test: Callable[[], Split],
    *,
    kind: Kind = "classes",
    normalise: bool = True,
) -> DataSet:
    """Normalise splits in memory by the training split's statistics; the tensors given are changed."""
    parts, shape = torch.split(train.images, _STEP), train.image_shape
    spec = measured_input(parts, shape, classes, train.labels, kind) if normalise else raw_input(shape, classes, kind)
    for split in (train, val):
        normalise_split_(split, spec)
    return DataSet(name, train, val, lambda: normalise_split_(read_test(), spec), spec)


def channel_statistics(parts: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, the second axis, over all else of all parts.

    Each part gives its own mean m and variance v; together, with w for a part's share of the pixels,
    M = Σ w·m and V = Σ w·(v + (m - M)²). One walk, and nothing cancels as in E[x²] - E[x]².
    """
    room = torch.empty(0, dtype=torch.float64)
    sizes, means, variances = zip(*(_moments(part, room) for part in parts), strict=True)
    weight = torch.tensor(sizes, dtype=torch.float64).view(-1, 1) / sum(sizes)
    mean = (weight * torch.stack(means)).sum(0)
    spread = torch.stack(variances) + (torch.stack(means) - mean).square()
    std = (weight * spread).sum(0).sqrt()
    std[std <= _NO_SPREAD * mean.abs()] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _moments(images: Tensor, room: Tensor) -> tuple[int, Tensor, Tensor]:
    # In one room for all parts: the C library would find new room for each, and keep it.
    pixels = room.resize_(images.shape).copy_(images)
    variance, mean = torch.var_mean(pixels, dim=(0, *range(2, images.ndim)), correction=0)
    return len(images), mean, variance


def normalise_(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Shift and scale each channel in place: a copy of a large set may not fit beside it."""
    ones = [1] * (images.ndim - 2)
    images.sub_(torch.tensor(mean).view(-1, *ones)).div_(torch.tensor(std).view(-1, *ones))
