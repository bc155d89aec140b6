"""Freed memory returns to the system; out of memory is a LimitError."""

import subprocess
import sys

import pytest

# Blocks below the mmap threshold, with the topmost in use: the heap cannot shrink from its end.
_PROGRAM = """
import ctypes
from pathlib import Path
from sca_search.system.machine import trim_heap

def megabytes():
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS:")]
    return int(line.split()[1]) / 1024

library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
blocks = [library.malloc(ctypes.c_size_t(64 * 1024)) for _ in range(16 * freed)]
for block in blocks:
    ctypes.memset(ctypes.c_void_p(block), 1, 64 * 1024)
for block in blocks[:-1]:
    library.free(block)
before = megabytes()
if trims:
    trim_heap()
print(before - megabytes())
"""


def returned(freed: int, *, trims: bool) -> float:
    """Megabytes that return to the system, of those freed, in a new process."""
    program = f"trims, freed = {trims}, {freed}\n{_PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return float(done.stdout)


only_with_glibc = pytest.mark.skipif(sys.platform != "linux", reason="needs glibc")


@only_with_glibc
def test_freed_memory_returns_to_the_system() -> None:
    assert returned(100, trims=True) > 90
    assert abs(returned(100, trims=False)) < 5  # without trim_heap glibc holds it


@only_with_glibc
def test_a_small_amount_is_not_trimmed() -> None:
    assert abs(returned(12, trims=True)) < 2
