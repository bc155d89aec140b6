"""The searched parameters: how important each is, and the trials as lines across them."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from sca_search.runs.trials import PARAM
from sca_search.study.halving import relative_losses
from sca_search.study.space import is_logarithmic

# More axes cannot be read side by side, and more lines cannot be distinguished.
MAX_AXES = 7
MAX_LINES = 300
# Each trial is compared with all others; in a long study the newest are enough.
MAX_RANKED = 250
# With fewer trials the importance would be noise: it is computed from what the best of them have in common.
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
