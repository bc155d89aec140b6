"""The metric against sparsity or a cost: the trials on the front, its outline, and the visible range."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pandas as pd

from sca_search.config.costs import COST_METRICS
from sca_search.config.names import ACCURACY, is_fraction, metric_scale
from sca_search.runs.trials import measured, pareto_front

Corner = tuple[float, float]


@dataclass(frozen=True)
class Measure:
    """What the metric is plotted against; a value times `factor` is in `unit`."""

    key: str
    name: str
    title: str
    unit: str
    factor: float
    more_is_better: bool


SPARSITY = Measure("sparsity", "sparsity", "sparsity: fraction of zero weights", "%", 100.0, True)
MEASURES = (
    SPARSITY,
    *(
        Measure(each.key, each.label, f"{each.label}: {each.remark}", each.unit, 1 / each.scale, False)
        for each in COST_METRICS
    ),
)


@dataclass(frozen=True)
class View:
    """The initial range of a figure, and the number of trials below it."""

    x: tuple[float, float]
    metric: tuple[float, float]
    below: int


@dataclass(frozen=True)
class Front:
    """The front by one measure, in the units of the columns."""

    measure: Measure
    trials: tuple[int, ...]  # from the worst of the measure to the best
    outline: tuple[Corner, ...]
    view: View


def fronts(
    frame: pd.DataFrame, levels: Sequence[float], goals: Mapping[str, float], metric: str = ACCURACY
) -> tuple[Front, ...]:
    """One front per measure of the trials. `levels` are metric values to keep in view, `goals` values of measures."""
    known = measured(frame).dropna(axis="columns", how="all")
    found = []
    for measure in [each for each in MEASURES if each.key in known or each is SPARSITY]:
        best = pareto_front(frame, measure.key, more_is_better=measure.more_is_better)
        points = list(zip(best[measure.key].astype(float), best["metric"].astype(float), strict=True))
        visible = view(frame, measure, [value for _, value in points], levels, goals.get(measure.key), metric)
        line = outline(points, measure.more_is_better, visible.x)
        found.append(Front(measure, tuple(int(trial) for trial in best["trial"]), line, visible))
    return tuple(found)


def outline(points: Sequence[Corner], more_is_better: bool, ends: tuple[float, float]) -> tuple[Corner, ...]:
    """Corners of the line "best metric with at least this sparsity", or with at most this cost.

    Points are sorted by the measure. Where more is better, the line is level up to a point and falls to the next,
    starting at the left end of the view; else it is level from a point and rises at the next, up to the right end.
    """
    if not points:
        return ()
    if more_is_better:
        inner = [(left, below) for (left, _), (_, below) in pairwise(points)]
        merged = [corner for pair in zip(points, [*inner, points[-1]], strict=True) for corner in pair]
        return ((min(ends[0], points[0][0]), points[0][1]), *merged[:-1])
    inner = [(right, level) for (_, level), (right, _) in pairwise(points)]
    end = (max(ends[1], points[-1][0]), points[-1][1])
    return tuple(corner for pair in zip(points, [*inner, end], strict=True) for corner in pair)


def view(
    frame: pd.DataFrame,
    measure: Measure,
    front: Sequence[float],
    levels: Sequence[float],
    goal: float | None,
    metric: str,
) -> View:
    """A range with the front, the goal and the levels; trials far below do not compress the rest."""
    known = measured(frame)
    known = known[known[measure.key].notna()]
    if known.empty:
        return View((0.0, 1.0), (0.0, 1.0), 0)
    top = max([float(known["metric"].max()), *levels])
    # The space below the front equals its own range, but is at least five points.
    floor = min(front) - max(top - min(front), 0.05 * metric_scale(metric, top))
    shown = known[known["metric"] >= floor]
    lowest = float(shown["metric"].min())
    values = [*shown[measure.key].astype(float), *([] if goal is None else [goal])]
    return View(
        _padded_fraction(min(values), max(values)) if measure is SPARSITY else _padded_cost(min(values), max(values)),
        _padded_fraction(lowest, top) if is_fraction(metric) else _padded(lowest, top),
        len(known) - len(shown),
    )


def _padded(low: float, high: float) -> tuple[float, float]:
    """Eight percent on each side keep markers off the border; a minimum applies if all values are equal."""
    margin = 0.08 * (high - low) or 0.01 * abs(high) or 0.01
    return low - margin, high + margin


def _padded_cost(low: float, high: float) -> tuple[float, float]:
    margin = 0.08 * (high - low) or 0.1 * high or 1.0
    return max(low - margin, 0.0), high + margin


def _padded_fraction(low: float, high: float) -> tuple[float, float]:
    margin = max(0.08 * (high - low), 0.01)
    # No fraction is outside 0..1; a little more shows a marker at the border completely.
    beyond = 0.04 * (high - low + margin)
    return max(low - margin, -beyond), min(high + margin, 1.0 + beyond)
