"""Which of the searched values mattered: Optuna's PED-ANOVA on how good each trial is for its sparsity."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from sca_search.study.halving import relative_losses
from sca_search.study.space import is_logarithmic

# With fewer the figure would be noise: it is taken from what the best of them have in common.
LEAST_TRIALS = 10
# PED-ANOVA asks for about five good trials.
_GOOD_TRIALS = 5


def importances(trials: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, float]:
    """The share of each named value in a trial being among the best for its sparsity; largest first, together 1.

    Trials are rows with `planned_sparsity`, `loss` and the named values. Empty where there are too few, or where
    nothing was varied.
    """
    told = [
        (row, goodness)
        for row, goodness in zip(trials, relative_losses(trials), strict=True)
        if math.isfinite(goodness) and all(row.get(name) is not None for name in names)
    ]
    ranges = {name: found for name in names if (found := _range(name, [row[name] for row, _ in told])) is not None}
    if len(told) < LEAST_TRIALS or not ranges:
        return {}
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(direction="minimize")
    study.add_trials(
        optuna.trial.create_trial(params={name: row[name] for name in ranges}, distributions=ranges, value=goodness)
        for row, goodness in told
    )
    share = max(0.1, _GOOD_TRIALS / len(told))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=share)
    return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def _range(name: str, values: Sequence[Any]) -> BaseDistribution | None:
    """The range that a value was seen in; None where it never changed."""
    if len(set(values)) < 2:
        return None
    if any(isinstance(value, str) for value in values):
        return CategoricalDistribution(sorted({str(value) for value in values}))
    low, high = float(min(values)), float(max(values))
    return FloatDistribution(low, high, log=is_logarithmic(name) and low > 0)
