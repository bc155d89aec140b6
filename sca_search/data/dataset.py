"""A data set ready for a study: normalised by its training split, its test split still unread."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sca_search.data.lazy import LazySplit
from sca_search.data.splits import Split

AnySplit = Split | LazySplit

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


@dataclass(frozen=True, eq=False)
class DataSet:
    """Training and validation split, and a way to the test split, which is read at the very end only."""

    name: str
    train: AnySplit
    val: AnySplit
    read_test: Callable[[], AnySplit]
    classes: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of the training split before normalisation
    std: tuple[float, ...]  # 1 for a channel that is constant

    @property
    def num_classes(self) -> int:
        return len(self.classes)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height, width."""
        return self.train.image_shape


def assemble(name: str, classes: tuple[str, ...], train: Split, val: Split, read_test: Callable[[], Split]) -> DataSet:
    """Normalise splits in memory by the training split's statistics; the tensors given are changed."""
    mean, std = channel_statistics(torch.split(train.images, _STEP))

    def read_normalised_test() -> Split:
        test = read_test()
        normalise_(test.images, mean, std)
        return test

    for split in (train, val):
        normalise_(split.images, mean, std)
    return DataSet(name, train, val, read_normalised_test, classes, mean, std)


def channel_statistics(parts: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel over all pixels of all parts (NCHW).

    Each part gives its own mean m and variance v; together, with w for a part's share of the pixels,
    M = Σ w·m and V = Σ w·(v + (m - M)²). One walk, and nothing cancels as in E[x²] - E[x]².
    """
    sizes, means, variances = zip(*map(_moments, parts), strict=True)
    weight = torch.tensor(sizes, dtype=torch.float64).view(-1, 1) / sum(sizes)
    mean = (weight * torch.stack(means)).sum(0)
    spread = torch.stack(variances) + (torch.stack(means) - mean).square()
    std = (weight * spread).sum(0).sqrt()
    std[std <= _NO_SPREAD * mean.abs()] = 1.0
    return tuple(mean.tolist()), tuple(std.tolist())


def _moments(images: Tensor) -> tuple[int, Tensor, Tensor]:
    pixels = images.double()
    variance, mean = torch.var_mean(pixels, dim=(0, 2, 3), correction=0)
    return len(images), mean, variance


def normalise_(images: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Shift and scale each channel in place: a copy of a large set may not fit beside it."""
    images.sub_(torch.tensor(mean).view(-1, 1, 1)).div_(torch.tensor(std).view(-1, 1, 1))
