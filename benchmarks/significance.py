"""Paired t-tests, Holm's correction and verdicts for the tables of benchmarks."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

# Headings of the cells of a difference.
HEADINGS = ["points", "95 %", "p", "verdict"]


class Difference(NamedTuple):
    """A mean difference, its 95 % interval and a two-sided p-value."""

    mean: float
    low: float
    high: float
    p: float


def paired_test(differences: Sequence[float]) -> Difference | None:
    """A paired t-test; None for fewer than two pairs and for equal differences, for which it is not defined."""
    if len(differences) < 2 or np.ptp(differences) < 1e-9:
        return None
    test = stats.ttest_1samp(differences, 0.0)
    interval = test.confidence_interval(0.95)
    return Difference(float(np.mean(differences)), float(interval.low), float(interval.high), float(test.pvalue))


def holm(values: Sequence[float]) -> list[float]:
    """Holm's corrected p-values."""
    order = np.argsort(values)
    scaled = [values[index] * (len(values) - rank) for rank, index in enumerate(order)]
    corrected = np.minimum(1.0, np.maximum.accumulate(scaled))
    return [float(corrected[list(order).index(index)]) for index in range(len(values))]


def cells_of(differences: Sequence[Difference | None]) -> list[list[str]]:
    """A row of cells per comparison, below HEADINGS; p-values are corrected for all of them."""
    corrected = iter(holm([each.p for each in differences if each is not None]))
    return [["", "", "", "not tested"] if each is None else _cells(each, next(corrected)) for each in differences]


def _cells(difference: Difference, p: float) -> list[str]:
    interval = f"{difference.low:+.2f} to {difference.high:+.2f}"
    return [f"{difference.mean:+.2f}", interval, f"{p:.3f}", verdict(difference, p)]


def verdict(difference: Difference, p: float) -> str:
    """`p` is the corrected one."""
    if difference.low <= 0.0 <= difference.high or p > 0.05:
        return "no difference shown"
    return "better" if difference.low > 0.0 else "worse"


def spread(values: Sequence[float], digits: int = 2, sign: str = "") -> str:
    """Mean and sample standard deviation; a single value has none."""
    mean = f"{statistics.fmean(values):{sign}.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"
