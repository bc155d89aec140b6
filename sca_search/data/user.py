"""A data set from objects that a user made: a LightningDataModule, a tuple of torch data sets, or one of ours.

What fits is read into memory once. What does not, and a training set that gives other inputs when it is read again
(it augments them), is read item by item in every epoch.
"""

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sca_search.data.data_module import described, is_module, splits_of_module
from sca_search.data.dataset import AnySplit, DataRequest, DataSet, measured_input, normalise_split_, raw_input
from sca_search.data.image_files import MEMORY_BYTES, SAMPLE_STATISTICS
from sca_search.data.image_folder import TEST_SHARE
from sca_search.data.input_spec import InputSpec
from sca_search.data.lazy import LazySplit
from sca_search.data.splits import Split
from sca_search.data.stratify import TEST_SEED, Rows, carve, carve_val, limit_rows, require_every_class, share_of
from sca_search.data.targets import Kind, Values, check_targets, count_outputs, kind_of, numbered, strata, targets_of
from sca_search.data.user_items import ItemReader, Items, stacked
from sca_search.errors import CodeError, DataError

_MUST_BE = (
    "a LightningDataModule, or a tuple (train, validation or None, test or None) of torch data sets with items "
    "(input, target)"
)
_SPLITS = ("training", "validation", "test")


