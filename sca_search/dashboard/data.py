"""What the dashboard shows, as plain values: every number on the page is decided here, none while drawing."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from sca_search.results import pareto_front


@dataclass(frozen=True)
class FrontPoint:
    """A complete trial; all three shares are in 0..1."""

    trial: int
    sparsity: float
    accuracy: float
    planned_sparsity: float


@dataclass(frozen=True)
class LayerRow:
    """One ternary layer of the chosen model."""

    name: str
    weights: int
    sparsity: float


@dataclass(frozen=True)
class DashboardData:
    title: str
    target_sparsity: float | None
    dense_accuracy: float | None
    points: tuple[FrontPoint, ...]
    front: tuple[FrontPoint, ...]
    chosen: FrontPoint | None
    summary: tuple[tuple[str, str], ...]
    layers: tuple[LayerRow, ...]


@dataclass(frozen=True)
class FrontView:
    """The part of the plane that the front figure opens with, in percent, and how many trials lie below."""

    sparsity: tuple[float, float]
    accuracy: tuple[float, float]
    below: int


def dashboard_data(
    frame: pd.DataFrame,
    *,
    title: str,
    target_sparsity: float | None,
    dense_accuracy: float | None,
    chosen_trial: int | None,
    summary: Sequence[tuple[str, str]],
    layers: Sequence[LayerRow],
) -> DashboardData:
    """The page's values from a frame of trials; a chosen trial that is not complete is left out."""
    complete = frame[(frame["state"] == "complete") & frame["accuracy"].notna() & frame["sparsity"].notna()]
    points = _points(complete)
    return DashboardData(
        title=title,
        target_sparsity=target_sparsity,
        dense_accuracy=dense_accuracy,
        points=points,
        front=_points(pareto_front(frame)),
        chosen=next((point for point in points if point.trial == chosen_trial), None),
        summary=tuple(summary),
        layers=tuple(layers),
    )


def front_outline(front: Sequence[FrontPoint]) -> tuple[tuple[float, float], ...]:
    """The corners (sparsity, accuracy) of "the best accuracy with at least this sparsity", from 0 on.

    Between two points of the front the next one, sparser and less accurate, is the best there is: the line
    falls at a point and then runs level to the next. Before the first point it is level.
    """
    if not front:
        return ()
    return ((0.0, front[0].accuracy), *((point.sparsity, point.accuracy) for point in front))


def front_view(data: DashboardData) -> FrontView:
    """Fits the front, the target and the dense accuracy; a few trials far below do not flatten the rest."""
    if not data.points:
        return FrontView((0.0, 100.0), (0.0, 100.0), 0)
    levels = [100 * point.accuracy for point in data.points]
    lowest = 100 * min(point.accuracy for point in data.front)
    top = max(levels) if data.dense_accuracy is None else max(*levels, 100 * data.dense_accuracy)
    # As much room below the front as it spans itself, but at least five points of accuracy.
    floor = lowest - max(top - lowest, 5.0)
    shown = [point for point in data.points if 100 * point.accuracy >= floor]
    shares = [100 * point.sparsity for point in shown]
    if data.target_sparsity is not None:
        shares.append(100 * data.target_sparsity)
    return FrontView(
        sparsity=_padded(min(shares), max(shares)),
        accuracy=_padded(100 * min(point.accuracy for point in shown), top),
        below=len(data.points) - len(shown),
    )


def table_rows(data: DashboardData) -> tuple[FrontPoint, ...]:
    """The front and, where it is not on it, the chosen trial, by sparsity."""
    rows = set(data.front) | ({data.chosen} if data.chosen else set())
    return tuple(sorted(rows, key=lambda point: (point.sparsity, point.trial)))


def _points(frame: pd.DataFrame) -> tuple[FrontPoint, ...]:
    columns = (frame[name] for name in ("trial", "sparsity", "accuracy", "planned_sparsity"))
    return tuple(
        FrontPoint(int(trial), float(sparsity), float(accuracy), float(planned))
        for trial, sparsity, accuracy, planned in zip(*columns, strict=True)
    )


def _padded(low: float, high: float) -> tuple[float, float]:
    # Eight percent keeps the outermost markers off the border; one point keeps an interval where all
    # values are equal.
    margin = max(0.08 * (high - low), 1.0)
    # No share is outside 0..100; one point more shows a marker on that border whole.
    return max(low - margin, -1.0), min(high + margin, 101.0)
