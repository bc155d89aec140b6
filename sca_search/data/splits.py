"""One part of a data set in memory, and its batches."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

Batch = tuple[Tensor, ...]  # inputs, targets, and where a teacher was asked, its outputs
Moment = tuple[int, int]  # a training's seed and its epoch, from which all follows that is random in its batches


class Fetches(Protocol):
    """Whatever turns lists of rows into batches, in the order given; at a moment of a training, or at none."""

    def __len__(self) -> int: ...

    def fetch(self, chunks: Sequence[Tensor], moment: Moment | None = None, /) -> Iterator[Batch]: ...


class Batches:
    """The batches of one split, an epoch an iteration.

    Without a seed the order is the split's own. With one, epoch n is shuffled by a generator seeded
    from (seed, n) alone, so that a training resumed after `set_epoch(n)` sees what it would have seen.
    """

    def __init__(self, source: Fetches, size: int, *, seed: int | None = None) -> None:
        if size < 1:
            raise ValueError(f"a batch must hold at least 1 image, got {size}")
        self._source = source
        self._size = size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch the next iteration is, from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(len(self._source), self._size)
        return full + int(rest > self._smallest_kept)

    def __iter__(self) -> Iterator[Batch]:
        # A generator, so that an epoch counts from its first batch: Lightning asks for an iterator
        # once more than it has epochs, and takes nothing from the first.
        epoch = self._epoch
        self._epoch += 1
        moment = None if self._seed is None else (self._seed, epoch)
        yield from self._source.fetch(torch.split(self._order(epoch), self._size)[: len(self)], moment)

    @property
    def _smallest_kept(self) -> int:
        # Batch normalisation cannot train on one value: a last batch of one image is left out there.
        return 0 if self._seed is None else 1

    def _order(self, epoch: int) -> Tensor:
        count = len(self._source)
        if self._seed is None:
            return torch.arange(count)
        return torch.from_numpy(np.random.default_rng([self._seed, epoch]).permutation(count))


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs (float32, channels behind the batch) and targets (int64 of classes, float32 of others) in memory."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels first."""
        return tuple(self.images.shape[1:])

    def batches(self, size: int, *, seed: int | None = None) -> Batches:
        """Batches of at most `size` images; in order without a seed, shuffled anew each epoch with one."""
        return Batches(self, size, seed=seed)

    def fetch(self, chunks: Sequence[Tensor], _moment: Moment | None = None, /) -> Iterator[Batch]:
        """One batch for each list of rows."""
        for rows in chunks:
            yield self.images.index_select(0, rows), self.labels.index_select(0, rows)


@dataclass(frozen=True, eq=False)
class TaughtSplit:
    """A split whose batches also carry a teacher's answers, asked once and not at every step."""

    split: Fetches
    answers: Tensor  # a row an image, in the split's own order

    def __len__(self) -> int:
        return len(self.split)

    def batches(self, size: int, *, seed: int | None = None) -> Batches:
        """As the split's own batches, with a third tensor."""
        return Batches(self, size, seed=seed)

    def fetch(self, chunks: Sequence[Tensor], moment: Moment | None = None, /) -> Iterator[Batch]:
        """One batch for each list of rows."""
        for batch, rows in zip(self.split.fetch(chunks, moment), chunks, strict=True):
            yield (*batch, self.answers.index_select(0, rows))


@dataclass(frozen=True, eq=False)
class AskedSplit:
    """A split whose examples change from epoch to epoch, so that its teacher is asked at every step."""

    split: Fetches
    teacher: Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.split)

    def batches(self, size: int, *, seed: int | None = None) -> Batches:
        """As the split's own batches, with a third tensor."""
        return Batches(self, size, seed=seed)

    def fetch(self, chunks: Sequence[Tensor], moment: Moment | None = None, /) -> Iterator[Batch]:
        """One batch for each list of rows."""
        for inputs, *rest in self.split.fetch(chunks, moment):
            with torch.no_grad():
                told = self.teacher(inputs)
            yield (inputs, *rest, told)  # outside: whoever takes it would train without gradients
