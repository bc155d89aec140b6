"""Versions of the packages that results depend on."""

import importlib.metadata
from functools import lru_cache

__version__ = "0.1.0"  # the wheel's metadata is generated from it


def versions() -> dict[str, str]:
    """Version per package."""
    names = ("torch", "optuna", "pytorch-lightning", "numpy")
    return {"sca-search": __version__} | {name: _installed(name) for name in names}


@lru_cache
def _installed(name: str) -> str:
    """Cached: it parses a file, and a live dashboard needs it with every trial."""
    return importlib.metadata.version(name)
