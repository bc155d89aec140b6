"""Test vectors: a few images in a model file, with the logits that the model must produce.

Images are stored as bytes, q -> lowest + q · step with a step that is a power of two: a quarter of float32's size, and
exact, because test images are rounded to such a grid before the logits are computed.
"""

import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.graph.records import Floats, Graph, TestVectors
from sca_search.export.packed.container import Tensors, from_bytes, to_bytes
from sca_search.system.files import atomic_path

# Values of an image, and how many images are stored up to there. Four test a model better than one, but four large
# images would dominate a small file.
_COUNTS = ((2**10, 4), (2**15, 2))

_FORMAT = {"format": "sca-search/test-vectors", "version": "1"}


def vector_count(graph: Graph) -> int:
    """The number of test vectors of a model."""
    return next((count for most, count in _COUNTS if math.prod(graph.input_shape) <= most), 1)


def on_grid(images: Floats) -> Floats:
    """The images with each value at the nearest of 256 levels."""
    codes, low, step = _levels(images)
    return (low + np.clip(codes, 0, 255) * step).astype(np.float32)


def vector_tensors(vectors: TestVectors) -> Tensors:
    """The tensors of test vectors in a file; images that are not on a grid stay float32."""
    codes, low, step = _levels(vectors.images)
    exact = np.array_equal((low + codes * step).astype(np.float32), vectors.images)
    if not exact or codes.min() < 0 or codes.max() > 255:
        return {"test.images": vectors.images, "test.logits": vectors.logits}
    grid = np.array([low, step], dtype=np.float32)
    return {"test.images": codes.astype(np.uint8), "test.grid": grid, "test.logits": vectors.logits}


def take_vectors(tensors: Tensors) -> TestVectors:
    """Removes the tensors of test vectors and returns their content; whether they fit a model is not checked."""
    nothing = np.zeros(0, dtype=np.float32)
    images, logits = tensors.pop("test.images", nothing), tensors.pop("test.logits", nothing)
    if images.dtype == np.uint8:
        grid = tensors.pop("test.grid", nothing)
        if grid.dtype != np.float32 or grid.shape != (2,) or not np.isfinite(grid).all():
            raise ExportError("the test images must have a grid of two numbers, the lowest level and the step")
        low, step = grid.astype(np.float64)
        with np.errstate(over="ignore"):  # infinite, which `check_vectors` rejects
            images = (low + images * step).astype(np.float32)
    return TestVectors(np.array(images), np.array(logits))


def check_vectors(graph: Graph, vectors: TestVectors) -> None:
    """Raises ExportError unless there are some, of the model's shapes."""
    count = len(vectors.images) if vectors.images.ndim else 0
    for what, values, shape in (
        ("images", vectors.images, (count, *graph.input_shape)),
        ("logits", vectors.logits, (count, len(graph.class_names))),
    ):
        if values.dtype != np.float32 or values.shape != shape or not np.isfinite(values).all():
            raise ExportError(f"the test {what} must be finite float32 values of shape {shape}")
    if count < 1:
        raise ExportError("a model must have test vectors")


def write_vectors(path: Path, vectors: TestVectors) -> None:
    """A separate file, for formats that cannot contain test vectors."""
    content = to_bytes(vector_tensors(vectors), _FORMAT)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def read_vectors(path: Path) -> TestVectors:
    """What `write_vectors` wrote."""
    try:
        tensors, metadata = from_bytes(path.read_bytes())
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror or error}") from error
    except ExportError as error:
        raise ExportError(f"{path} cannot be trusted: {error}") from error
    if metadata != _FORMAT:
        raise ExportError(f"{path} holds no test vectors of version {_FORMAT['version']}")
    return take_vectors(tensors)


def _levels(images: Floats) -> tuple[NDArray[np.float64], float, float]:
    """The nearest level of each value, the lowest level, and the step: the smallest power of two with which 256 levels
    span the images."""
    lowest, highest = float(images.min()), float(images.max())
    spread = highest - lowest
    step = 2.0 ** math.ceil(math.log2(spread / 255)) if spread > 0 else 1.0
    low = math.floor(lowest / step) * step
    return np.rint((images.astype(np.float64) - low) / step), low, step
