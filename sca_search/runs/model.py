"""The exported model of a trial: of the trial and its refits, the one that the study's rule selects.

Its own validation metric is that of a selected model and thus optimistic. What to expect of another training is
estimated from the refits alone.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from sca_search.config.names import format_metric, format_spread
from sca_search.config.study import GoalSpec
from sca_search.runs.candidates import COMPARED
from sca_search.runs.choice import select
from sca_search.runs.goal import chosen_trial

Records = Sequence[dict[str, Any]]


def exported_record(records: Records, row: Mapping[str, Any], goal: GoalSpec, metric: str) -> dict[str, Any]:
    """The record of the exported model of a trial, whose line in the table of trials is `row`.

    A refit that misses the goal, for example a budget, is left out unless all miss it.
    """
    values = [{name: each[name] for name in COMPARED & each.keys()} | {"trial": each["refit"]} for each in records]
    frame = pd.DataFrame(values, columns=["trial", *sorted(COMPARED)], dtype=float)
    frame = frame.assign(state="complete", images=row.get("images", math.nan))
    choice = chosen_trial(frame, goal, metric) or select(frame, metric)
    selected = records[0]["refit"] if choice is None else choice.trial
    return next(each for each in records if each["refit"] == selected)


def model_figures(records: Records, exported: Mapping[str, Any]) -> dict[str, Any]:
    """Which record is exported, its metric, and mean and sample standard deviation over the refits."""
    metrics = [each["metric"] for each in records if each["refit"]]
    return {
        "refit": exported["refit"] or None,
        "metric": exported["metric"],
        "refits": len(metrics),
        "refit_mean": statistics.fmean(metrics) if metrics else None,
        "refit_std": statistics.stdev(metrics) if len(metrics) > 1 else None,
    }


def refit_text(figures: Mapping[str, Any], metric: str) -> str:
    """Mean and spread over the refits."""
    if not figures["refits"]:
        return "no refit"
    mean, spread = format_metric(metric, figures["refit_mean"]), refit_spread(figures, metric)
    return f"{mean} {spread}" if spread.startswith("±") else f"{mean}, {spread}"


def refit_spread(figures: Mapping[str, Any], metric: str) -> str:
    """The sample standard deviation over the refits; one refit has none."""
    if figures["refits"] == 1:
        return "one refit"
    return f"± {format_spread(metric, figures['refit_std'])} over {figures['refits']} seeds"


def model_name(figures: Mapping[str, Any]) -> str:
    """The trial, and the refit if one is exported."""
    return f"trial {figures['trial']}" + (f" (refit {figures['refit']})" if figures["refit"] else "")
