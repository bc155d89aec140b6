"""The sentences of a page: the result, the state of the study, and the headline of each figure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sca_search.config.costs import COST_METRICS, CostMetric
from sca_search.config.names import ACCURACY, format_metric, format_spread, is_fraction, metric_scale
from sca_search.dashboard.front import Front
from sca_search.dashboard.read import RunFiles
from sca_search.runs.candidates import model_name, refit_text
from sca_search.runs.goal import goal_text
from sca_search.runs.log import CurrentTraining

SPACE = "\N{NO-BREAK SPACE}"
Rows = Sequence[Mapping[str, Any]]


def percent(fraction: float, digits: int = 2) -> str:
    return f"{100 * fraction:.{digits}f}{SPACE}%"


def shown_metric(metric: str, value: float) -> str:
    """A value of the study's metric."""
    return percent(value) if is_fraction(metric) else format_metric(metric, value)


def counted(number: int, what: str) -> str:
    """1 trial, 2 trials."""
    return f"{number:,} {what}" + ("" if number == 1 else "s")


def lead(files: RunFiles, rows: Rows) -> str:
    """The result in one or two sentences."""
    goal = f"Goal: {goal_text(files.spec, files.metric)}."
    complete = [row for row in rows if row["state"] == "complete"]
    mine = files.model
    failed = sum(row["state"] == "failed" for row in rows)
    if not complete:
        nothing = (
            f"No trial is complete: {counted(failed, 'trial')} failed." if failed else "No trial has finished yet."
        )
        return f"{nothing} {goal}"
    if mine is None:
        verb = "has" if len(complete) == 1 else "have"
        return f"{counted(len(complete), 'trial')} {verb} finished; none meets the goal yet. {goal}"
    against = against_dense(mine["metric"], files.dense_metric, files.metric)
    return (
        f"{model_name(mine).capitalize()} reaches {shown_metric(files.metric, mine['metric'])} validation "
        f"{files.metric} with {percent(mine['sparsity'])} of its weights at zero{against}. "
        f"Chosen: {mine['reason']}. {goal}"
    )


def against_dense(accuracy: float, dense_metric: float | None, metric: str = ACCURACY) -> str:
    if dense_metric is None:
        return ""
    if not is_fraction(metric):
        return f"; the dense network has {shown_metric(metric, dense_metric)}"
    points = 100 * (accuracy - dense_metric)
    if abs(points) < 0.005:  # would be shown as 0.00
        return ", as accurate as the dense network"
    return f", {abs(points):.2f} points {'above' if points > 0 else 'below'} the dense network"


@dataclass(frozen=True)
class StudyState:
    """Numbers of trials, and whether the study has its summary."""

    planned: int
    ended: int
    failed: int
    is_summarized: bool


def state_of(files: RunFiles) -> StudyState:
    states = files.frame["state"]
    ended = states.isin(["complete", "failed", "paused"]).sum()
    return StudyState(files.spec.search.trials, int(ended), int((states == "failed").sum()), bool(files.summary))


def status(state: StudyState, now: CurrentTraining | None) -> dict[str, str]:
    """Whether the study is running, finished or stopped, or has only failed trials."""
    ended = state.ended
    if now is not None:
        what = f"{now.what}, epoch {now.epoch} of {now.epochs}"
        return {"kind": "running", "text": f"Running: {ended} of {state.planned} trials · {what}"}
    if ended and state.failed == ended:
        return {"kind": "failed", "text": "The only trial failed" if ended == 1 else f"All {ended} trials failed"}
    if not state.is_summarized or ended < state.planned:
        return {"kind": "stopped", "text": f"Stopped: {ended} of {counted(state.planned, 'trial')}"}
    return {"kind": "finished", "text": f"Finished: {counted(ended, 'trial')}"}


