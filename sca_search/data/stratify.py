"""Cuts labelled rows into parts that keep the mixture of classes.

Everything rests on one permutation in which every beginning has the mixture of the whole, so that a
part is simply its first n rows.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import DataError

Rows = NDArray[np.int64]

# The test part is cut with this constant and never with the study's seed: studies with different
# seeds are then compared on the same test images, and none has trained on another's.
TEST_SEED = 20_240_229

# A tenth for validation, but no more than 5000 images: beyond that the search pays for precision
# (5000 images know an accuracy of 90 % to ±0.4 points) that its choice between candidates never uses.
VAL_SHARE = 0.1
VAL_MOST = 5000

# Separate streams for separate cuts of one seed.
_VAL_STREAM, _LIMIT_STREAM = 0, 1


def stratified_order(labels: Rows, entropy: int | Sequence[int]) -> Rows:
    """A random permutation whose every beginning has the class mixture of the whole.

    The k-th row of a class of n (in random order) is put at (k + 1/2)/n of the way: a beginning of
    share t holds t·n of each class to within half a row. Largest remainders would be nearer to the
    quota for large classes, but can take the only row of a rare one; here, a beginning shorter than
    half never does, up to the rounding of the total.
    """
    generator = np.random.default_rng(entropy)
    shuffled = generator.permutation(len(labels))
    place = np.empty(len(labels))
    for label in np.unique(labels):
        rows = shuffled[labels[shuffled] == label]
        place[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
    # A stable sort of the shuffled rows: ties between classes stay in random order.
    return shuffled[np.argsort(place[shuffled], kind="stable")]


def carve(labels: Rows, count: int, entropy: int | Sequence[int]) -> tuple[Rows, Rows]:
    """`count` stratified rows and the others, each ascending."""
    order = stratified_order(labels, entropy)
    return np.sort(order[:count]), np.sort(order[count:])


def carve_val(labels: Rows, seed: int, *, count: int | None = None) -> tuple[Rows, Rows]:
    """Validation rows and training rows."""
    if count is None:
        count = min(VAL_MOST, share_of(len(labels), VAL_SHARE))
    return carve(labels, count, (seed, _VAL_STREAM))


def limit_rows(labels: Rows, limit: int | None, seed: int) -> Rows:
    """At most `limit` stratified rows, ascending; a smaller limit gives a subset of a larger one."""
    if limit is None or limit >= len(labels):
        return np.arange(len(labels))
    return carve(labels, limit, (seed, _LIMIT_STREAM))[0]


def share_of(count: int, share: float) -> int:
    """The share in whole rows, at least one."""
    return max(1, round(count * share))


def require_every_class(where: str, labels: Rows, classes: Sequence[str]) -> None:
    """Refuse a training part from which carving took the last image of a class."""
    counts = np.bincount(labels, minlength=len(classes))
    for name, count in zip(classes, counts, strict=True):
        if count == 0:
            raise DataError(
                f"{where}: every class must keep an example for training after validation and test "
                f"examples are set apart, class {name!r} has too few"
            )
