"""What a data set's targets are, which decides the kind of task.

    integers (N,)            classes, 0 to the highest without a gap
    integers 0 and 1 (N, K)  multi-label: each of K labels is there or not
    floats (N,) or (N, K)    regression

Bools count as integers, and a second axis of length 1 as none where targets are integers.
"""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sca_search.data.stratify import Rows
from sca_search.errors import DataError

Kind = Literal["classes", "multi-label", "regression"]
Values = NDArray[Any]  # int64 (N,) of classes, float32 (N, K) of the others


def kind_of(where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Kind:
    """The kind of task that targets of this shape and type make; `where` they are is for the sentence if none."""
    is_flat = len(shape) == 1 or shape[1:] == (1,)
    if dtype.kind == "f" and len(shape) in {1, 2} and 0 not in shape[1:]:
        return "regression"
    if dtype.kind in "iub" and (is_flat or (len(shape) == 2 and shape[1] > 1)):
        return "classes" if is_flat else "multi-label"
    raise DataError(
        f"{where} must be integers (N,) for classes, 0 and 1 (N, K) for labels, or floats (N,) or (N, K) for "
        f"regression, got {dtype} of shape {shape}"
    )


def targets_of(where: str, given: NDArray[Any], kind: Kind) -> Values:
    """Targets as they are trained on, once their kind is that of training and their values are in order."""
    found = kind_of(where, given.shape, given.dtype)
    if found != kind:
        raise DataError(f"{where} must be of one kind with training's, {kind}, got {found}")
    if kind == "classes":
        return given.reshape(-1).astype(np.int64)
    if kind == "regression":
        values = _float32(given).reshape(len(given), -1)
        if not np.isfinite(values).all():
            raise DataError(f"{where} must be finite numbers, got NaN or infinity")
        return values
    odd = given[(given != 0) & (given != 1)]
    if odd.size:
        raise DataError(f"{where} must be 0 or 1 where an example has several labels, got {odd.flat[0]}")
    return _float32(given)


def _float32(given: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):  # a float64 may be finite and still not fit: that is infinite then
        return given.astype(np.float32)


def count_outputs(where: str, train: Values, kind: Kind) -> int:
    """How many outputs a network needs: classes, labels or values."""
    return count_classes(where, train) if kind == "classes" else int(train.shape[1])


def count_classes(where: str, labels: Rows) -> int:
    """The number of classes, once the training labels are 0..n-1 without a gap."""
    found = np.unique(labels)
    if found[0] < 0:
        raise DataError(f"{where} must not be negative, got {found[0]}")
    if len(found) < 2:
        raise DataError(f"{where} must have at least 2 classes, got 1")
    gaps = np.flatnonzero(found != np.arange(len(found)))
    if len(gaps):
        # A gap would give the network an output that no example ever asks for.
        raise DataError(f"{where} must use every class from 0 to the highest, got {found[-1]} but no {gaps[0]}")
    return len(found)


def check_targets(where: str, values: Values, kind: Kind, outputs: int) -> None:
    """Refuses targets that training does not know: another class, or another number of them."""
    if kind != "classes":
        if values.shape[1] != outputs:
            raise DataError(f"{where} must have {outputs} values an example as in training, got {values.shape[1]}")
        return
    low, high = values.min(), values.max()
    if low < 0 or high >= outputs:
        raise DataError(f"{where} must be 0..{outputs - 1} as in training, got {low if low < 0 else high}")


def strata(values: Values, kind: Kind) -> Rows:
    """What keeps its mixture when rows are carved: classes; of labels the rarest that an example has; else nothing."""
    if kind == "classes":
        mixture = values
    elif kind == "regression":
        mixture = np.zeros(len(values))
    else:
        rarest_first = values[:, np.argsort(values.sum(0), kind="stable")]
        mixture = np.where(rarest_first.any(1), rarest_first.argmax(1), values.shape[1])
    return np.asarray(mixture, dtype=np.int64)


def numbered(kind: Kind, count: int) -> tuple[str, ...]:
    """Names of outputs that have none."""
    return tuple(map(str, range(count))) if kind != "regression" else tuple(f"value {n}" for n in range(count))
