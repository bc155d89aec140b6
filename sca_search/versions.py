"""Versions of what figures depend on."""

import importlib.metadata

__version__ = "0.1.0"  # the one place: the wheel's metadata is made from it


def versions() -> dict[str, str]:
    """By package."""
    names = ("torch", "optuna", "pytorch-lightning", "numpy")
    return {"sca-search": __version__} | {name: importlib.metadata.version(name) for name in names}
