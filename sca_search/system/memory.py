"""Returns freed memory to the system, and reports out of memory as LimitError."""

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any

from sca_search.errors import LimitError

# Torch's messages on CPU and on accelerators; the last is for a size beyond any machine's.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "Storage size calculation overflowed")
# Less is not worth the time to allocate it again: studies of the digits hold 13 MB at most.
_MIN_FREE_BYTES = 16 * 2**20


class _Heaps(ctypes.Structure):
    """Totals of all glibc heaps (`struct mallinfo2`)."""

    _fields_ = (("before", 8 * ctypes.c_size_t), ("free_bytes", ctypes.c_size_t), ("keepcost", ctypes.c_size_t))
    free_bytes: int


def trim_heap() -> None:
    """Return freed memory to the system if it is much and the C library supports it.

    Training frees blocks that the larger batches of an evaluation do not fit into, and the other way round. Without
    this both add up, to a tenth of the memory of a study on MNIST.
    """
    library = _c_library()
    if library is not None and library.mallinfo2().free_bytes >= _MIN_FREE_BYTES:
        library.malloc_trim(0)


@cache
def _c_library() -> Any:
    """The C library of this process if it has malloc_trim and mallinfo2: glibc since 2.33."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    if not (hasattr(library, "malloc_trim") and hasattr(library, "mallinfo2")):
        return None
    library.mallinfo2.restype = _Heaps
    return library


@contextlib.contextmanager
def oom_as_limit_error() -> Iterator[None]:
    """Raise LimitError if the block runs out of memory."""
    try:
        yield
    except MemoryError as error:
        raise LimitError("ran out of memory") from error
    except RuntimeError as error:
        if not any(message in str(error) for message in _OUT_OF_MEMORY):
            raise
        raise LimitError(f"ran out of memory: {str(error).splitlines()[0]}") from error
