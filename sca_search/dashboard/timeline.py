"""A study over time: which worker trained what and when, and the area of the front over trials and epochs."""

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import pandas as pd

from sca_search.config.names import ACCURACY, is_fraction
from sca_search.runs.trials import area_reference, hypervolume, measured


def timeline(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """One bar per trial: its worker, its start in seconds after the first trial's, and its duration."""
    started = [(row, _seconds(row["started"])) for row in rows if "started" in row and "seconds" in row]
    first = min((start for _, start in started), default=0.0)
    return [
        {
            "trial": row["trial"],
            "state": row["state"],
            "worker": int(row.get("worker", 1)),
            "start": start - first,
            "seconds": row["seconds"],
        }
        for row, start in started
    ]


def growth(frame: pd.DataFrame, dense_metric: float | None, metric: str = ACCURACY) -> dict[str, Any]:
    """Area of the front after each finished trial, with the epochs until then.

    The reference point is the summary's. If no trial is better than that, it is the origin, or the worst trial for a
    metric that is not a fraction.
    """
    finished = _by_end(frame[frame["state"].isin(["complete", "paused", "failed"])])
    reference = area_reference(dense_metric or 0.0, metric)
    areas = _areas(finished, *reference)
    if not any(areas):
        worst = 0.0 if is_fraction(metric) else measured(finished)["metric"].min()
        reference = (0.0 if math.isnan(worst) else float(worst), 0.0)
        areas = _areas(finished, *reference)
    epochs = finished["epochs"].fillna(0).cumsum() if "epochs" in finished else pd.Series(dtype=float)
    return {
        "area": areas,
        "trial": [int(trial) for trial in finished["trial"]],
        "epochs": [int(count) for count in epochs],
        "reference": {"metric": reference[0], "sparsity": reference[1]},
    }


def _areas(finished: pd.DataFrame, accuracy: float, sparsity: float) -> list[float]:
    """The area only changes with a trial that no earlier one dominates, which is rare in a long study."""
    usable = set(measured(finished)["trial"])
    areas: list[float] = []
    front: tuple[tuple[float, float], ...] = ()
    columns = (finished[name] for name in ("trial", "metric", "sparsity"))
    for trial, accurate, sparse in zip(*columns, strict=True):
        if trial in usable and not any(a >= accurate and s >= sparse for a, s in front):
            others = [(a, s) for a, s in front if a > accurate or s > sparse]
            front = tuple(sorted([*others, (float(accurate), float(sparse))]))
        areas.append(_area(front, accuracy, sparsity))
    return areas


@lru_cache(maxsize=4096)
def _area(front: tuple[tuple[float, float], ...], accuracy: float, sparsity: float) -> float:
    """Cached: a live page computes all earlier fronts again with every trial."""
    return hypervolume(pd.DataFrame(front, columns=["metric", "sparsity"]), accuracy=accuracy, sparsity=sparsity)


def _by_end(frame: pd.DataFrame) -> pd.DataFrame:
    """Sorted by the time of their end, if it is known."""
    if "started" not in frame or frame[["started", "seconds"]].isna().any(axis=None):
        return frame
    ends = [_seconds(start) + float(took) for start, took in zip(frame["started"], frame["seconds"], strict=True)]
    return frame.assign(_end=ends).sort_values("_end", kind="stable")


def _seconds(started: str) -> float:
    return datetime.fromisoformat(str(started)).timestamp()
