"""A user's map-style data set, read item by item: pairs of an input and a target, of any type."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from sca_search.config.references import USER_ERRORS, describe_error
from sca_search.errors import CodeError, DataError

# Items that are read twice: a random flip with probability 1/2 escapes detection once in 65,536.
_READ_TWICE = 16


@dataclass(frozen=True, eq=False)
class Items:
    """A data set whose items are pairs; `where` is for messages."""

    where: str
    source: Any

    def __len__(self) -> int:
        return len(self.source)

    def pair(self, row: int) -> tuple[Tensor, NDArray[Any]]:
        """An input as float32, channels first, and its target."""
        try:
            item = self.source[row]
        except USER_ERRORS as error:
            raise CodeError(f"{self.where}: reading item {row} failed with {describe_error(error)}") from error
        if not isinstance(item, tuple | list) or len(item) != 2:
            got = f"{_kind(item)} of length {len(item)}" if isinstance(item, tuple | list) else _kind(item)
            raise DataError(f"{self.where}: every item must be a pair (input, target), got a {got}")
        tensor, target = self._input(item[0]), _array(item[1])
        if target.dtype.kind not in "fiub":
            raise DataError(f"{self.where}: targets must be numbers, got a {_kind(item[1])}")
        return tensor, target

    def _input(self, value: Any) -> Tensor:
        values = _array(value)
        if isinstance(value, Image.Image):
            values = values[None] if values.ndim == 2 else values.transpose(2, 0, 1)
        if values.dtype.kind not in "fiub" or values.ndim < 1:
            raise DataError(
                f"{self.where}: inputs must be tensors, arrays or images of numbers with their channels first, "
                f"got a {_kind(value)}" + (f" of shape {values.shape}" if values.dtype.kind in "fiub" else "")
            )
        tensor = torch.from_numpy(np.array(values, dtype=np.float32))
        if values.dtype == np.uint8:
            tensor /= 255
        if not bool(torch.isfinite(tensor).all()):
            raise DataError(f"{self.where}: inputs must be finite numbers, got NaN or infinity")
        return tensor

    @property
    def input_shape(self) -> tuple[int, ...]:
        return tuple(self.pair(0)[0].shape)

    def changes(self) -> bool:
        """Whether items differ when they are read again, because their data set augments them."""
        rows = range(min(len(self), _READ_TWICE))
        return any(not torch.equal(self.pair(row)[0], self.pair(row)[0]) for row in rows)

    def read(self, rows: Sequence[int], inputs: Tensor | None = None) -> list[NDArray[Any]]:
        """The targets of some rows; their inputs are written to `inputs` where it is given."""
        shape, targets = self.input_shape, []
        for index, row in enumerate(rows):
            tensor, target = self.pair(row)
            if tuple(tensor.shape) != shape:
                raise DataError(
                    f"{self.where}: all inputs must have one shape, got {shape} and, item {row}, {tuple(tensor.shape)}"
                )
            if inputs is not None:
                inputs[index] = tensor
            targets.append(target)
        return targets


@dataclass(frozen=True, eq=False)
class ItemReader:
    """The reader of a lazy split over a user's data set: one row, read again each time."""

    items: Items
    image_shape: tuple[int, ...]

    def __call__(self, row: int, /) -> Tensor:
        tensor = self.items.pair(row)[0]
        if tuple(tensor.shape) != self.image_shape:
            raise CodeError(
                f"{self.items.where}: all inputs must have the shape {self.image_shape}, item {row} has "
                f"{tuple(tensor.shape)}"
            )
        return tensor


def stacked(where: str, targets: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Targets as one array; DataError where they differ in kind or shape."""
    types = {target.dtype.kind == "f" for target in targets}
    if len(types) > 1:
        raise DataError(f"{where}: targets must be all integers or all floats, got both")
    shapes = {target.shape for target in targets}
    if len(shapes) > 1:
        raise DataError(f"{where}: targets must have one shape, got {' and '.join(map(str, sorted(shapes)[:2]))}")
    return np.stack(targets)


def _array(value: Any) -> NDArray[Any]:
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    try:
        return np.asarray(value)
    except ValueError:  # lists of several lengths
        return np.asarray(None, dtype=object)


def _kind(value: object) -> str:
    return type(value).__name__
