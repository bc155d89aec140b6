"""The search: an Optuna study of candidates, its events, its workers and its results.

Public names are imported on first use: most of them import torch, which the terminal display does not need.
"""

import importlib
from typing import Any

_MODULES = {
    "events": ("Event", "StudyListener"),
    "progress": ("StudyDisplay",),
    "session": ("Finished", "join_study", "run_search", "run_study"),
    "setup": ("StudyContext", "build_context", "make_task"),
}

__all__ = [name for names in _MODULES.values() for name in names]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
