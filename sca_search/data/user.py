"""A data set from the user's objects: a LightningDataModule, a tuple of torch data sets, or a function that makes one.

Data sets that fit are read into memory once. Larger ones, and a training set that gives different inputs when read
again (because it augments them), are read item by item in every epoch.
"""

import inspect
import math
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from sca_search.config.names import Kind
from sca_search.config.references import USER_ERRORS, describe_error, load_object
from sca_search.data.dataset import DataRequest, DataSet, assemble_parts, raw_input
from sca_search.data.splits import Split
from sca_search.data.targets import (
    Rows,
    Values,
    carve_test,
    carve_val,
    check_targets,
    count_outputs,
    kind_of,
    limit_rows,
    numbered,
    require_every_class,
    strata,
    targets_of,
)
from sca_search.data.user_items import ItemReader, Items, stacked
from sca_search.errors import CodeError, DataError
from sca_search.system.torchvision import patch_torchvision


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
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # a few built-in functions have no signature
        parameters = []
    for each in parameters:
        is_required = each.default is each.empty and each.kind not in {each.VAR_POSITIONAL, each.VAR_KEYWORD}
        if is_required and each.name not in values:
            raise DataError(
                f"data set {name!r}: the function must be callable without arguments, or with seed or data_dir, "
                f"it requires {each.name!r}"
            )
    try:
        return function(**{each.name: values[each.name] for each in parameters if each.name in values})
    except DataError:
        raise
    except USER_ERRORS as error:
        raise DataError(f"data set {name!r}: the function failed with {describe_error(error)}") from error


def from_objects(name: str, data: object, *, output_names: tuple[str, ...] | None = None, **settings: Any) -> DataSet:
    """The data set of an object, with the settings of a DataRequest.

    Without validation or test examples, they are taken from training.
    """
    return data_of_objects(name, data, DataRequest(**settings), output_names)


def data_of_objects(
    name: str, data: object, request: DataRequest, output_names: tuple[str, ...] | None = None
) -> DataSet:
    """As `from_objects`, with all settings of a request."""
    if isinstance(data, DataSet):
        return data
    with seeded(request.seed):
        train, *others = _items_of(name, data)
        assert train is not None
        try:
            return _Assembly(name, request, output_names).dataset(train, *others)
        except CodeError as error:  # reported before the study begins
            raise DataError(str(error)) from error


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the generators that the user's code may use, equally in every process, and restore ours afterwards."""
    with torch.random.fork_rng(devices=[]), ExitStack() as restored:
        restored.callback(random.setstate, random.getstate())
        restored.callback(np.random.set_state, np.random.get_state())
        torch.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        yield


def _items_of(name: str, data: object) -> list[Items | None]:
    """Training, validation and test; the last two are optional."""
    # A LightningDataModule is recognized by its methods: Lightning is not imported.
    if hasattr(data, "train_dataloader") and hasattr(data, "setup"):
        sources = _sources_of_module(name, data)
    elif isinstance(data, tuple | list) and 1 <= len(data) <= 3:
        sources = [*data, None, None][:3]
    else:
        raise DataError(
            f"data set {name!r} must be a LightningDataModule, or a tuple (train, validation or None, test or None) of "
            f"torch data sets with items (input, target), got {_described(data)}"
        )
    if sources[0] is None:
        raise DataError(f"data set {name!r}, training: there must be a training split, got None")
    places = [f"data set {name!r}, {split}" for split in ("training", "validation", "test")]
    return [source if source is None else _items(where, source) for where, source in zip(places, sources, strict=True)]


def _items(where: str, source: Any) -> Items:
    if not _has_items(source) or isinstance(source, str | dict | Tensor):
        raise DataError(
            f"{where}: must be a data set with a length and items (input, target), got {_described(source)}"
        )
    if not len(source):
        raise DataError(f"{where}: must not be empty, it has no item")
    return Items(where, source)


def _sources_of_module(name: str, module: Any) -> list[Any]:
    """The data sets of a data module's loaders."""
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

    @property
    def entries(self) -> list[int]:
        return list(self.rows.tolist())

    @property
    def reader(self) -> ItemReader:
        return ItemReader(self.items, self.items.input_shape)

    def take(self, rows: Rows) -> "_Part":
        return _Part(self.items, self.rows[rows], self.targets[rows], self.kind)

    def in_memory(self, shape: tuple[int, ...], /) -> Split:
        inputs = torch.empty(len(self.rows), *shape)
        self.items.read(self.entries, inputs)
        return Split(inputs, torch.from_numpy(self.targets.copy()))


@dataclass(frozen=True)
class _Assembly:
    """Makes a data set from the user's items."""

    name: str
    request: DataRequest
    output_names: tuple[str, ...] | None

    def dataset(self, train: Items, val: Items | None, test: Items | None) -> DataSet:
        changes = train.changes()
        values = sum(len(items) for items in (train, val, test) if items) * math.prod(train.input_shape)
        is_large = 4 * values > self.request.memory_bytes
        whole = self._whole(train, in_memory=not (is_large or changes))
        count = count_outputs(f"{train.where}: targets", whole.targets, whole.kind)
        parts, notes = self._divided(whole, val, test, count, is_large)
        names = numbered(whole.kind, count) if self.output_names is None else self.output_names
        if len(names) < count:
            raise DataError(f"data set {self.name!r}: must have {count} names of outputs, got {len(names)}")
        if whole.kind == "classes":
            require_every_class(f"data set {self.name!r}", parts[0].targets, names[:count])
        if changes:
            notes.append("training inputs change when they are read again (augmented): they are read in every epoch")

        def read_test() -> _Part:
            if test is None:
                return parts[2]
            with seeded(self.request.seed):
                return self._whole_like(parts[0], test, count, in_memory=not is_large)

        raw = raw_input(parts[0].items.input_shape, names[:count], whole.kind)
        kept = parts[0], parts[1]
        data = assemble_parts(self.name, raw, kept, read_test, self.request, changes=changes, values=values)
        return replace(data, notes=tuple(notes))

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
