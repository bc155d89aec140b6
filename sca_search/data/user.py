"""A data set from the user's objects: a LightningDataModule, a tuple of torch data sets, or a function that makes one.

Data sets that fit are read into memory once. Larger ones, and a training set that gives different inputs when read
again (because it augments them), are read item by item in every epoch.
"""

import inspect
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from sca_search.config.names import Kind
from sca_search.config.references import USER_ERRORS, describe_error, load_object
from sca_search.data.dataset import AnySplit, DataRequest, DataSet, measured_input, normalise_split_, raw_input
from sca_search.data.image_folder import MEMORY_BYTES, SAMPLE_STATISTICS
from sca_search.data.input_spec import InputSpec
from sca_search.data.splits import LazySplit, Split
from sca_search.data.stratify import Rows, carve_test, carve_val, limit_rows, require_every_class
from sca_search.data.targets import Values, check_targets, count_outputs, kind_of, numbered, strata, targets_of
from sca_search.data.user_items import ItemReader, Items, stacked
from sca_search.errors import CodeError, DataError
from sca_search.system.torchvision import patch_torchvision

_MUST_BE = (
    "a LightningDataModule, or a tuple (train, validation or None, test or None) of torch data sets with items "
    "(input, target)"
)
_SPLITS = ("training", "validation", "test")
_ARGUMENTS = ("seed", "data_dir")


def load_function(name: str, request: DataRequest) -> DataSet:
    """The data set of `package.module:function` or `file.py:function`, which may take `seed` and `data_dir`."""
    if request.image_size is not None:
        raise DataError(f"data set {name!r}: an image size is for built-in image readers, the function decides here")
    patch_torchvision()  # the user's file may import it, directly or through Lightning
    with seeded(request.seed):
        made = _called(name, load_object(name, "the data", DataError), request)
    return data_of_objects(name, made, request)


def _called(name: str, function: object, request: DataRequest) -> object:
    if not callable(function):
        return function  # the data itself, created when its module was imported
    values = {"seed": request.seed, "data_dir": request.data_dir}
    try:
        return function(**{key: values[key] for key in _accepted(name, function)})
    except DataError:
        raise
    except USER_ERRORS as error:
        raise DataError(f"data set {name!r}: the function failed with {describe_error(error)}") from error


def _accepted(name: str, function: Callable[..., Any]) -> list[str]:
    """The arguments that a function accepts; DataError where it requires others."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a few built-in functions have no signature
        return []
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for each in parameters:
        if each.default is each.empty and each.kind not in open_ended and each.name not in _ARGUMENTS:
            raise DataError(
                f"data set {name!r}: the function must be callable without arguments, or with seed or data_dir, "
                f"it requires {each.name!r}"
            )
    return [each.name for each in parameters if each.name in _ARGUMENTS]


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
    """The data set of an object; without validation or test examples, they are taken from training."""
    request = DataRequest(seed, train_limit=train_limit, normalise=normalise)
    return data_of_objects(name, data, request, output_names, memory_bytes)


def data_of_objects(
    name: str,
    data: object,
    request: DataRequest,
    output_names: tuple[str, ...] | None = None,
    memory_bytes: int = MEMORY_BYTES,
) -> DataSet:
    """As `from_objects`, with all settings of a request."""
    if isinstance(data, DataSet):
        return data
    with seeded(request.seed):
        train, *others = _items_of(name, data)
        assert train is not None
        try:
            return _Assembly(name, request, memory_bytes, output_names).dataset(train, *others)
        except CodeError as error:  # here it ends the study before it begins
            raise DataError(str(error)) from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators that the user's code may use, equally in every process, and restore ours afterwards."""
    before = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])


def _items_of(name: str, data: object) -> list[Items | None]:
    """Training, validation and test; the last two are optional."""
    # A LightningDataModule is recognized by its methods: Lightning is not imported.
    if hasattr(data, "train_dataloader") and hasattr(data, "setup"):
        sources = _sources_of_module(name, data)
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
    if not _has_items(source) or isinstance(source, str | dict | Tensor):
        raise DataError(
            f"{where}: must be a data set with a length and items (input, target), got {_described(source)}"
        )
    if not len(source):
        raise DataError(f"{where}: must not be empty, it has no item")
    return Items(where, source)


