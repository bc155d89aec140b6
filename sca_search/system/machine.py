"""The machine: versions of the packages that results depend on, processor, cores of this process, cache folder;
returns freed memory, reports out of memory."""

import contextlib
import ctypes
import importlib.metadata
import math
import multiprocessing
import os
import platform
import re
import stat
import sys
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from sca_search.errors import LimitError
from sca_search.system.console import warn

__version__ = "0.1.0"  # the wheel's metadata is generated from it


@cache
def versions() -> dict[str, str]:
    """Version per package. Cached: it parses files, and a live dashboard needs it with every trial."""
    names = ("torch", "optuna", "pytorch-lightning", "numpy")
    return {"sca-search": __version__} | {name: importlib.metadata.version(name) for name in names}


def cache_folder() -> Path:
    """The folder of files that can be downloaded or built again.

    A relative XDG_CACHE_HOME is ignored, as the standard requires.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    if Path(named).is_absolute():
        return Path(named) / "sca-search"
    try:
        return Path.home() / ".cache" / "sca-search"
    except RuntimeError:  # no HOME, and a user without an account, as in some containers
        return _temporary_cache()


@cache
def _temporary_cache() -> Path:
    """A folder that only this user can read and write, kept for later commands."""
    folder = Path(tempfile.gettempdir()) / f"sca-search-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    # Files in it are loaded and run: a folder or a link that another user has put there is not used.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        folder = Path(tempfile.mkdtemp(prefix="sca-search-"))
    if multiprocessing.parent_process() is None:  # not again by each worker
        warn(f"this user has no home folder: files are cached in {folder}; XDG_CACHE_HOME sets another folder")
    return folder


def usable_cores() -> int:
    """Cores that this process may run on; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_bytes() -> float:
    """Memory that a process can still get without swapping; infinite if the system does not report it."""
    known = Path("/proc/meminfo")
    text = known.read_text(encoding="utf-8") if known.is_file() else ""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else math.inf


def processor() -> str:
    """The model name of the processor, if the system reports it."""
    names = _cpu_fields("model name")
    return names[0] if names else platform.processor() or platform.machine()


@cache
def instruction_set() -> str:
    """What -march=native depends on: several machines may share a cache."""
    found = _cpu_fields("model name|flags|Features|CPU part|isa") or [platform.processor()]
    return " ".join([platform.machine(), *sorted(set(found))])


def _cpu_fields(names: str) -> list[str]:
    known = Path("/proc/cpuinfo")
    text = known.read_text(encoding="utf-8", errors="replace") if known.is_file() else ""
    return [value.strip() for value in re.findall(rf"^(?:{names})\s*:\s*(.+)$", text, re.MULTILINE)]


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

    Training frees blocks that are too small for the larger batches of an evaluation, and vice versa. Without this, both
    add up, to a tenth of the memory of a study on MNIST.
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
