"""Versions of what figures depend on."""

import importlib.metadata
from functools import lru_cache

__version__ = "0.1.0"  # the one place: the wheel's metadata is made from it


def versions() -> dict[str, str]:
    """By package."""
    names = ("torch", "optuna", "pytorch-lightning", "numpy")
    return {"sca-search": __version__} | {name: _installed(name) for name in names}


@lru_cache
def _installed(name: str) -> str:
    """Found once: it parses a whole file, and a live page asks with every trial."""
    return importlib.metadata.version(name)
