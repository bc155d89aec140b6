"""Successive halving over epochs: which trials continue at a rung, and how well rungs predict the final loss.

The score of a rung is the loss of the network if training ended there. Sparser networks have a higher loss, so a trial
is only compared with trials of comparable sparsity.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import Any

import numpy as np

from sca_search.runs.trials import RUNG

# Densities (fractions of non-zeros) within this factor are comparable: 0.97 with 0.98 and 0.955, not with 0.9.
COMPARABLE = 1.5
# With fewer comparable trials none is paused.
LEAST_COMPARED = 3


@dataclass(frozen=True)
class RungScore:
    """The loss of one candidate at one rung."""

    candidate: int
    sparsity: float
    loss: float


def rung_epochs(fractions: Sequence[float], epochs: int) -> tuple[int, ...]:
    """Fractions of a training as distinct epochs, without its start and end."""
    rounded = {round(fraction * epochs) for fraction in fractions}
    return tuple(sorted(epoch for epoch in rounded if 0 < epoch < epochs))


def continues_at_rung(mine: RungScore, others: Sequence[RungScore], keep: float) -> bool:
    """Whether a candidate is among the best fraction `keep` of the comparable ones at its rung, itself included."""
    losses = [other.loss for other in others if other.candidate != mine.candidate and comparable(mine, other)]
    if keep >= 1.0 or len(losses) + 1 < LEAST_COMPARED:
        return True
    better = sum(loss < mine.loss for loss in losses)
    return better < math.ceil(keep * (len(losses) + 1))


def comparable(one: RungScore, other: RungScore) -> bool:
    """Whether two candidates are close enough in sparsity to compare their losses."""
    return 1.0 / COMPARABLE <= _ratio(one.sparsity, other.sparsity) <= COMPARABLE


def _ratio(sparsity: float, other: float) -> float:
    """The ratio of two densities; it increases with the other sparsity."""
    return (1.0 - sparsity) / (1.0 - other)


def promoted(paused: Sequence[RungScore], scores_at_rung: Sequence[RungScore], keep: float) -> list[int]:
    """The paused candidates that are now among the best of their rung, best first."""
    chosen = [mine for mine in paused if continues_at_rung(mine, scores_at_rung, keep)]
    return [mine.candidate for mine in sorted(chosen, key=lambda mine: mine.loss)]


def relative_losses(trials: Sequence[Mapping[str, Any]]) -> list[float]:
    """The log loss of each trial minus the mean log loss at comparable sparsity: negative is better than average.

    Without comparable trials the mean is predicted from those at other sparsities; without any other trial it is 0. A
    trial is compared at its end or its last rung, with all trials that got there. NaN without a loss.
    """
    places = [_place(trial) for trial in trials]
    means = {place: _Means(trials, place) for place in {*places} - {""}}
    return [means[place].relative(trial) if place else math.nan for trial, place in zip(trials, places, strict=True)]


def _place(trial: Mapping[str, Any]) -> str:
    """The name of the last loss of a trial."""
    if trial.get("planned_sparsity") is None:
        return ""
    if trial.get("loss") is not None:
        return "loss"
    rungs = (name for name in trial if name.startswith(RUNG))
    return max(rungs, key=lambda rung: int(rung.removeprefix(RUNG)), default="")


class _Means:
    """The mean log loss at one place, around any sparsity.

    Sorted by sparsity, comparable trials are adjacent, and cumulative sums give the sum of any range: with ten thousand
    trials, comparing all pairs takes too long. Fractions make the sums exact.
    """

    def __init__(self, trials: Sequence[Mapping[str, Any]], place: str) -> None:
        known = [
            trial for trial in trials if trial.get(place) is not None and trial.get("planned_sparsity") is not None
        ]
        pairs = sorted((float(trial["planned_sparsity"]), _log_loss(trial, place)) for trial in known)
        finite = [(sparsity, log) for sparsity, log in pairs if math.isfinite(log)]  # NaN would hide all others
        self._place = place
        self._sparsities = [sparsity for sparsity, _ in finite]
        self._log_densities = np.log1p([-sparsity for sparsity in self._sparsities])
        self._logs = np.array([log for _, log in finite])
        self._sums = list(accumulate((Fraction(log) for _, log in finite), initial=Fraction()))
        self._means: dict[float, float] = {}

    def relative(self, trial: Mapping[str, Any]) -> float:
        """The log loss of a trial minus the mean of the comparable ones; not finite if its own is not."""
        sparsity, log = float(trial["planned_sparsity"]), _log_loss(trial, self._place)
        if not math.isfinite(log):
            return log
        if sparsity not in self._means:
            first, last = self._around(sparsity)
            is_alone = last - first == 1 < len(self._logs)
            mean = float(self._sums[last] - self._sums[first]) / (last - first)
            self._means[sparsity] = self._predicted(first) if is_alone else mean
        return log - self._means[sparsity]

    def _predicted(self, index: int) -> float:
        """The log loss at the density of a trial by all others: a linear fit over log density.

        The nearest count most, because the curve is flat at low sparsity and steep at high: in simulated studies with
        offsets per trial, weights 1/d⁴ ranked these better than 1/d² and equal weights.
        """
        distances = np.delete(self._log_densities, index) - self._log_densities[index]
        logs, weights = np.delete(self._logs, index), distances**-4.0
        middle, mean = np.average(distances, weights=weights), np.average(logs, weights=weights)
        if np.ptp(distances) <= math.log(COMPARABLE):  # they differ by their offsets, not by their density
            return float(mean)
        offsets = distances - middle
        return float(mean - middle * np.sum(weights * offsets * logs) / np.sum(weights * offsets**2))

    def count_around(self, sparsity: float) -> int:
        """The number of comparable trials."""
        first, last = self._around(sparsity)
        return last - first

    def _around(self, sparsity: float) -> tuple[int, int]:
        first = bisect_left(self._sparsities, 1.0 / COMPARABLE, key=lambda other: _ratio(sparsity, other))
        return first, bisect_right(self._sparsities, COMPARABLE, key=lambda other: _ratio(sparsity, other))


def _log_loss(row: Mapping[str, Any], place: str) -> float:
    return math.log(max(float(row[place]), 1e-12))


def rung_correlation(finished: Sequence[Mapping[str, Any]], epoch: int) -> tuple[float, int] | None:
    """Spearman's correlation of the loss at a rung with the final loss, and the number of trials.

    Losses are relative to those of comparable trials; otherwise sparsity alone would correlate them. None if there are
    too few trials.
    """
    from scipy.stats import spearmanr  # noqa: PLC0415 - 20 MB, and dashboards import this module

    rung = f"{RUNG}{epoch}"
    rows = [row for row in finished if all(row.get(name) is not None for name in (rung, "loss", "planned_sparsity"))]
    at = {name: _Means(rows, name) for name in (rung, "loss")}
    compared = [row for row in rows if at[rung].count_around(row["planned_sparsity"]) >= LEAST_COMPARED]
    at_rung, at_end = ([at[name].relative(row) for row in compared] for name in (rung, "loss"))
    if len(compared) < LEAST_COMPARED + 1 or len(set(at_rung)) == 1 or len(set(at_end)) == 1:
        return None
    return float(spearmanr(at_rung, at_end).statistic), len(compared)
