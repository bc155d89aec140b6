"""Stratified splits of labelled rows.

Everything is based on one permutation of which every prefix has the class proportions of the whole, so that a part is
simply its first n rows. scikit-learn's stratified splits do not have this property: there, a smaller limit of training
images is not a subset of a larger one.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import DataError

Rows = NDArray[np.int64]

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
