"""The embedded data set: scikit-learn's handwritten digits, 1797 images of 8x8 pixels.

It needs no download and trains in seconds: for first runs and tests.
"""

import numpy as np

from sca_search.data.arrays import Arrays, data_of_arrays
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.targets import TEST_SEED, carve, carve_val

# A quarter for the test: with 1797 images in total, fewer could not distinguish candidates 2 points apart.
_TEST_COUNT = 450
_VAL_COUNT = 270


def load_digits(name: str, request: DataRequest) -> DataSet:
    """Test 450 (the same for every seed), validation 270, training 1077."""
    # Imported here: other data sets do not need scikit-learn and its memory.
    from sklearn.datasets import load_digits as sklearn_digits  # noqa: PLC0415

    digits = sklearn_digits()
    # Pixels are counts of 0..16 inked dots in a 4x4 block.
    images, labels = (digits.images / 16).astype(np.float32), digits.target.astype(np.int64)
    test, others = carve(labels, _TEST_COUNT, TEST_SEED)
    val, train = (others[rows] for rows in carve_val(labels[others], request.seed, count=_VAL_COUNT))
    first, second, last = (Arrays(name, images[rows], labels[rows]) for rows in (train, val, test))
    return data_of_arrays(name, tuple(map(str, range(10))), first, second, lambda: last, request)
