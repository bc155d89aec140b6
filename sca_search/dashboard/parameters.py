"""The searched values: how much each mattered, and the trials as lines across them."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from sca_search.dashboard.importance import importances
from sca_search.runs.trials import COLUMNS, FACTS, PREDICTED
from sca_search.study.halving import RUNG
from sca_search.study.space import is_logarithmic

# More axes than this cannot be read side by side, and more lines than this not told apart.
MOST_AXES = 7
MOST_LINES = 300
# Each trial is compared with all others; of a long study the newest are enough.
MOST_RANKED = 250


def searched(names: Sequence[str]) -> list[str]:
    """Those columns of a table of trials that were searched."""
    return [name for name in names if name not in {*COLUMNS, *FACTS} and not name.startswith((RUNG, PREDICTED))]


def importance(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[tuple[str, float]]:
    """The share of each searched value in a trial being good for its sparsity, largest first."""
    needed = ("planned_sparsity", "loss", *names)
    told = [{name: row[name] for name in needed if name in row} for row in rows if row["state"] == "complete"]
    return _importance(json.dumps(told[-MOST_RANKED:], default=float), tuple(names))


@lru_cache(maxsize=8)
def _importance(rows: str, names: tuple[str, ...]) -> list[tuple[str, float]]:
    """By the rows' text, which a dictionary could not stand for in a cache."""
    return list(importances(json.loads(rows), names).items())


def parallel(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], ranked: Sequence[tuple[str, float]]
) -> dict[str, Any]:
    """Axes from the most important value to the outcome, and a line a complete trial, the newest last."""
    varied = [name for name in names if len({row.get(name) for row in rows if row["state"] == "complete"} - {None}) > 1]
    order = [name for name, _ in ranked if name in varied] or varied
    axes = [*order[:MOST_AXES], "sparsity", "accuracy"]
    lines = [row for row in rows if row["state"] == "complete" and all(name in row for name in axes)][-MOST_LINES:]
    return {
        "axes": [_axis(name, [row[name] for row in lines]) for name in axes] if lines else [],
        "trials": [row["trial"] for row in lines],
        "lines": [[row[name] for name in axes] for row in lines],
    }


def _axis(name: str, values: Sequence[Any]) -> dict[str, Any]:
    if any(isinstance(value, str) for value in values):
        return {"name": name, "kind": "names", "names": sorted({str(value) for value in values})}
    is_log = name not in {"sparsity", "accuracy"} and is_logarithmic(name) and min(values) > 0
    return {"name": name, "kind": "log" if is_log else "even", "low": min(values), "high": max(values)}
