"""The trials of a study as one table: trials.csv, its Pareto front and the area under the front.

Both objectives, the study's metric on the validation split and sparsity, are maximized. The column `metric` holds the
value of the study's metric, whatever its name.
"""

import io
import math
import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd

from sca_search.config.costs import COST_COLUMNS, FILE_SIZE, TERNARY_SIZE
from sca_search.config.names import ACCURACY, metric_scale
from sca_search.errors import RunError
from sca_search.system.files import write_text_atomic

# Every table has these columns.
COLUMNS = (
    "trial",
    "state",
    "planned_sparsity",
    "sparsity",
    "metric",
    "loss",
    "soft_metric",
    "rounded_metric",
    "adjusted_fraction",
    "off_target",
    "seconds",
    "reason",
)
# Columns that a table has only if a trial has a value.
OPTIONAL_COLUMNS = (
    "candidate",
    "epochs",
    "images",  # of the validation split
    "metric_error",  # its standard error by bootstrap, of metrics that are not accuracy itself
    "sparsity_before",
    "rung_metric",  # at the last rung, as if training had ended there
    *COST_COLUMNS,
    "worker",  # 1, 2, …
    "started",  # UTC, ISO 8601
)
PARAM = "param."  # prefix of the searched parameters
RUNG = "rung."  # prefix of the losses at the rungs, by epoch
PREDICTED = "predicted_"  # prefix of the predicted costs
_STRINGS = ("state", "reason")
_NUMERIC = tuple(name for name in OPTIONAL_COLUMNS if name != "started")
# Far beyond every study; a folder is named by its candidate's number.
_MAX_CANDIDATE = 2**31
_TYPES = {name: "int64" if name == "trial" else "float64" for name in COLUMNS if name not in {"off_target", *_STRINGS}}

# Columns of a model's size: the whole file where it was measured.
SIZES = (FILE_SIZE.key, TERNARY_SIZE.key)
# A trial whose exact step moved more weights than this did not train at the sparsity that it reports.
OFF_TARGET_FRACTION = 0.005


