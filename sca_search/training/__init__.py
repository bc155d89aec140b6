"""Training: the task, the dense warm start, candidates, losses, metrics and evaluation.

Public names are imported on first use: training imports Lightning, which takes seconds and which exports do not need.
"""

import importlib
from typing import Any

_MODULES = {
    "FitPlan": "fit",
    "Score": "evaluate",
    "StopRequestedError": "fit",
    "Task": "task",
    "WarmStart": "task",
    "train_candidate": "train",
    "train_dense": "train",
}

__all__ = ["FitPlan", "Score", "StopRequestedError", "Task", "WarmStart", "train_candidate", "train_dense"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
