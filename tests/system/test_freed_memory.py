"""Memory that goes back to the system."""

import subprocess
import sys

import pytest

# Blocks too small to be mapped by themselves, the topmost of them live: the heap cannot shrink from its end.
_PROGRAM = """
import ctypes
from pathlib import Path
from sca_search.system.memory import give_back

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
if is_asked:
    give_back()
print(before - megabytes())
"""


def returned(freed: int, *, is_asked: bool) -> float:
    """Megabytes, of so many that were freed; in a process with a heap of its own."""
    program = f"is_asked, freed = {is_asked}, {freed}\n{_PROGRAM}"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    return float(done.stdout)


only_where_it_can = pytest.mark.skipif(sys.platform != "linux", reason="the C library of other systems has no way to")


@only_where_it_can
def test_what_was_freed_goes_back_to_the_system() -> None:
    assert returned(100, is_asked=True) > 90
    assert abs(returned(100, is_asked=False)) < 5  # by itself the library keeps it


@only_where_it_can
def test_a_little_is_kept_for_later() -> None:
    assert abs(returned(12, is_asked=True)) < 2
