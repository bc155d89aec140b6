"""A data set of Hugging Face's package `datasets`, as `save_to_disk` wrote it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from sca_search.config.references import describe_error
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.user import data_of_objects
from sca_search.errors import DataError, unknown_name

# The names that each split may have.
_SPLITS = {"train": ("train",), "validation": ("validation", "valid", "val", "dev"), "test": ("test",)}
_LISTS = ("List", "LargeList", "Sequence", "list")


def load_hf_disk(name: str, path: Path, request: DataRequest) -> DataSet:
    """The data set in a folder; its columns are found by their types, or named in the request."""
    if not path.is_dir():
        raise DataError(f"{path}: the data folder must exist, there is none")
    splits = _splits(path)
    features = splits["train"].features
    inputs, targets = _columns(path, features, request.columns)
    if request.image_size is not None and _kind(features[inputs]) != "Image":
        raise DataError(f"data set {name!r}: an image size is for images, column {inputs!r} holds none")
    made = [_Rows(splits[part], inputs, targets, request.image_size) if part in splits else None for part in _SPLITS]
    names = tuple(features[targets].names) if _kind(features[targets]) == "ClassLabel" else None
    return data_of_objects(name, made, request, names)


def _splits(path: Path) -> dict[str, Any]:
    try:
        import datasets  # noqa: PLC0415 - an extra, and slow to import
    except ImportError as error:
        raise DataError(
            f"{path}: to read it, the package datasets must be installed: pip install 'sca-search[hf]'"
        ) from error
    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:
        raise DataError(
            f"{path}: must be a data set that save_to_disk wrote, it failed with {describe_error(error)}"
        ) from error
    if not isinstance(found, dict):
        return {"train": found}
    splits = {part: found[each] for part, names in _SPLITS.items() for each in names if each in found}
    if "train" not in splits:
        raise DataError(f"{path}: must have a split train, got {', '.join(found)}")
    return splits


def _columns(path: Path, features: Any, named: tuple[str, ...]) -> tuple[str, ...]:
    """Inputs are the only column of images, else of arrays, else of lists; targets the only class label, else the only
    other column of numbers."""
    if named:
        if len(named) != 2:
            raise DataError(f"{path}: --data-columns must name two columns, inputs and targets, got {len(named)}")
        for each in named:
            if each not in features:
                raise DataError(f"{path}: {unknown_name('column', each, features)}")
        return named
    inputs = _only(path, "inputs", features, [_of(features, "Image"), _of(features, "Array"), _of(features, *_LISTS)])
    others = {key: value for key, value in features.items() if key != inputs}
    numbers = [
        key for key in _of(others, "Value") if str(others[key].dtype).startswith(("int", "uint", "float", "bool"))
    ]
    targets = _only(path, "targets", features, [_of(others, "ClassLabel"), numbers, _of(others, *_LISTS)])
    return inputs, targets


def _only(path: Path, what: str, features: Any, choices: list[list[str]]) -> str:
    found = next((columns for columns in choices if columns), [])
    if len(found) != 1:
        listed = ", ".join(f"{key} ({_kind(value)})" for key, value in features.items())
        raise DataError(f"{path}: name the columns with --data-columns INPUTS,TARGETS: {what} could be any of {listed}")
    return found[0]


def _kind(feature: Any) -> str:
    return type(feature).__name__


def _of(features: Any, *kinds: str) -> list[str]:
    return [key for key, value in features.items() if _kind(value).startswith(kinds)]


@dataclass(frozen=True, eq=False)
class _Rows:
    """The pairs of two columns."""

    rows: Any
    inputs: str
    targets: str
    image_size: int | None

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        item = self.rows[row]
        value, size = item[self.inputs], self.image_size
        if isinstance(value, list):
            value = np.asarray(value, dtype=np.float32)
        if isinstance(value, Image.Image):
            # Grayscale stays grayscale, all other modes become RGB.
            value = value if value.mode == "L" else value.convert("RGB")
            value = value if size is None else ImageOps.fit(value, (size, size), method=Image.Resampling.BILINEAR)
        return value, item[self.targets]
