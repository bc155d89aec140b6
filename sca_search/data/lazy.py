"""Image files: reading one, and a split of more of them, or of other things, than memory should hold."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sca_search.data.splits import Batch, Batches
from sca_search.errors import CodeError, DataError

# Everything Pillow raises on a file that is no image, is cut short, or is absurdly large;
# SyntaxError is what its PNG reader says of a broken chunk.
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)


@dataclass(frozen=True)
class ImageReader:
    """Reads a file as a square image, resized by its shorter side and cut to the centre."""

    size: int
    channels: int  # 1: grey, 3: red, green, blue

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    def __call__(self, path: Path) -> Tensor:
        """The image as float32 CHW in 0..1."""
        try:
            with Image.open(path) as image:
                coloured = _convert(image, "L" if self.channels == 1 else "RGB", path)
            square = ImageOps.fit(coloured, (self.size, self.size), method=Image.Resampling.BILINEAR)
        except _UNREADABLE as error:
            raise _unreadable(path, error) from None
        pixels = np.asarray(square, dtype=np.float32) / 255
        return torch.from_numpy(pixels.reshape(self.size, self.size, self.channels).transpose(2, 0, 1).copy())


def _convert(image: Image.Image, mode: str, path: Path) -> Image.Image:
    if image.mode[0] in "IF":
        # Pillow would clip these to 255 and hand over a white image.
        raise DataError(f"{path}: images must have 8 bits a channel, this one has mode {image.mode!r}")
    if "transparency" in image.info:
        image = image.convert("RGBA")  # straight from a palette to RGB, Pillow warns of what it drops
    return image.convert(mode)


def is_grey(path: Path) -> bool:
    """Whether a file's header says that it has no colours."""
    try:
        with Image.open(path) as image:
            return image.mode in {"L", "1"}
    except _UNREADABLE as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> DataError:
    reason = " ".join(str(error).split())
    return DataError(f"{path}: every image must be readable, this one is not ({reason})")


class Reader(Protocol):
    """Whatever gives an input, as float32 with its channels first, for what a split lists."""

    @property
    def image_shape(self) -> tuple[int, ...]: ...

    def __call__(self, listed: Any, /) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class LazySplit:
    """The interface of Split without its `images`: each batch is read from its files when it is due."""

    paths: Sequence[Any]  # files, or whatever else the reader takes
    labels: Tensor
    reader: Reader
    mean: tuple[float, ...]
    std: tuple[float, ...]
    workers: int | None = None  # processes that read ahead; None: what the machine can spare
    changes: bool = False  # whether an input is another one each time that it is read: augmented

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels first."""
        return self.reader.image_shape

    def batches(self, size: int, *, seed: int | None = None) -> Batches:
        """Batches of at most `size` images; in order without a seed, shuffled anew each epoch with one."""
        return Batches(self, size, seed=seed)

    def fetch(self, chunks: Sequence[Tensor]) -> Iterator[Batch]:
        """One batch for each list of rows."""
        # A generator of its own: the loader draws a seed for its workers, and taken from the global
        # generator that draw would change every random number of the training after it. Its seed follows from the
        # order of the rows, which is another in each epoch: readers that augment must not repeat themselves.
        loader = DataLoader(
            _Files(self),
            batch_sampler=[rows.tolist() for rows in chunks],
            num_workers=_spare_cores() if self.workers is None else self.workers,
            generator=torch.Generator().manual_seed(zlib.crc32(chunks[0].numpy().tobytes()) if len(chunks) else 0),
        )
        try:
            for batch in loader:  # lists of two, from torch's default collation
                yield batch[0], batch[1]
        except (DataError, CodeError) as error:
            raise type(error)(_own_words(error)) from None


def _own_words(error: Exception) -> str:
    """The sentence alone: an error that crosses from a reading process brings its traceback as text."""
    last = str(error).strip().splitlines()[-1]
    return last.rpartition(f"{type(error).__name__}: ")[2]


class _Files(Dataset[Batch]):
    """What torch's loader asks for, row by row."""

    def __init__(self, split: LazySplit) -> None:
        self._split = split
        ones = [1] * (len(split.image_shape) - 1)
        self._mean = torch.tensor(split.mean).view(-1, *ones)
        self._std = torch.tensor(split.std).view(-1, *ones)

    def __getitem__(self, row: int) -> Batch:
        image = self._split.reader(self._split.paths[row])
        return (image - self._mean) / self._std, self._split.labels[row]


def _spare_cores() -> int:
    """All threads that this process may use but the one that trains; more than four readers bring nothing."""
    return min(4, torch.get_num_threads() - 1)
