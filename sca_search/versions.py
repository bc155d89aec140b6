"""Versions of what figures depend on."""

import importlib.metadata


def versions() -> dict[str, str]:
    """By package."""
    names = ("sca-search", "torch", "optuna", "pytorch-lightning", "numpy")
    return {name: importlib.metadata.version(name) for name in names}