def tiles(files: RunFiles, rows: Rows) -> list[tuple[str, str, str]]:
    """The most important figures: name, value, remark."""
    tiled: list[tuple[str, str, str]] = []
    metric = files.metric
    chosen, dense, mine = files.summary.get("chosen"), files.summary.get("dense"), files.model
    if mine:
        if isinstance(chosen, Mapping) and isinstance(dense, Mapping) and _is_tested(chosen, mine):
            dense_result = f"dense {shown_metric(metric, dense['test_metric'])}"
            tiled.append((f"Test {metric}", shown_metric(metric, chosen["test_metric"]), dense_result))
        tiled.append((f"Validation {metric}", shown_metric(metric, mine["metric"]), model_name(mine)))
        if mine["refits"]:
            shown = refit_text(mine, metric).replace("± ", "±" + SPACE).replace("%", SPACE + "%")
            mean, _, spread = shown.partition(" ")
            tiled.append((f"Refits: validation {metric}", mean.rstrip(","), spread))
        tiled.append(("Sparsity, counted in the file", percent(mine["sparsity"], 3), goal_text(files.spec, metric)))
    if files.dense_metric is not None and not chosen:
        tiled.append(("Dense network", shown_metric(metric, files.dense_metric), f"validation {metric}"))
    if mine:
        costs = [(each, mine[each.key]) for each in COST_METRICS if each.key in mine]
        tiled += [(each.label.capitalize(), cost(each, value), each.remark) for each, value in costs]
    counts = Counter(row["state"] for row in rows)
    others = [f"{counts[state]} {state}" for state in ("paused", "failed") if counts[state]]
    tiled.append(("Trials", f"{counts['complete']:,}", ", ".join(["complete", *others])))
    return tiled


def _is_tested(chosen: Mapping[str, Any], mine: Mapping[str, Any]) -> bool:
    """Whether the summary has the test result of this model; a study that was stopped has none."""
    return "test_metric" in chosen and all(chosen.get(name) == mine[name] for name in ("trial", "refit"))


def cost(metric: CostMetric, value: float) -> str:
    """A cost with its unit."""
    return metric.format(value).replace(" ", SPACE)


def front_headline(front: Front, rows: Rows, dense_metric: float | None, metric: str = ACCURACY) -> str:
    """The extreme trial of the front whose metric is within half a point of the best."""
    points = {row["trial"]: row for row in rows if row["trial"] in set(front.trials)}
    if not points:
        return "No trial is complete yet"
    best = max(row["metric"] for row in points.values())
    top = best if dense_metric is None else max(best, dense_metric)
    near = [row for row in points.values() if row["metric"] >= top - 0.005 * metric_scale(metric, top) - 1e-12]
    named = "the best" if dense_metric is None or best > dense_metric else "the dense network"
    if len(points) == 1 or not near:
        row = max(points.values(), key=lambda row: row["metric"])
        return f"The most accurate has {shown_metric(metric, row['metric'])} at {_value(front, row)}"
    extreme = (max if front.measure.more_is_better else min)(near, key=lambda row: row[front.measure.key])
    half_a_point = f"{format_spread(metric, 0.005 * metric_scale(metric, top))} {metric}"
    near_by = "half a point" if is_fraction(metric) else half_a_point
    return f"{_value(front, extreme)} and still within {near_by} of {named}"


def _value(front: Front, row: Mapping[str, Any]) -> str:
    value = row[front.measure.key]
    if front.measure.key == "sparsity":
        return f"{percent(value, 1)} zeros"
    return next(cost(metric, value) for metric in COST_METRICS if metric.key == front.measure.key)


def prior_headline(drift: float | None) -> str:
    if drift is None:
        return "Predicted sparsity by α"
    if drift < 0.0005:
        return "Layers achieve the planned sparsity"
    return f"Achieved sparsity differs from the planned by {100 * drift:.2g} points on average"


def growth_headline(areas: Sequence[float]) -> str:
    """When the search stopped finding better trials."""
    if len(areas) < 2 or not areas[-1]:
        return "Area of the front over the trials"
    first = next(index for index, area in enumerate(areas, 1) if area >= 0.99 * areas[-1])
    if first == len(areas):
        return "The area still grew with the last trial"
    return f"After {counted(first, 'trial')} the front had 99{SPACE}% of its final area"


def importance_headline(ranked: Sequence[tuple[str, float]]) -> str:
    return f"{ranked[0][0]} is the most important parameter" if ranked else "Too few trials for importances"
