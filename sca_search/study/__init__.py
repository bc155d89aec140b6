"""The search: an Optuna study of candidates, its events, its workers and its results.

Public names are imported on first use: most of them import torch, which the terminal display does not need.
"""

import importlib
from typing import Any

_MODULES = {
    "Event": "events",
    "Finished": "session",
    "StudyContext": "setup",
    "StudyDisplay": "progress",
    "StudyListener": "events",
    "build_context": "setup",
    "join_study": "session",
    "make_task": "setup",
    "run_search": "session",
    "run_study": "session",
}

__all__ = [
    "Event",
    "Finished",
    "StudyContext",
    "StudyDisplay",
    "StudyListener",
    "build_context",
    "join_study",
    "make_task",
    "run_search",
    "run_study",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
