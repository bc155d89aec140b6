"""The folder of a candidate, read without torch: its record, its history and the histograms of its weights.

Of a trial and its refits, the one that the study's rule selects is exported. Its own validation metric is that of a
selected model and thus optimistic. What to expect of another training is estimated from the refits alone.
"""

import csv
import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import SafetensorError, safe_open

from sca_search.config.costs import COST_COLUMNS
from sca_search.config.names import format_metric, format_spread
from sca_search.config.study import GoalSpec
from sca_search.errors import RunError
from sca_search.runs.choice import select
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import chosen_trial

# The values by which the records of a candidate are compared.
COMPARED = {"sparsity", "metric", "metric_error", "loss", *COST_COLUMNS}
RECORD, HISTORY, DISTRIBUTION, FEATURES = "candidate.json", "history.csv", "distribution.json", "features.json"
MODEL = "model.safetensors"
# The keys that `exported_model` adds to a record.
FIGURES = ("refit", "metric", "refits", "refit_mean", "refit_std")


def records_of(run: RunFolder, number: int) -> list[dict[str, Any]]:
    """Records of a candidate and of its refits, each with its `folder` and `refit`, 0 for the candidate itself.

    An interrupted refit has no record.
    """
    home = run.candidate(number)
    refits = {int(folder.name[6:]): folder for folder in home.glob("refit-*") if folder.name[6:].isdecimal()}
    folders = {0: home} | dict(sorted(refits.items()))
    found = [_record(folder) | {"refit": refit} for refit, folder in folders.items() if (folder / RECORD).is_file()]
    if not found:
        raise RunError(f"{home}: the candidate's files are missing")
    return found


def damage_of(folder: Path) -> str | None:
    """The file of a complete candidate that is missing or cut off, and which of both; None if there is none."""
    for name in (MODEL, RECORD):
        if not (folder / name).is_file():
            return f"{folder / name} is missing"
    try:
        with safe_open(folder / MODEL, framework="numpy"):  # compares the file's size with its header
            return None
    except (OSError, SafetensorError):
        return f"{folder / MODEL} is damaged"


def damaged_trials(run: RunFolder, frame: pd.DataFrame) -> dict[int, str]:
    """The damage of each complete trial in a table of trials that has any."""
    complete = frame[frame["state"] == "complete"]
    numbers = complete["candidate"] if "candidate" in complete else complete["trial"]
    found = {
        int(trial): damage_of(run.candidate(int(number)))
        for trial, number in zip(complete["trial"], numbers, strict=True)
    }
    return {trial: damage for trial, damage in found.items() if damage is not None}


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


def read_history(folder: Path) -> list[dict[str, Any]]:
    """Epochs of a training, with numbers as floats and without missing values; empty if there is no file."""
    path = folder / HISTORY
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [
                {name: text if name == "phase" else float(text) for name, text in row.items() if text != ""}
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def read_json(path: Path, default: Any) -> Any:
    """Content of a JSON file, or the default if it does not exist."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def read_table(path: Path) -> dict[str, Any]:
    """A JSON object, empty if the file does not exist."""
    content = read_json(path, {})
    if not isinstance(content, dict):
        raise RunError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = {"loss": math.inf} | {key: record[key] for key in (*record, "metric", "layers")} | {"folder": folder}
        _require_numbers(found)
        return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def _require_numbers(record: Mapping[str, Any]) -> None:
    """TypeError unless the values by which candidates are compared and counted are numbers."""
    for name in COMPARED & record.keys():
        value = record[name]
        is_number = type(value) in (int, float) and abs(value) <= sys.float_info.max  # JSON has larger integers
        if not is_number and (name, value) != ("loss", math.inf):  # of a record without a loss
            raise TypeError(f"{name} must be a finite number, got {str(value)[:80]}")
    for name, count in record["layers"].items() if isinstance(record["layers"], dict) else [("layers", None)]:
        if not isinstance(count, dict) or any(type(count.get(key)) is not int for key in ("zeros", "weights")):
            raise TypeError(f"{name[:80]} must have zeros and weights, got {str(count)[:80]}")
