"""Memory of this process as the kernel counts it; by the standard library alone, for programs that must stay bare."""

import ctypes
import ctypes.util
import gc
from pathlib import Path


def resident_bytes() -> int:
    """What is in memory now, after what nobody refers to has been given back.

    The C library keeps freed memory for itself as long as it likes, and how much is chance: it is asked to return it,
    where it can be asked.
    """
    gc.collect()
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most that was in memory since the process began."""
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(kilobytes)