def trial_frame(rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """One row per trial, sorted by number: the columns of every table, then the others by name.

    A missing number is NaN, a missing string "". `off_target` is derived from `adjusted_fraction` unless it is set.
    """
    records = [dict(row) for row in rows]
    others = sorted({name for row in records for name in row} - set(COLUMNS))
    for name in others:
        if name not in OPTIONAL_COLUMNS and not name.startswith((PARAM, RUNG, PREDICTED)):
            raise ValueError(f"a column of trials must be declared or start with {PARAM!r}, got {name!r}")
    frame = pd.DataFrame(records, columns=[*COLUMNS, *others]).astype(_TYPES)
    off_target = frame["off_target"]
    derived = frame["adjusted_fraction"] > OFF_TARGET_FRACTION  # False for NaN
    frame["off_target"] = off_target.astype(object).where(off_target.notna(), derived).astype(bool)
    return check_trials(_with_strings(frame).sort_values("trial", kind="stable", ignore_index=True))


def check_trials(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the table unchanged; ValueError for an invalid value that folder names or plans are derived from."""
    if not frame["trial"].between(0, _MAX_CANDIDATE).all():
        raise ValueError("the number of a trial must be at least 0")
    if frame["trial"].duplicated().any():
        raise ValueError("a trial must have one row")
    if not frame["planned_sparsity"].dropna().between(0, 1).all():
        raise ValueError("a planned sparsity must be from 0 to 1")
    for name in _NUMERIC:
        values = frame[name].dropna().infer_objects() if name in frame else pd.Series(dtype=float)
        if len(values) and not pd.api.types.is_numeric_dtype(values):
            raise ValueError(f"the column {name!r} must hold numbers")
    if "images" in frame and (frame["images"] < 1).any():
        raise ValueError("the number of images must be at least 1")
    if "candidate" in frame:
        numbers = frame["candidate"].dropna()
        if not (numbers.between(0, _MAX_CANDIDATE) & (numbers % 1 == 0)).all():
            raise ValueError(f"the number of a candidate must be an integer from 0 to {_MAX_CANDIDATE:,}")
    return frame


def searched_parameters(frame: pd.DataFrame) -> list[str]:
    """Names of the columns that hold searched parameters."""
    return [str(name) for name in frame.columns if str(name).startswith(PARAM)]


def tie_order(frame: pd.DataFrame) -> list[str]:
    """The columns that order trials of equal merit: loss, size, number."""
    return ["loss", *(name for name in SIZES if name in frame), "trial"]


def pareto_front(frame: pd.DataFrame, measure: str = "sparsity", *, more_is_better: bool = True) -> pd.DataFrame:
    """The complete trials that no other dominates in metric and sparsity (or a cost), sorted by it.

    Of trials equal in both, the one with the lowest loss is on the front, then the smallest, then the earliest.
    """
    known = measured(frame)
    ties = [name for name in tie_order(frame) if name != measure]
    ranked = known[known[measure].abs() < math.inf].sort_values(
        [measure, "metric", *ties], ascending=[not more_is_better, False, *(True for _ in ties)]
    )
    # From the sparsest down, a trial is on the front if its metric is higher than all before it.
    best_before = ranked["metric"].cummax().shift(fill_value=-math.inf)
    return ranked[ranked["metric"] > best_before].sort_values(measure, ignore_index=True)


def hypervolume(front: pd.DataFrame, *, accuracy: float, sparsity: float) -> float:
    """Area that the front dominates above the reference point (accuracy, sparsity)."""
    above = front[(front["metric"] > accuracy) & (front["sparsity"] > sparsity)]
    above = above.sort_values("sparsity", ascending=False)
    heights = above["metric"].cummax() - accuracy
    edges = [*above["sparsity"].tolist(), sparsity]
    return math.fsum((right - left) * height for (right, left), height in zip(pairwise(edges), heights, strict=True))


def front_area(front: pd.DataFrame, dense_accuracy: float, metric: str = ACCURACY) -> float:
    """The hypervolume that studies report, above five points below the dense network and a sparsity of 0.3."""
    accuracy, sparsity = area_reference(dense_accuracy, metric)
    return hypervolume(front, accuracy=accuracy, sparsity=sparsity)


def area_reference(dense_accuracy: float, metric: str = ACCURACY) -> tuple[float, float]:
    """Reference point of the hypervolume; for a metric with a unit, a point is a hundredth of the dense value."""
    return dense_accuracy - 0.05 * metric_scale(metric, dense_accuracy), 0.3


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Write the table of trials atomically."""
    # With "\n" alone, a "\r" in a reason (of a progress bar) is left unquoted and ends the row when read.
    write_text_atomic(path, frame.to_csv(index=False, lineterminator="\r\n"))


def read_csv(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Read a table that `write_csv` wrote; pandas before 3.1 may change a number's last digit."""
    try:
        content = Path(path).read_bytes()
        # Only an empty cell is a missing one: "NA" or "None" may be a parameter's value.
        with np.errstate(invalid="raise"):  # a trial's number that is no integer would become another
            frame = pd.read_csv(
                io.BytesIO(content),
                keep_default_na=False,
                na_values=[""],
                dtype={**_TYPES, **dict.fromkeys(_STRINGS, "str"), "off_target": "bool"},
            )
        if missing := [name for name in COLUMNS if name not in frame.columns]:
            raise ValueError(f"it lacks the column {missing[0]!r}")
        return check_trials(_with_strings(frame))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, ArithmeticError) as error:  # pandas' parser errors and UnicodeDecodeError are ValueErrors
        raise RunError(f"{path} is not a table of trials: {error}") from error


def _with_strings(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with "" where a string is missing."""
    return frame.assign(**{name: frame[name].astype(object).fillna("").astype("str") for name in _STRINGS})


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The complete trials whose two objectives are finite."""
    finite = (frame[["metric", "sparsity"]].abs() < math.inf).all(axis=1)  # NaN is not less
    return frame[(frame["state"] == "complete") & finite]
