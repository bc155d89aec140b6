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
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from sca_search.data.carve import TEST_SEED, Rows, carve, carve_val, limit_rows, require_every_class, share_of
from sca_search.data.dataset import AnySplit, DataRequest, DataSet, Scaling
from sca_search.data.folder import MEMORY_BYTES, SAMPLE_STATISTICS, TEST_SHARE
from sca_search.data.items import ItemReader, Items, stacked
from sca_search.data.lazy import LazySplit
from sca_search.data.splits import Split
from sca_search.data.targets import Kind, Values, check_targets, count_outputs, kind_of, numbered, strata, targets_of
from sca_search.errors import CodeError, DataError
from sca_search.named_object import cause_of

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
    if isinstance(data, DataSet):
        return data
    request = DataRequest(seed, train_limit=train_limit, normalise=normalise)
    with seeded(seed):
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
    if hasattr(data, "train_dataloader") and hasattr(data, "setup"):
        sources = _of_module(name, data)
    elif isinstance(data, tuple | list) and 1 <= len(data) <= 3:
        sources = [*data, None, None][:3]
    else:
        raise DataError(f"data set {name!r} must be {_MUST_BE}, got {_described(data)}")
    return [_items(name, split, source) for split, source in zip(_SPLITS, sources, strict=True)]


def _items(name: str, split: str, source: Any) -> Items | None:
    where = f"data set {name!r}, {split}"
    if source is None:
        if split == "training":
            raise DataError(f"{where}: there must be a training split, got None")
        return None
    if not (hasattr(source, "__getitem__") and hasattr(source, "__len__")) or isinstance(source, str | dict | Tensor):
        raise DataError(
            f"{where}: must be a data set with a length and items (input, target), got {_described(source)}"
        )
    if not len(source):
        raise DataError(f"{where}: must not be empty, it has no item")
    return Items(where, source)


def _of_module(name: str, module: Any) -> list[Any]:
    """The data sets behind a module's loaders."""
    try:
        if hasattr(module, "prepare_data"):
            module.prepare_data()
        module.setup("fit")
        found = [_of_loader(module, "train_dataloader"), _of_loader(module, "val_dataloader")]
        module.setup("test")
        return [*found, _of_loader(module, "test_dataloader")]
    except DataError:
        raise
    except Exception as error:
        raise DataError(f"data set {name!r}: its data module failed with {cause_of(error)}") from error


def _of_loader(module: Any, method: str) -> Any:
    make = getattr(type(module), method, None)
    # Lightning's own method is there where the user wrote none, and raises.
    if make is None or str(make.__module__).partition(".")[0] in {"pytorch_lightning", "lightning"}:
        return None
    loader = getattr(module, method)()
    if loader is None or (isinstance(loader, list) and not loader):
        return None
    source = getattr(loader, "dataset", None)
    has_items = hasattr(source, "__getitem__") and hasattr(source, "__len__")
    if has_items and getattr(loader, "collate_fn", default_collate) is default_collate:
        return source
    return _read_through(method, loader)


def _read_through(method: str, loader: Any) -> TensorDataset:
    """What a loader gives that has no plain data set behind it."""
    batches = list(loader)
    if not batches or not all(isinstance(each, tuple | list) and len(each) == 2 for each in batches):
        got = _described(batches[0]) if batches else "no batch"
        raise DataError(f"{method} must give batches (inputs, targets), got {got}")
    inputs, targets = zip(*batches, strict=True)
    return TensorDataset(torch.cat([*map(torch.as_tensor, inputs)]), torch.cat([*map(torch.as_tensor, targets)]))


@dataclass(frozen=True)
class _Part:
    """Rows of a data set, with their targets as they are trained on."""

    items: Items
    rows: Rows
    targets: Values

    def take(self, chosen: Rows) -> "_Part":
        return _Part(self.items, self.rows[chosen], self.targets[chosen])


