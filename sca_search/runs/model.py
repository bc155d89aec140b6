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

# The keys that `exported_model` adds to a record.
FIGURES = ("refit", "metric", "refits", "refit_mean", "refit_std")


def exported_model(
    records: Sequence[dict[str, Any]], row: Mapping[str, Any], goal: GoalSpec, metric: str
) -> dict[str, Any]:
    """The record of the exported model of a trial, with mean and sample standard deviation over the trial's refits.

    `row` is the trial's line in the table of trials. A refit that misses the goal, for example a budget, is left out
    unless all miss it. `refit` is None for the trial itself.
    """
    values = [{name: each[name] for name in COMPARED & each.keys()} | {"trial": each["refit"]} for each in records]
    frame = pd.DataFrame(values, columns=["trial", *sorted(COMPARED)], dtype=float)
    frame = frame.assign(state="complete", images=row.get("images", math.nan))
    choice = chosen_trial(frame, goal, metric) or select(frame, metric)
    best = next((each for each in records if choice and each["refit"] == choice.trial), records[0])
    metrics = [each["metric"] for each in records if each["refit"]]
    return best | {
        "refit": best["refit"] or None,
        "refits": len(metrics),
        "refit_mean": statistics.fmean(metrics) if metrics else None,
        "refit_std": statistics.stdev(metrics) if len(metrics) > 1 else None,
    }


def refit_text(figures: Mapping[str, Any], metric: str) -> str:
    """Mean and spread over the refits; one refit has no spread."""
    if not figures["refits"]:
        return "no refit"
    mean = format_metric(metric, figures["refit_mean"])
    if figures["refits"] == 1:
        return f"{mean}, one refit"
    return f"{mean} ± {format_spread(metric, figures['refit_std'])} over {figures['refits']} seeds"


def model_name(figures: Mapping[str, Any]) -> str:
    """The trial, and the refit if one is exported."""
    return f"trial {figures['trial']}" + (f" (refit {figures['refit']})" if figures["refit"] else "")
