"""A split of more image files, or of other things, than memory should hold: each batch is read when it is due."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sca_search.data.splits import Batch, Batches, Moment
from sca_search.errors import CodeError, DataError

# Reads what a split lists, otherwise each time, from a random state that it is given.
VariedReader = Callable[[Any, np.random.Generator], Tensor]
# Apart from the stream that shuffles.
_VARIED_STREAM = 2


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
    varied: VariedReader | None = None  # reads for a training, where that is to be another input in each epoch

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels first."""
        return self.reader.image_shape

    def batches(self, size: int, *, seed: int | None = None) -> Batches:
        """Batches of at most `size` images; in order without a seed, shuffled anew each epoch with one."""
        return Batches(self, size, seed=seed)

    def fetch(self, chunks: Sequence[Tensor], moment: Moment | None = None, /) -> Iterator[Batch]:
        """One batch for each list of rows."""
        # A generator of its own: the loader draws a seed for its workers, and taken from the global
        # generator that draw would change every random number of the training after it. Its seed follows from the
        # order of the rows, which is another in each epoch: readers that augment must not repeat themselves.
        loader = DataLoader(
            _Files(self, moment),
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

    def __init__(self, split: LazySplit, moment: Moment | None) -> None:
        self._split = split
        self._moment = moment
        ones = [1] * (len(split.image_shape) - 1)
        self._mean = torch.tensor(split.mean).view(-1, *ones)
        self._std = torch.tensor(split.std).view(-1, *ones)

    def __getitem__(self, row: int) -> Batch:
        return (self._read(row) - self._mean) / self._std, self._split.labels[row]

    def _read(self, row: int) -> Tensor:
        split = self._split
        if split.varied is None or self._moment is None:
            return split.reader(split.paths[row])
        # A state a row: whichever process reads it, and whatever was read before, it is the same.
        return split.varied(split.paths[row], np.random.default_rng([*self._moment, row, _VARIED_STREAM]))


def _spare_cores() -> int:
    """All threads that this process may use but the one that trains; more than four readers bring nothing."""
    return min(4, torch.get_num_threads() - 1)
