"""The rule by which a model is selected among trials, and among a trial and its refits.

Eligible models within one standard error of the best metric are tied. Of those, the one with the lowest validation loss
is selected; then the smaller one, then the earlier one.
"""

import math
from dataclasses import dataclass

import pandas as pd

from sca_search.config.names import ACCURACY, format_spread, is_fraction
from sca_search.runs.trials import SIZES, measured, tie_order

# What decided between tied trials, by the first column in which the selected one and the next differ.
_DECISIVE = {
    "loss": "lower validation loss",
    **dict.fromkeys(SIZES, "equally low validation loss, smaller model"),
    "trial": "equally low validation loss, equal size, earlier trial",
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
        return Choice(trial, "the only eligible trial")
    if not others:
        return Choice(trial, f"highest validation {metric}, no other eligible trial {within}")
    differs = next(column for column in order if tied[column].iloc[:2].nunique(dropna=False) == 2)
    return Choice(trial, f"tied with {_named(others)} {within}; {_DECISIVE[differs]}")


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


def _named(trials: list[int]) -> str:
    return f"trial {trials[0]}" if len(trials) == 1 else f"{len(trials)} other trials"


def choose(
    frame: pd.DataFrame, sparsity: float, metric: str = ACCURACY, tolerance: float = 0.001, *, or_sparser: bool = False
) -> Choice | None:
    """The best complete trial within `tolerance` of the sparsity, or also above it."""
    finished = measured(frame)
    # The slack is for decimal limits: 0.901 - 0.9 is a little more than 0.001 in binary.
    above, slack = finished["sparsity"] - sparsity, tolerance + 1e-12
    return select(finished[(above >= -slack) & (or_sparser | (above <= slack))], metric)


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
    return Choice(choice.trial, f"{goal}, shared with {_named(others)}; {choice.reason}" if others else goal)
