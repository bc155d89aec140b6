"""What a candidate's folder says, read without torch: its record, its history, how its weights were distributed."""

import csv
import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sca_search.errors import RunError
from sca_search.runs.folder import RunFolder

RECORD, HISTORY, DISTRIBUTION, FEATURES = "candidate.json", "history.csv", "distribution.json", "features.json"


def records_of(run: RunFolder, number: int) -> list[dict[str, Any]]:
    """The records of a candidate and of its refits, each with its `folder`; a refit that was cut short has none."""
    home = run.candidate(number)
    found = [_record(folder) for folder in (home, *sorted(home.glob("refit-*"))) if (folder / RECORD).is_file()]
    if not found:
        raise RunError(f"{home}: the candidate's files are missing")
    return found


def best_of(records: Sequence[dict[str, Any]], limits: Mapping[str, float]) -> dict[str, Any]:
    """The best on validation: the record whose model is exported.

    A refit of a candidate that is within all limits may be a little above one: then it is not taken.
    """
    within = [each for each in records if all(each.get(column, math.inf) <= most for column, most in limits.items())]
    return max(within or records, key=lambda record: (record["accuracy"], -record["loss"]))


def read_history(folder: Path) -> list[dict[str, Any]]:
    """A training's epochs, numbers as numbers; none where they were not written."""
    path = folder / HISTORY
    if not path.is_file():
        return []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return [
                {name: text if name == "phase" else float(text) for name, text in row.items()}
                for row in csv.DictReader(file)
            ]
    except (OSError, ValueError, TypeError, csv.Error) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def read_json(path: Path, default: Any) -> Any:
    """A file that some runs have and some do not."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return default
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def read_table(path: Path) -> dict[str, Any]:
    """A JSON object; an empty one where there is no such file."""
    content = read_json(path, {})
    if not isinstance(content, dict):
        raise RunError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _record(folder: Path) -> dict[str, Any]:
    path = folder / RECORD
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found = {"loss": math.inf} | {key: record[key] for key in (*record, "accuracy", "layers")} | {"folder": folder}
        _require_figures(found)
        return found
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error


def _require_figures(record: Mapping[str, Any]) -> None:
    """What candidates are compared and counted by; TypeError where it is of another kind."""
    for name, most in (("accuracy", sys.float_info.max), ("loss", math.inf)):  # a record without a loss has infinity
        if not _is_figure(record[name], most):
            raise TypeError(f"{name} must be a number with a measure, got {str(record[name])[:80]}")
    for name, count in record["layers"].items() if isinstance(record["layers"], dict) else [("layers", None)]:
        if not isinstance(count, dict) or any(type(count.get(key)) is not int for key in ("zeros", "weights")):
            raise TypeError(f"{name[:80]} must have zeros and weights, got {str(count)[:80]}")


def _is_figure(value: object, most: float) -> bool:
    """Neither NaN nor beyond what a float holds, as integers in JSON may be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    is_held = isinstance(value, float) or abs(value) <= sys.float_info.max
    return is_held and abs(value) <= most
