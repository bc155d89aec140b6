"""The targets of a data set, which determine the kind of task, and stratified splits.

    integers (N,)            classes, 0 to the highest without a gap
    integers 0 and 1 (N, K)  multi-label: each of K labels is present or not
    floats (N,) or (N, K)    regression

Bools count as integers, and a second axis of length 1 as none where targets are integers.

Splits are based on one permutation of which every prefix has the class proportions of the whole, so that a part is
simply its first n rows. scikit-learn's stratified splits do not have this property: there, a smaller limit of training
images is not a subset of a larger one.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.config.names import Kind
from sca_search.errors import DataError

Values = NDArray[Any]  # int64 (N,) for classes, else float32 (N, K)
Rows = NDArray[np.int64]


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


# The test split is drawn with this constant and never with the study's seed: studies with different
# seeds are compared on the same test images, and none has trained on the test images of another.
TEST_SEED = 20_240_229

# A tenth for validation, but no more than 5000 images: they measure an accuracy of 90 % to ±0.4 points, and the
# search cannot use more precision to choose between candidates.
_VAL_FRACTION = 0.1
_VAL_MOST = 5000
# The test split where a source has none.
TEST_FRACTION = 0.2

# Separate random streams for the splits of one seed.
_VAL_STREAM, _LIMIT_STREAM = 0, 1


def stratified_order(labels: Rows, entropy: int | Sequence[int]) -> Rows:
    """A random permutation of which every prefix has the class proportions of the whole.

    The k-th row of a class of n (in random order) is placed at position (k + 1/2)/n of 1: a prefix of
    fraction t contains t·n of each class to within half a row. Largest remainders would be closer to the
    quota for large classes, but can take the only row of a rare one; here, a prefix shorter than
    half never does, up to the rounding of the total.
    """
    generator = np.random.default_rng(entropy)
    shuffled = generator.permutation(len(labels))
    position = np.empty(len(labels))
    for label in np.unique(labels):
        rows = shuffled[labels[shuffled] == label]
        position[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    # A stable sort of the shuffled rows: ties between classes stay in random order.
    return shuffled[np.argsort(position[shuffled], kind="stable")]


def carve(labels: Rows, count: int, entropy: int | Sequence[int]) -> tuple[Rows, Rows]:
    """`count` stratified rows and the others, each ascending."""
    order = stratified_order(labels, entropy)
    return np.sort(order[:count]), np.sort(order[count:])


def carve_val(labels: Rows, seed: int, *, count: int | None = None) -> tuple[Rows, Rows]:
    """Validation rows and training rows."""
    if count is None:
        count = min(_VAL_MOST, max(1, round(len(labels) * _VAL_FRACTION)))
    return carve(labels, count, (seed, _VAL_STREAM))


def carve_test(labels: Rows) -> tuple[Rows, Rows]:
    """Test rows, the same for every seed, and the others."""
    return carve(labels, max(1, round(len(labels) * TEST_FRACTION)), TEST_SEED)


def limit_rows(labels: Rows, limit: int | None, seed: int) -> Rows:
    """At most `limit` stratified rows, ascending; a smaller limit gives a subset of a larger one."""
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    return carve(labels, limit, (seed, _LIMIT_STREAM))[0]


def require_every_class(where: str, labels: Rows, classes: Sequence[str]) -> None:
    """DataError where validation and test took the last training example of a class."""
    counts = np.bincount(labels, minlength=len(classes))
    for name, count in zip(classes, counts, strict=True):
        if count == 0:
            raise DataError(
                f"{where}: every class must keep an example for training after validation and test "
                f"examples are set apart, class {name!r} has too few"
            )
