"""The machine: its processor, the cores of this process, and the user's cache folder."""

import functools
import os
import platform
import re
from pathlib import Path


def cache_folder() -> Path:
    """The folder of files that can be downloaded or built again.

    A relative XDG_CACHE_HOME is ignored, as the standard requires.
    """
    named = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(named) if Path(named).is_absolute() else Path.home() / ".cache"
    return base / "sca-search"


def usable_cores() -> int:
    """Cores that this process may run on; a container may have fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The model name of the processor, if the system reports it."""
    names = _cpu_fields("model name")
    return names[0] if names else platform.processor() or platform.machine()


@functools.cache
def instruction_set() -> str:
    """What -march=native depends on: several machines may share a cache."""
    found = _cpu_fields("model name|flags|Features|CPU part|isa") or [platform.processor()]
    return " ".join([platform.machine(), *sorted(set(found))])


def _cpu_fields(names: str) -> list[str]:
    known = Path("/proc/cpuinfo")
    text = known.read_text(encoding="utf-8", errors="replace") if known.is_file() else ""
    return [value.strip() for value in re.findall(rf"^(?:{names})\s*:\s*(.+)$", text, re.MULTILINE)]
