"""What a page says in words: the result, the state of the study, and what to see in each figure."""

from collections.abc import Mapping, Sequence
from typing import Any

from sca_search.config.costs import COST_METRICS, CostMetric
from sca_search.config.names import ACCURACY, format_metric, format_spread, is_fraction, metric_scale
from sca_search.dashboard.front import Front
from sca_search.dashboard.read import RunFiles
from sca_search.runs.goal import aim_of
from sca_search.runs.trials import spread_of

SPACE = "\N{NO-BREAK SPACE}"
Rows = Sequence[Mapping[str, Any]]


def percent(share: float, digits: int = 2) -> str:
    return f"{100 * share:.{digits}f}{SPACE}%"


def told(metric: str, value: float) -> str:
    """A value of the study's metric."""
    return percent(value) if is_fraction(metric) else format_metric(metric, value)


def counted(number: int, what: str) -> str:
    """1 trial, 2 trials."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def lead(files: RunFiles, rows: Rows) -> str:
    """The result in a sentence or two."""
    goal = f"Goal: {aim_of(files.spec, files.metric)}."
    complete = [row for row in rows if row["state"] == "complete"]
    mine = next((row for row in complete if row["trial"] == files.chosen), None)
    failed = sum(row["state"] == "failed" for row in rows)
    if not complete and failed:
        return f"No trial is complete: {counted(failed, 'trial')} failed. {goal}"
    if not complete:
        return f"No trial has finished yet. {goal}"
    if mine is None:
        verb = "has" if len(complete) == 1 else "have"
        return f"{counted(len(complete), 'trial')} {verb} finished; none meets the goal yet. {goal}"
    against = against_dense(mine["accuracy"], files.dense_accuracy, files.metric)
    return (
        f"Trial {mine['trial']} reaches {told(files.metric, mine['accuracy'])} validation {files.metric} with "
        f"{percent(mine['sparsity'])} of its weights at zero{against}. {goal}"
    )


def against_dense(accuracy: float, dense_accuracy: float | None, metric: str = ACCURACY) -> str:
    if dense_accuracy is None:
        return ""
    if not is_fraction(metric):
        return f"; the dense network has {told(metric, dense_accuracy)}"
    points = 100 * (accuracy - dense_accuracy)
    if abs(points) < 0.005:  # would be shown as 0.00
        return ", as accurate as the dense network"
    return f", {abs(points):.2f} points {'above' if points > 0 else 'below'} the dense network"


def status(files: RunFiles, rows: Rows) -> dict[str, str]:
    """Whether the study is under way, finished, stopped or came to nothing."""
    planned = files.spec.search.trials
    ended = sum(row["state"] in {"complete", "failed", "paused"} for row in rows)
    failed = sum(row["state"] == "failed" for row in rows)
    if files.now is not None:
        what = f"{files.now.what}, epoch {files.now.epoch} of {files.now.epochs}"
        return {"kind": "running", "text": f"Running: {ended} of {planned} trials · {what}"}
    if ended and failed == ended:
        return {"kind": "failed", "text": "The only trial failed" if ended == 1 else f"All {ended} trials failed"}
    if not files.summary or ended < planned:
        return {"kind": "stopped", "text": f"Stopped: {ended} of {counted(planned, 'trial')}"}
    return {"kind": "finished", "text": f"Finished: {counted(ended, 'trial')}"}


def tiles(files: RunFiles, rows: Rows) -> list[tuple[str, str, str]]:
    """The figures to read first: name, value, remark."""
    tiled: list[tuple[str, str, str]] = []
    metric = files.metric
    chosen, dense = files.summary.get("chosen"), files.summary.get("dense")
    mine = next((row for row in rows if row["trial"] == files.chosen), None)
    if isinstance(chosen, Mapping) and isinstance(dense, Mapping) and mine and chosen["trial"] == mine["trial"]:
        if "test_accuracy" in chosen:  # a study that was stopped has none
            beside = f"dense {told(metric, dense['test_accuracy'])}"
            tiled.append((f"Test {metric}", told(metric, chosen["test_accuracy"]), beside))
        tiled.append((f"Validation {metric}", told(metric, chosen["accuracy_mean"]), _spread(chosen, metric)))
        tiled.append(("Zeros, counted in the file", percent(chosen["sparsity"], 3), aim_of(files.spec, files.metric)))
    elif mine:
        tiled.append((f"Validation {metric}", told(metric, mine["accuracy"]), f"trial {mine['trial']}, one seed"))
        tiled.append(("Zeros, counted in the file", percent(mine["sparsity"], 3), aim_of(files.spec, files.metric)))
    if files.dense_accuracy is not None and not chosen:
        tiled.append(("Dense network", told(metric, files.dense_accuracy), f"validation {metric}"))
    if mine:
        costs = [(each, mine[each.key]) for each in COST_METRICS if each.key in mine]
        tiled += [(each.label.capitalize(), cost(each, value), each.remark) for each, value in costs]
    complete = sum(row["state"] == "complete" for row in rows)
    tiled.append(("Trials", f"{complete:,}", "complete" + _others(rows)))
    return tiled


def _spread(chosen: Mapping[str, Any], metric: str) -> str:
    return spread_of(chosen, metric).replace("± ", "±" + SPACE).replace("%", SPACE + "%")


def _others(rows: Rows) -> str:
    counts = [(state, sum(row["state"] == state for row in rows)) for state in ("paused", "failed")]
    return "".join(f", {count} {state}" for state, count in counts if count)


def cost(metric: CostMetric, value: float) -> str:
    """A cost with its unit."""
    return metric.format(value).replace(" ", SPACE)


def front_headline(front: Front, rows: Rows, dense_accuracy: float | None, metric: str = ACCURACY) -> str:
    """What the front teaches: how far one can go before accuracy falls by more than half a point."""
    points = {row["trial"]: row for row in rows if row["trial"] in set(front.trials)}
    if not points:
        return "Nothing to compare yet"
    best = max(row["accuracy"] for row in points.values())
    top = best if dense_accuracy is None else max(best, dense_accuracy)
    near = [row for row in points.values() if row["accuracy"] >= top - 0.005 * metric_scale(metric, top) - 1e-12]
    named = "the best" if dense_accuracy is None or best > dense_accuracy else "the dense network"
    if len(points) == 1 or not near:
        row = max(points.values(), key=lambda row: row["accuracy"])
        return f"The most accurate has {told(metric, row['accuracy'])} at {_value(front, row)}"
    extreme = (max if front.measure.more_is_better else min)(near, key=lambda row: row[front.measure.key])
    near_by = (
        "half a point"
        if is_fraction(metric)
        else f"{format_spread(metric, 0.005 * metric_scale(metric, top))} {metric}"
    )
    return f"{_value(front, extreme)} and still within {near_by} of {named}"


def _value(front: Front, row: Mapping[str, Any]) -> str:
    value = row[front.measure.key]
    if front.measure.key == "sparsity":
        return f"{percent(value, 1)} zeros"
    return next(cost(metric, value) for metric in COST_METRICS if metric.key == front.measure.key)


def prior_headline(drift: float | None) -> str:
    if drift is None:
        return "What α is to give"
    if drift < 0.0005:
        return "Layers end where they are asked to"
    return f"Layers end {100 * drift:.2g} points from what they are asked for, on average"


def growth_headline(areas: Sequence[float]) -> str:
    """When the search stopped finding better ones."""
    if len(areas) < 2 or not areas[-1]:
        return "How the front's area grows"
    first = next(index for index, area in enumerate(areas, 1) if area >= 0.99 * areas[-1])
    if first == len(areas):
        return "The front still grew with the last trial"
    return f"After {counted(first, 'trial')} the front had 99{SPACE}% of its final area"


def importance_headline(ranked: Sequence[tuple[str, float]]) -> str:
    return f"{ranked[0][0]} mattered most" if ranked else "Too few trials to say what mattered"
