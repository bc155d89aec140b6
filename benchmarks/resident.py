"""Memory of this process as counted by the kernel; standard library only, for programs that must stay minimal."""

import ctypes
import ctypes.util
import gc
from pathlib import Path


def resident_bytes() -> int:
    """Resident memory after garbage collection.

    The C library caches an unpredictable amount of freed memory, so `malloc_trim` is called where it exists.
    """
    gc.collect()
    library = ctypes.CDLL(ctypes.util.find_library("c"))
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)
    return _status("VmRSS")


def peak_bytes() -> int:
    """Peak resident memory since the process started."""
    return _status("VmHWM")


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (kilobytes,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(kilobytes)
