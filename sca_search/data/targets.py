"""The targets of a data set, which determine the kind of task.

    integers (N,)            classes, 0 to the highest without a gap
    integers 0 and 1 (N, K)  multi-label: each of K labels is present or not
    floats (N,) or (N, K)    regression

Bools count as integers, and a second axis of length 1 as none where targets are integers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.config.names import Kind
from sca_search.data.stratify import Rows
from sca_search.errors import DataError

Values = NDArray[Any]  # int64 (N,) for classes, else float32 (N, K)


def kind_of(where: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Kind:
    """The kind of task for targets of this shape and type; `where` is for the error message."""
    is_flat = len(shape) == 1 or shape[1:] == (1,)
    if dtype.kind == "f" and len(shape) in {1, 2} and 0 not in shape[1:]:
        return "regression"
    if dtype.kind in "iub" and (is_flat or (len(shape) == 2 and shape[1] > 1)):
        return "classes" if is_flat else "multi-label"
    raise DataError(
        f"{where} must be integers (N,) for classes, 0 and 1 (N, K) for labels, or floats (N,) or (N, K) for "
        f"regression, got {dtype} of shape {shape}"
    )


def require_kind(where: str, shape: tuple[int, ...], dtype: np.dtype[Any], kind: Kind) -> None:
    """DataError for targets of another kind than that of training."""
    found = kind_of(where, shape, dtype)
    if found != kind:
        raise DataError(f"{where} must be of the same kind as in training, {kind}, got {found}")


def targets_of(where: str, raw: NDArray[Any], kind: Kind) -> Values:
    """Targets as training uses them; DataError for another kind than that of training, or for invalid values."""
    require_kind(where, raw.shape, raw.dtype, kind)
    if kind == "classes":
        return raw.reshape(-1).astype(np.int64)
    if kind == "multi-label":
        invalid = raw[(raw != 0) & (raw != 1)]
        if invalid.size:
            raise DataError(f"{where} must be 0 or 1 where an example has several labels, got {invalid.flat[0]}")
    with np.errstate(over="ignore"):  # a finite float64 may overflow: rejected below
        values: Values = raw.astype(np.float32).reshape(len(raw), -1)
    if not np.isfinite(values).all():
        raise DataError(f"{where} must be finite numbers, got NaN or infinity")
    return values


def count_outputs(where: str, train: Values, kind: Kind) -> int:
    """The number of outputs that a network needs; DataError unless class labels are 0..n-1 without a gap."""
    if kind != "classes":
        return int(train.shape[1])
    found = np.unique(train)
    if found[0] < 0:
        raise DataError(f"{where} must not be negative, got {found[0]}")
    if len(found) < 2:
        raise DataError(f"{where} must have at least 2 classes, got 1")
    gaps = np.flatnonzero(found != np.arange(len(found)))
    if len(gaps):
        # A gap would give the network an output without any example.
        raise DataError(f"{where} must use every class from 0 to the highest, got {found[-1]} but no {gaps[0]}")
    return len(found)


def check_targets(where: str, values: Values, kind: Kind, outputs: int) -> None:
    """DataError for targets unlike those of training: another class, or another number of values."""
    if kind != "classes":
        if values.shape[1] != outputs:
            raise DataError(f"{where} must have {outputs} values per example as in training, got {values.shape[1]}")
        return
    low, high = values.min(), values.max()
    if low < 0 or high >= outputs:
        raise DataError(f"{where} must be 0..{outputs - 1} as in training, got {low if low < 0 else high}")


def strata(values: Values, kind: Kind) -> Rows:
    """The groups for stratified splits: classes; for multi-label an example's rarest label; for regression one."""
    if kind == "classes":
        groups = values
    elif kind == "regression":
        groups = np.zeros(len(values))
    else:
        rarest_first = values[:, np.argsort(values.sum(0), kind="stable")]
        groups = np.where(rarest_first.any(1), rarest_first.argmax(1), values.shape[1])
    return np.asarray(groups, dtype=np.int64)


def numbered(kind: Kind, count: int) -> tuple[str, ...]:
    """Default names of outputs."""
    return tuple(map(str, range(count))) if kind != "regression" else tuple(f"value {n}" for n in range(count))