def _sources_of_module(name: str, module: Any) -> list[Any]:
    """The data sets behind a data module's loaders."""
    try:
        if hasattr(module, "prepare_data"):
            module.prepare_data()
        module.setup("fit")
        found = [_source_of_loader(module, "train_dataloader"), _source_of_loader(module, "val_dataloader")]
        module.setup("test")
        return [*found, _source_of_loader(module, "test_dataloader")]
    except DataError:
        raise
    except USER_ERRORS as error:
        raise DataError(f"data set {name!r}: its data module failed with {describe_error(error)}") from error


def _source_of_loader(module: Any, method: str) -> Any:
    make = getattr(type(module), method, None)
    # Lightning's own method, inherited where the user wrote none, raises.
    if make is None or str(make.__module__).partition(".")[0] in {"pytorch_lightning", "lightning"}:
        return None
    loader = getattr(module, method)()
    if loader is None or (isinstance(loader, list) and not loader):
        return None
    source = getattr(loader, "dataset", None)
    if _has_items(source) and getattr(loader, "collate_fn", default_collate) is default_collate:
        return source
    return _all_batches(method, loader)


def _all_batches(method: str, loader: Any) -> TensorDataset:
    """All batches of a loader without a map-style data set."""
    batches = list(loader)
    if not batches or not all(isinstance(each, tuple | list) and len(each) == 2 for each in batches):
        got = _described(batches[0]) if batches else "no batch"
        raise DataError(f"{method} must give batches (inputs, targets), got {got}")
    inputs, targets = zip(*batches, strict=True)
    return TensorDataset(torch.cat([*map(torch.as_tensor, inputs)]), torch.cat([*map(torch.as_tensor, targets)]))


def _has_items(source: object) -> bool:
    return hasattr(source, "__getitem__") and hasattr(source, "__len__")


def _described(value: object) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__}" if value is not None else "None"


@dataclass(frozen=True)
class _Part:
    """Rows of a data set with their targets as training uses them."""

    items: Items
    rows: Rows
    targets: Values
    kind: Kind

    @property
    def strata(self) -> Rows:
        return strata(self.targets, self.kind)

    def take(self, rows: Rows) -> "_Part":
        return _Part(self.items, self.rows[rows], self.targets[rows], self.kind)

    def read(self, shape: tuple[int, ...]) -> Split:
        """Its inputs, of this shape each, and targets in memory."""
        inputs = torch.empty(len(self.rows), *shape)
        self.items.read(self.rows.tolist(), inputs)
        return Split(inputs, torch.from_numpy(self.targets.copy()))


@dataclass(frozen=True)
class _Reading:
    """Why splits may be read lazily: all are too large together, or training inputs change."""

    is_large: bool
    changes: bool


