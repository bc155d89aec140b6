"""Memory that was freed, but that the C library keeps for later."""

import ctypes
import sys
import time
from functools import lru_cache

# 20 ms of a trial on the digits, which takes little more than a second.
_LEAST_SECONDS = 5.0


def give_back() -> None:
    """Returns it to the system, where there is a way to; not often, as what is needed again costs time.

    What training frees is in pieces that an evaluation's larger batches do not fit into, and the other way round:
    between the two they would add up, to a tenth of what a study on MNIST takes.
    """
    _give_back_in(int(time.monotonic() / _LEAST_SECONDS))


@lru_cache(maxsize=1)
def _give_back_in(_span: int) -> None:
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; others have no such thing
        if trim is not None:
            trim(0)
