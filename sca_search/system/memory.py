"""Memory that was freed, but that the C library keeps for later."""

import ctypes
import sys
from functools import cache
from typing import Any

# Less is not worth the time that it takes to get it again: studies of the digits keep 13 MB at most.
_WORTH_BYTES = 16 * 2**20


class _Heaps(ctypes.Structure):
    """What glibc tells of its heaps, all of them together (`struct mallinfo2`)."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "free_bytes", "keepcost"),
        )
    )
    free_bytes: int


def give_back() -> None:
    """Returns it to the system, where it is much and there is a way to.

    What training frees is in pieces that an evaluation's larger batches do not fit into, and the other way round:
    between the two they would add up, to a tenth of what a study on MNIST takes.
    """
    library = _c_library()
    if library is not None and library.mallinfo2().free_bytes >= _WORTH_BYTES:
        library.malloc_trim(0)


@cache
def _c_library() -> Any:
    """The one of this process, if it can tell what it keeps and return it: glibc since 2.33."""
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    if not (hasattr(library, "malloc_trim") and hasattr(library, "mallinfo2")):
        return None
    library.mallinfo2.restype = _Heaps
    return library
