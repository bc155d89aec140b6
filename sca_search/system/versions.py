"""Versions of the packages that results depend on."""

import importlib.metadata
from functools import cache

__version__ = "0.1.0"  # the wheel's metadata is generated from it


@cache
def versions() -> dict[str, str]:
    """Version per package. Cached: it parses files, and a live dashboard needs it with every trial."""
    names = ("torch", "optuna", "pytorch-lightning", "numpy")
    return {"sca-search": __version__} | {name: importlib.metadata.version(name) for name in names}
