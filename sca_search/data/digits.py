"""The embedded data set: scikit-learn's handwritten digits, 1797 images of 8x8 pixels.

It needs no download and trains in seconds: for first runs and tests.
"""

import numpy as np
from numpy.typing import NDArray

from sca_search.data.dataset import DataRequest, DataSet, assemble
from sca_search.data.npz import split_from_arrays
from sca_search.data.splits import Split
from sca_search.data.stratify import TEST_SEED, Rows, carve, carve_val, limit_rows

# A quarter for the test: with 1797 images in total, fewer could not distinguish candidates 2 points apart.
_TEST_COUNT = 450
_VAL_COUNT = 270


def load_digits(name: str, request: DataRequest) -> DataSet:
    """Test 450 (the same for every seed), validation 270, training 1077."""
    images, labels = _read()
    test, others = carve(labels, _TEST_COUNT, TEST_SEED)
    val, train = (others[rows] for rows in carve_val(labels[others], request.seed, count=_VAL_COUNT))
    train = train[limit_rows(labels[train], request.train_limit, request.seed)]

    def part(rows: Rows) -> Split:
        return split_from_arrays(images, labels, rows, image_size=request.image_size)

    classes = tuple(str(digit) for digit in range(10))
    return assemble(name, classes, part(train), part(val), lambda: part(test), normalise=request.normalise)


def _read() -> tuple[NDArray[np.float32], Rows]:
    # Imported here: other data sets do not need scikit-learn and its memory.
    from sklearn.datasets import load_digits as sklearn_digits  # noqa: PLC0415

    digits = sklearn_digits()
    # Pixels are counts of 0..16 inked dots in a 4x4 block.
    return (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)