@dataclass(frozen=True)
class _Assembly:
    """Makes a data set from the user's items."""

    name: str
    request: DataRequest
    memory_bytes: int
    output_names: tuple[str, ...] | None

    def dataset(self, train: Items, val: Items | None, test: Items | None) -> DataSet:
        changes = train.changes()
        values = sum(len(items) for items in (train, val, test) if items) * math.prod(train.input_shape)
        is_large = 4 * values > self.memory_bytes
        whole = self._whole(train, in_memory=not (is_large or changes))
        count = count_outputs(f"{train.where}: targets", whole.targets, whole.kind)
        parts, notes = self._divided(whole, val, test, count, is_large)
        names = self._names(whole.kind, count)
        if whole.kind == "classes":
            require_every_class(f"data set {self.name!r}", parts[0].targets, names)
        if changes:
            notes.append("training inputs change when they are read again (augmented): they are read in every epoch")
        data = self._assembled(parts, test, names, _Reading(is_large, changes))
        return replace(data, notes=tuple(notes))

    def _names(self, kind: Kind, count: int) -> tuple[str, ...]:
        if self.output_names is None:
            return numbered(kind, count)
        if len(self.output_names) < count:
            raise DataError(f"data set {self.name!r}: must have {count} names of outputs, got {len(self.output_names)}")
        return self.output_names[:count]

    def _whole(self, items: Items, kind: Kind | None = None, *, in_memory: bool) -> _Part:
        """A whole split, read once; with `in_memory` its inputs stay in memory."""
        inputs = torch.empty(len(items), *items.input_shape) if in_memory else None
        raw = stacked(items.where, items.read(range(len(items)), inputs))
        where = f"{items.where}: targets"
        kind = kind or kind_of(where, raw.shape, raw.dtype)
        targets = targets_of(where, raw, kind)
        if inputs is not None:
            items = Items(items.where, TensorDataset(inputs, torch.from_numpy(targets)))
        return _Part(items, np.arange(len(items)), targets, kind)

    def _whole_like(self, train: _Part, items: Items, count: int, *, in_memory: bool) -> _Part:
        """Validation or test; DataError unless it has the shape and kind of training."""
        expected = train.items.input_shape
        if items.input_shape != expected:
            raise DataError(
                f"{items.where}: inputs must have the shape {expected} as in training, got {items.input_shape}"
            )
        part = self._whole(items, train.kind, in_memory=in_memory)
        check_targets(f"{items.where}: targets", part.targets, part.kind, count)
        return part

    def _divided(
        self, whole: _Part, val: Items | None, test: Items | None, count: int, is_large: bool
    ) -> tuple[list[_Part], list[str]]:
        """Training, validation and, where the user has none, test; and notes about them."""
        notes, rest, carved_test = [], whole, []
        if test is None:
            rows, others = carve_test(rest.strata)
            rest, carved_test = whole.take(others), [whole.take(rows)]
            notes.append(f"there is no test split: {len(rows)} training examples are set apart as one")
        elif self.request.check_test:
            # The test split is read at the very end, but a broken item must be reported before all training.
            with seeded(self.request.seed):
                self._whole_like(whole, test, count, in_memory=False)
        if val is not None:
            part = self._whole_like(whole, val, count, in_memory=not is_large)
        else:
            rows, others = carve_val(rest.strata, self.request.seed)
            part, rest = rest.take(rows), rest.take(others)
            notes.append(f"there is no validation split: {len(rows)} training examples are set apart as one")
        limited = limit_rows(rest.strata, self.request.train_limit, self.request.seed)
        return [rest.take(limited), part, *carved_test], notes

    def _assembled(self, parts: list[_Part], test: Items | None, names: tuple[str, ...], reading: _Reading) -> DataSet:
        train = parts[0]
        shape = train.items.input_shape
        in_memory = None if reading.is_large or reading.changes else train.read(shape)
        spec = self._input_spec(train, in_memory, names)

        def split(part: _Part) -> AnySplit:
            if part is train and in_memory is not None:
                return normalise_split_(in_memory, spec)
            if not reading.is_large and part is not train:
                return normalise_split_(part.read(shape), spec)
            targets = torch.from_numpy(part.targets.copy())
            labels = normalise_split_(Split(torch.zeros(1, shape[0]), targets), spec).labels
            reader, changes = ItemReader(part.items, shape), reading.changes and part is train
            return LazySplit(part.rows.tolist(), labels, reader, spec.mean, spec.std, changes=changes)

        def read_test() -> AnySplit:
            if test is None:
                return split(parts[2])
            with seeded(self.request.seed):
                return split(self._whole_like(train, test, len(names), in_memory=not reading.is_large))

        return DataSet(self.name, split(train), split(parts[1]), read_test, spec)

    def _input_spec(self, train: _Part, in_memory: Split | None, names: tuple[str, ...]) -> InputSpec:
        """With the statistics of all of training, or of a sample where it is not in memory."""
        shape = train.items.input_shape
        if not self.request.normalise:
            return raw_input(shape, names, train.kind)
        if in_memory is not None:
            inputs: Any = torch.split(in_memory.images, 1024)
        else:
            rows = train.rows[np.unique(np.linspace(0, len(train.rows) - 1, SAMPLE_STATISTICS).astype(np.int64))]
            inputs = (train.items.pair(int(row))[0][None] for row in rows)
        return measured_input(inputs, shape, names, torch.from_numpy(train.targets), train.kind)