def from_objects(
    name: str,
    data: object,
    *,
    seed: int,
    train_limit: int | None = None,
    normalise: bool = True,
    output_names: tuple[str, ...] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> DataSet:
    """The data set that an object holds; without validation or test examples, they are carved from training."""
    request = DataRequest(seed, train_limit=train_limit, normalise=normalise)
    return data_of_objects(name, data, request, output_names, memory_bytes)


def data_of_objects(
    name: str,
    data: object,
    request: DataRequest,
    output_names: tuple[str, ...] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> DataSet:
    """The same for whoever has a request."""
    if isinstance(data, DataSet):
        return data
    with seeded(request.seed):
        given = _given(name, data)
        try:
            return _Assembly(name, request, memory_bytes, output_names).of(given)
        except CodeError as error:  # it happens at once, so the study does not even begin
            raise DataError(str(error)) from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The user's code draws the same random numbers in every process of a study, and ours are as they were."""
    before = random.getstate(), np.random.get_state()  # which the user's code may draw from
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _given(name: str, data: object) -> list[Items | None]:
    """Training, validation and test, the last two where there are any."""
    if is_module(data):
        sources = splits_of_module(name, data)
    elif isinstance(data, tuple | list) and 1 <= len(data) <= 3:
        sources = [*data, None, None][:3]
    else:
        raise DataError(f"data set {name!r} must be {_MUST_BE}, got {described(data)}")
    return [_items(name, split, source) for split, source in zip(_SPLITS, sources, strict=True)]


def _items(name: str, split: str, source: Any) -> Items | None:
    where = f"data set {name!r}, {split}"
    if source is None:
        if split == "training":
            raise DataError(f"{where}: there must be a training split, got None")
        return None
    if not (hasattr(source, "__getitem__") and hasattr(source, "__len__")) or isinstance(source, str | dict | Tensor):
        raise DataError(f"{where}: must be a data set with a length and items (input, target), got {described(source)}")
    if not len(source):
        raise DataError(f"{where}: must not be empty, it has no item")
    return Items(where, source)


@dataclass(frozen=True)
class _Part:
    """Rows of a data set, with their targets as they are trained on."""

    items: Items
    rows: Rows
    targets: Values
    kind: Kind

    @property
    def strata(self) -> Rows:
        return strata(self.targets, self.kind)

    def take(self, chosen: Rows) -> "_Part":
        return _Part(self.items, self.rows[chosen], self.targets[chosen], self.kind)


@dataclass(frozen=True)
class _How:
    """Why splits may have to be read when they are due: all are too large together, or training changes."""

    is_large: bool
    changes: bool


@dataclass(frozen=True)
class _Assembly:
    """Makes a data set of what the user gave."""

    name: str
    request: DataRequest
    memory_bytes: int
    output_names: tuple[str, ...] | None

    def of(self, given: list[Items | None]) -> DataSet:
        train, val, test = given
        assert train is not None
        changes = train.changes()
        values = sum(len(items) for items in given if items) * math.prod(train.input_shape)
        is_large = 4 * values > self.memory_bytes
        whole = self._whole(train, in_memory=not (is_large or changes))
        count = count_outputs(f"{train.where}: targets", whole.targets, whole.kind)
        parts, notes = self._divided(whole, val, test, count, is_large)
        names = self._names(whole.kind, count)
        if whole.kind == "classes":
            require_every_class(f"data set {self.name!r}", parts[0].targets, names)
        if changes:
            notes.append("training inputs change when they are read again (augmented): they are read in every epoch")
        return self._assembled(parts, test, names, notes, _How(is_large, changes))

    def _names(self, kind: Kind, count: int) -> tuple[str, ...]:
        if self.output_names is None:
            return numbered(kind, count)
        if len(self.output_names) < count:
            raise DataError(f"data set {self.name!r}: must have {count} names of outputs, got {len(self.output_names)}")
        return self.output_names[:count]

    def _whole(self, items: Items, kind: Kind | None = None, *, in_memory: bool) -> _Part:
        """All of a split, read once; where it is to be in memory, it is from here on."""
        inputs = torch.empty(len(items), *items.input_shape) if in_memory else None
        raw = stacked(items.where, items.read(range(len(items)), inputs))
        where = f"{items.where}: targets"
        kind = kind or kind_of(where, raw.shape, raw.dtype)
        targets = targets_of(where, raw, kind)
        kept = items if inputs is None else Items(items.where, TensorDataset(inputs, torch.from_numpy(targets)))
        return _Part(kept, np.arange(len(items)), targets, kind)

    def _of_user(self, items: Items, like: _Part, count: int, *, in_memory: bool) -> _Part:
        """A split beside training, once it is of the same shape and kind."""
        _check_shape(items, like.items.input_shape)
        part = self._whole(items, like.kind, in_memory=in_memory)
        check_targets(f"{items.where}: targets", part.targets, part.kind, count)
        return part

    def _divided(
        self, whole: _Part, val: Items | None, test: Items | None, count: int, is_large: bool
    ) -> tuple[list[_Part], list[str]]:
        """Training, validation and, where it is carved, test; and what is to be said of it."""
        notes, rest, carved_test = [], whole, []
        if test is None:
            chosen, others = carve(rest.strata, share_of(len(whole.rows), TEST_SHARE), TEST_SEED)
            rest, carved_test = whole.take(others), [whole.take(chosen)]
            notes.append(f"there is no test split: {len(chosen)} training examples are set apart as one")
        elif self.request.check_test:
            # What is kept of it is read at the very end, but a broken item must not show when all is trained.
            with seeded(self.request.seed):
                self._of_user(test, whole, count, in_memory=False)
        if val is not None:
            part = self._of_user(val, whole, count, in_memory=not is_large)
        else:
            chosen, others = carve_val(rest.strata, self.request.seed)
            part, rest = rest.take(chosen), rest.take(others)
            notes.append(f"there is no validation split: {len(chosen)} training examples are set apart as one")
        kept = limit_rows(rest.strata, self.request.train_limit, self.request.seed)
        return [rest.take(kept), part, *carved_test], notes

    def _assembled(
        self, parts: list[_Part], test: Items | None, names: tuple[str, ...], notes: list[str], how: _How
    ) -> DataSet:
        train = parts[0]
        shape = train.items.input_shape
        held = None if how.is_large or how.changes else self._held(train, shape)
        spec = self._input_spec(train, held, names)

        def split(part: _Part) -> AnySplit:
            if part is train and held is not None:
                return normalise_split_(held, spec)
            if not how.is_large and part is not train:
                return normalise_split_(self._held(part, shape), spec)
            targets = torch.from_numpy(part.targets.copy())
            labels = normalise_split_(Split(torch.zeros(1, shape[0]), targets), spec).labels
            reader, changes = ItemReader(part.items, shape), how.changes and part is train
            return LazySplit(part.rows.tolist(), labels, reader, spec.mean, spec.std, changes=changes)

        def read_test() -> AnySplit:
            if test is None:
                return split(parts[2])
            with seeded(self.request.seed):
                return split(self._of_user(test, train, len(names), in_memory=not how.is_large))

        return DataSet(
            self.name,
            split(train),
            split(parts[1]),
            read_test,
            spec,
            tuple(notes),
        )

    def _held(self, part: _Part, shape: tuple[int, ...]) -> Split:
        inputs = torch.empty(len(part.rows), *shape)
        part.items.read(part.rows.tolist(), inputs)
        return Split(inputs, torch.from_numpy(part.targets.copy()))

    def _input_spec(self, train: _Part, held: Split | None, names: tuple[str, ...]) -> InputSpec:
        """Statistics of all of training, or of a sample if it is not in memory."""
        shape = train.items.input_shape
        if not self.request.normalise:
            return raw_input(shape, names, train.kind)
        if held is not None:
            inputs: Any = torch.split(held.images, 1024)
        else:
            rows = train.rows[np.unique(np.linspace(0, len(train.rows) - 1, SAMPLE_STATISTICS).astype(np.int64))]
            inputs = (train.items.pair(int(row))[0][None] for row in rows)
        return measured_input(inputs, shape, names, torch.from_numpy(train.targets), train.kind)


def _check_shape(items: Items, expected: tuple[int, ...]) -> None:
    if items.input_shape != expected:
        raise DataError(f"{items.where}: inputs must have the shape {expected} as in training, got {items.input_shape}")
