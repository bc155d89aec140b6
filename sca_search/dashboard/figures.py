"""Values of the page's smaller figures: timeline and front area, the prior, the searched parameters, the paper.

The paper's results with the same network on the same data are a reference in the figure of a study: test accuracies
after at least 200 epochs, while those of a study are on its validation split.
"""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from sca_search.config.names import ACCURACY, is_fraction
from sca_search.paper.figures import GRIDS, LEADING, SCA, figures_of
from sca_search.runs.trials import PARAM, area_reference, hypervolume, measured
from sca_search.study.halving import relative_losses
from sca_search.study.space import is_logarithmic


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


@dataclass(frozen=True)
class PaperFigures:
    """Points (sparsity, accuracy) where the paper varied α, and its headline accuracy; fractions."""

    points: tuple[tuple[float, float], ...]
    accuracy: float


def paper_figures(data: str, model: str) -> PaperFigures | None:
    """Results for the same network and data; others are not comparable."""

    def results(tables: tuple[str, ...], metric: str) -> list[float]:
        """Those of SCA in the order of the tables: per α and λ a sparsity, then its accuracy."""
        figures = (figure for table in tables for figure in figures_of(table))
        key = (data, model, SCA, metric)
        return [each.value / 100 for each in figures if (each.dataset, each.network, each.method, each.metric) == key]

    led = results(LEADING, "top1")
    if not led:
        return None
    return PaperFigures(tuple(zip(results(GRIDS, "sparsity"), results(GRIDS, "top1"), strict=True)), led[0])


def prior_view(
    closed_form: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]], *, is_planned: bool = True
) -> dict[str, Any]:
    """The values of the page. `records` are those of candidates by trial; some studies do not plan a sparsity."""
    of_trials = (layer for record in records.values() for layer in record["layers"])
    layers = list(dict.fromkeys([*closed_form.get("alpha", {}), *of_trials]))
    achieved = {layer: _achieved(layer, records) if is_planned else [] for layer in layers}
    drifts = [abs(reached - planned) for pairs in achieved.values() for planned, reached in pairs]
    return {
        "layers": layers,
        "closed": dict(closed_form) if closed_form else None,
        "ended": {layer: _ended(layer, records) for layer in layers},
        "achieved": achieved,
        "drift": sum(drifts) / len(drifts) if drifts else None,
    }


def _achieved(layer: str, records: Mapping[int, Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Planned sparsity, and the one achieved by rounding alone before the exact step."""
    return [
        (record["candidate"]["allocation"].get(layer, record["candidate"]["sparsity"]), record["achieved"][layer])
        for record in records.values()
        if layer in record.get("achieved", {}) and "candidate" in record
    ]


def _ended(layer: str, records: Mapping[int, Mapping[str, Any]]) -> list[tuple[int, float, float]]:
    """Trial, achieved sparsity and final α."""
    return [
        (trial, record["achieved"][layer], record["alphas"][layer])
        for trial, record in records.items()
        if layer in record.get("achieved", {}) and layer in record.get("alphas", {})
    ]


# More axes cannot be read side by side, and more lines cannot be distinguished.
MAX_AXES = 7
MAX_LINES = 300
# Each trial is compared with all others; in a long study the newest are enough.
MAX_RANKED = 250
# With fewer trials the importance would be noise: it is computed from what the best ones have in common.
MIN_TRIALS = 10
# PED-ANOVA needs about five good trials.
_GOOD_TRIALS = 5


def importance(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[tuple[str, float]]:
    """Importance of each parameter for a trial being good for its sparsity, by name, highest first, sum 1.

    Rows have `planned_sparsity`, `loss` and the named columns. Empty if there are too few or nothing varies.
    """
    columns = ("planned_sparsity", "loss", *names)
    complete = [{name: row[name] for name in columns if name in row} for row in rows if row["state"] == "complete"]
    return _importance(json.dumps(complete[-MAX_RANKED:], default=float), tuple(names))


@lru_cache(maxsize=8)
def _importance(rows: str, names: tuple[str, ...]) -> list[tuple[str, float]]:
    """Rows as JSON text, since a cache needs a hashable key."""
    trials = json.loads(rows)
    known = [
        (row, goodness)
        for row, goodness in zip(trials, relative_losses(trials), strict=True)
        if math.isfinite(goodness) and all(row.get(name) is not None for name in names)
    ]
    ranges = {name: found for name in names if (found := _range(name, [row[name] for row, _ in known])) is not None}
    if len(known) < MIN_TRIALS or not ranges:
        return []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="minimize")
    study.add_trials(
        optuna.trial.create_trial(params={name: row[name] for name in ranges}, distributions=ranges, value=goodness)
        for row, goodness in known
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=max(0.1, _GOOD_TRIALS / len(known)))
    values = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return [(name.removeprefix(PARAM), value) for name, value in values.items()]


def _range(name: str, values: Sequence[Any]) -> BaseDistribution | None:
    """The range of a parameter's values; None if it never changed."""
    if len(set(values)) < 2:
        return None
    if any(isinstance(value, str) for value in values):
        return CategoricalDistribution(sorted({str(value) for value in values}))
    low, high = float(min(values)), float(max(values))
    return FloatDistribution(low, high, log=_is_logarithmic(name) and low > 0)


def _is_logarithmic(name: str) -> bool:
    return name.startswith(PARAM) and is_logarithmic(name.removeprefix(PARAM))


def parallel(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], ranked: Sequence[tuple[str, float]]
) -> dict[str, Any]:
    """Axes from the most important parameter to the result, and one line per complete trial, the newest last."""
    complete = [row for row in rows if row["state"] == "complete"]
    varied = [name for name in names if len({row.get(name) for row in complete} - {None}) > 1]
    order = [PARAM + name for name, _ in ranked if PARAM + name in varied] or varied
    axes = [*order[:MAX_AXES], "sparsity", "metric"]
    lines = [row for row in complete if all(name in row for name in axes)][-MAX_LINES:]
    return {
        "axes": [_axis(name, [row[name] for row in lines]) for name in axes] if lines else [],
        "trials": [row["trial"] for row in lines],
        "lines": [[row[name] for name in axes] for row in lines],
    }


def _axis(name: str, values: Sequence[Any]) -> dict[str, Any]:
    shown = name.removeprefix(PARAM)
    if any(isinstance(value, str) for value in values):
        return {"name": shown, "kind": "names", "names": sorted({str(value) for value in values})}
    is_log = _is_logarithmic(name) and min(values) > 0
    return {"name": shown, "kind": "log" if is_log else "even", "low": min(values), "high": max(values)}