@dataclass(frozen=True)
class _Assembly:
    name: str
    request: DataRequest
    memory_bytes: int
    output_names: tuple[str, ...] | None

    def of(self, given: list[Items | None]) -> DataSet:
        train, val, test = given
        assert train is not None
        raw = self._targets(train)
        kind = kind_of(f"{train.where}: targets", raw.shape, raw.dtype)
        targets = targets_of(f"{train.where}: targets", raw, kind)
        count = count_outputs(f"{train.where}: targets", targets, kind)
        whole = _Part(train, np.arange(len(train)), targets)
        parts, notes = self._divided(whole, val, test, kind, count)
        names = self._names(kind, count)
        if kind == "classes":
            require_every_class(f"data set {self.name!r}", parts[0].targets, names)
        changes = train.changes()
        if changes:
            notes.append("training inputs change when they are read again (augmented): they are read in every epoch")
        return self._assembled(parts, test, kind, names, notes, changes)

    def _names(self, kind: Kind, count: int) -> tuple[str, ...]:
        if self.output_names is None:
            return numbered(kind, count)
        if len(self.output_names) < count:
            raise DataError(f"data set {self.name!r}: must have {count} names of outputs, got {len(self.output_names)}")
        return self.output_names[:count]

    def _targets(self, items: Items, rows: Rows | None = None, inputs: Tensor | None = None) -> NDArray[Any]:
        every = np.arange(len(items)) if rows is None else rows
        return stacked(items.where, items.read(every.tolist(), inputs))

    def _read_part(self, items: Items, kind: Kind, count: int, shape: tuple[int, ...]) -> _Part:
        """All of a split that the user gave."""
        if items.input_shape != shape:
            raise DataError(
                f"{items.where}: inputs must have the shape {shape} as in training, got {items.input_shape}"
            )
        where = f"{items.where}: targets"
        targets = targets_of(where, self._targets(items), kind)
        check_targets(where, targets, kind, count)
        return _Part(items, np.arange(len(items)), targets)

    def _divided(
        self, whole: _Part, val: Items | None, test: Items | None, kind: Kind, count: int
    ) -> tuple[list[_Part], list[str]]:
        """Training, validation and, where it is carved, test; and what is to be said of it."""
        shape, seed, notes = whole.items.input_shape, self.request.seed, []
        rest, carved_test = whole, []
        if test is None:
            chosen, others = carve(strata(whole.targets, kind), share_of(len(whole.rows), TEST_SHARE), TEST_SEED)
            rest, carved_test = whole.take(others), [whole.take(chosen)]
            notes.append(f"there is no test split: {len(chosen)} training examples are set apart as one")
        else:
            if test.input_shape != shape:
                raise DataError(
                    f"{test.where}: inputs must have the shape {shape} as in training, got {test.input_shape}"
                )
            first = test.pair(0)[1][None]
            check_targets(f"{test.where}: targets", targets_of(f"{test.where}: targets", first, kind), kind, count)
        if val is not None:
            part = self._read_part(val, kind, count, shape)
        else:
            chosen, others = carve_val(strata(rest.targets, kind), seed)
            part, rest = rest.take(chosen), rest.take(others)
            notes.append(f"there is no validation split: {len(chosen)} training examples are set apart as one")
        kept = limit_rows(strata(rest.targets, kind), self.request.train_limit, seed)
        return [rest.take(kept), part, *carved_test], notes

    def _assembled(
        self,
        parts: list[_Part],
        test: Items | None,
        kind: Kind,
        names: tuple[str, ...],
        notes: list[str],
        changes: bool,
    ) -> DataSet:
        shape = parts[0].items.input_shape
        examples = sum(len(part.rows) for part in parts) + (0 if test is None else len(test))
        is_large = examples * math.prod(shape) * 4 > self.memory_bytes
        held = None if is_large or changes else self._held(parts[0], shape)
        scaling = self._scaling(parts[0], held, shape, kind)

        def split(part: _Part, lazily: bool, known: Split | None = None) -> AnySplit:
            if not lazily:
                return scaling.apply_(known or self._held(part, shape))
            targets = torch.from_numpy(part.targets)
            labels = scaling.apply_(Split(torch.zeros(1, shape[0]), targets.clone())).labels
            reader = ItemReader(part.items, shape)
            is_training = part is parts[0]
            return LazySplit(
                part.rows.tolist(), labels, reader, scaling.mean, scaling.std, changes=is_training and changes
            )

        def read_test() -> AnySplit:
            with seeded(self.request.seed):
                part = parts[2] if test is None else self._read_part(test, kind, len(names), shape)
            return split(part, is_large)

        return DataSet(
            self.name,
            split(parts[0], is_large or changes, held),
            split(parts[1], is_large),
            read_test,
            names,
            scaling.mean,
            scaling.std,
            kind,
            scaling.target_mean,
            scaling.target_std,
            tuple(notes),
        )

    def _held(self, part: _Part, shape: tuple[int, ...]) -> Split:
        inputs = torch.empty(len(part.rows), *shape)
        part.items.read(part.rows.tolist(), inputs)
        return Split(inputs, torch.from_numpy(part.targets))

    def _scaling(self, train: _Part, held: Split | None, shape: tuple[int, ...], kind: Kind) -> Scaling:
        """By all of training, or where it is not in memory by a sample."""
        if held is not None:
            inputs: Any = torch.split(held.images, 1024)
        else:
            rows = train.rows[np.unique(np.linspace(0, len(train.rows) - 1, SAMPLE_STATISTICS).astype(np.int64))]
            inputs = (train.items.pair(int(row))[0][None] for row in rows)
        return Scaling.of(inputs, shape[0], torch.from_numpy(train.targets), kind, self.request.normalise)


def _described(given: object) -> str:
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {len(given)}"
    return f"a {type(given).__name__}" if given is not None else "None"
