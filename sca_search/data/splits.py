"""One part of a data set and its batches: in memory, read lazily, or with a teacher's logits."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, default_collate

from sca_search.errors import CodeError, DataError

Batch = tuple[Tensor, ...]  # inputs, targets and, with a teacher, its logits
EpochSeed = tuple[int, int]  # seed and epoch of a training: they determine everything random in its batches

# Reads one entry of a split with random augmentation.
AugmentingReader = Callable[[Any, np.random.Generator], Tensor]
# A random stream separate from the one that shuffles.
_AUGMENT_STREAM = 2


class BatchSource:
    """Anything that turns lists of rows into batches."""

    def __len__(self) -> int:
        raise NotImplementedError

    def fetch(self, chunks: Sequence[Tensor], epoch_seed: EpochSeed | None = None, /) -> Iterator[Batch]:
        """One batch for each list of rows, in the given order; outside of a training there is no epoch seed."""
        raise NotImplementedError

    def batches(self, size: int, *, seed: int | None = None) -> "Batches":
        """Batches of at most `size` inputs: in order without a seed, reshuffled in every epoch with one."""
        return Batches(self, size, seed=seed)


class Batches:
    """The batches of one split; each iteration is one epoch.

    Without a seed the order is the split's own. With one, epoch n is shuffled by a generator seeded
    from (seed, n) alone, so that a training resumed after `set_epoch(n)` gets the same batches.
    """

    def __init__(self, source: BatchSource, size: int, *, seed: int | None = None) -> None:
        if size < 1:
            raise ValueError(f"the batch size must be at least 1, got {size}")
        self._source = source
        self._size = size
        self._seed = seed
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next iteration, counted from 0."""
        self._epoch = epoch

    def __len__(self) -> int:
        # BatchNorm cannot train on a single value: a last batch of one input is dropped in training.
        smallest = 1 if self._seed is None else 2
        full, rest = divmod(len(self._source), self._size)
        return full + int(rest >= smallest)

    def __iter__(self) -> Iterator[Batch]:
        # A generator, so that an epoch starts with its first batch: Lightning creates one more iterator than it has
        # epochs and never reads the first.
        epoch_seed = None if self._seed is None else (self._seed, self._epoch)
        self._epoch += 1
        count = len(self._source)
        order = np.arange(count) if epoch_seed is None else np.random.default_rng(epoch_seed).permutation(count)
        yield from self._source.fetch(torch.split(torch.from_numpy(order), self._size)[: len(self)], epoch_seed)


@dataclass(frozen=True, eq=False)
class Split(BatchSource):
    """Inputs (float32, channels after the batch axis) and targets (int64 for classes, else float32) in memory."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels first."""
        return tuple(self.images.shape[1:])

    def fetch(self, chunks: Sequence[Tensor], _epoch_seed: EpochSeed | None = None, /) -> Iterator[Batch]:
        for rows in chunks:
            yield self.images.index_select(0, rows), self.labels.index_select(0, rows)


@dataclass(frozen=True, eq=False)
class TeacherSplit(BatchSource):
    """A split whose batches also contain a teacher's logits, for distillation."""

    split: BatchSource
    # Precomputed logits in the split's order; the teacher itself where inputs change from epoch to epoch.
    teacher: Tensor | Callable[[Tensor], Tensor]

    def __len__(self) -> int:
        return len(self.split)

    def fetch(self, chunks: Sequence[Tensor], epoch_seed: EpochSeed | None = None, /) -> Iterator[Batch]:
        for batch, rows in zip(self.split.fetch(chunks, epoch_seed), chunks, strict=True):
            if isinstance(self.teacher, Tensor):
                yield (*batch, self.teacher.index_select(0, rows))
            else:
                with torch.no_grad():
                    logits = self.teacher(batch[0])
                yield (*batch, logits)


class Reader(Protocol):
    """Reads one entry of a split as float32, channels first."""

    @property
    def image_shape(self) -> tuple[int, ...]: ...

    def __call__(self, entry: Any, /) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class LazySplit(BatchSource):
    """A split that is too large for memory, or changes from epoch to epoch: batches are read when needed."""

    paths: Sequence[Any]  # files, or whatever else the reader accepts
    labels: Tensor
    reader: Reader
    mean: tuple[float, ...]
    std: tuple[float, ...]
    workers: int | None = None  # loader processes; None: as many as there are spare cores
    changes: bool = False  # whether inputs are others in each epoch: the user's data set augments, or files are cropped
    augmented: AugmentingReader | None = None  # reads with our augmentation, in training only

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels first."""
        return self.reader.image_shape

    def fetch(self, chunks: Sequence[Tensor], epoch_seed: EpochSeed | None = None, /) -> Iterator[Batch]:
        # A separate generator: the loader draws a seed for its workers, and a draw from the global generator would
        # change every later random number of the training. It is seeded by the order of the rows, which differs in
        # every epoch: readers that augment must not repeat themselves.
        # Of all threads that this process may use, one trains; more than four readers bring nothing.
        spare = min(4, torch.get_num_threads() - 1)
        loader: DataLoader[Any] = DataLoader(
            range(len(self)),  # type: ignore[arg-type]  # rows, which become a batch where they are collated
            batch_sampler=[rows.tolist() for rows in chunks],
            collate_fn=partial(self._read, epoch_seed),
            num_workers=spare if self.workers is None else self.workers,
            generator=torch.Generator().manual_seed(zlib.crc32(chunks[0].numpy().tobytes()) if len(chunks) else 0),
        )
        try:
            for batch in loader:  # lists of two, from torch's default collation
                yield batch[0], batch[1]
        except (DataError, CodeError) as error:
            # The message alone: an error from a loader process contains its traceback as text.
            last = str(error).strip().splitlines()[-1]
            raise type(error)(last.rpartition(f"{type(error).__name__}: ")[2]) from None

    def _read(self, epoch_seed: EpochSeed | None, rows: list[int]) -> Any:
        """The batch of some rows, normalized, by torch's default collation."""
        ones = [1] * (len(self.image_shape) - 1)
        mean, std = (torch.tensor(values).view(-1, *ones) for values in (self.mean, self.std))
        items = []
        for row in rows:
            if self.augmented is None or epoch_seed is None:
                inputs = self.reader(self.paths[row])
            else:
                # One generator per row: the result does not depend on which process reads it, or on what was read
                # before.
                inputs = self.augmented(self.paths[row], np.random.default_rng([*epoch_seed, row, _AUGMENT_STREAM]))
            items.append(((inputs - mean) / std, self.labels[row]))
        return default_collate(items)
