"""A LightningDataModule as the data sets behind its loaders. It is known by its methods: Lightning is not imported."""

from typing import Any

import torch
from torch.utils.data import TensorDataset, default_collate

from sca_search.config.references import USER_ERRORS, describe_error
from sca_search.errors import DataError


def is_module(data: object) -> bool:
    return hasattr(data, "train_dataloader") and hasattr(data, "setup")


def splits_of_module(name: str, module: Any) -> list[Any]:
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
    except USER_ERRORS as error:
        raise DataError(f"data set {name!r}: its data module failed with {describe_error(error)}") from error


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
        got = described(batches[0]) if batches else "no batch"
        raise DataError(f"{method} must give batches (inputs, targets), got {got}")
    inputs, targets = zip(*batches, strict=True)
    return TensorDataset(torch.cat([*map(torch.as_tensor, inputs)]), torch.cat([*map(torch.as_tensor, targets)]))


def described(given: object) -> str:
    """What came, in two words or three."""
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {len(given)}"
    return f"a {type(given).__name__}" if given is not None else "None"
