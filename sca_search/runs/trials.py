"""What the trials of a study gave: one table, its Pareto front, the front's area, and the trial to choose.

Both objectives, the study's metric on the validation split and sparsity, are maximized. The metric's value is in the
column `accuracy`, whatever its name is.
"""

import io
import math
import os
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from sca_search.config.costs import COST_COLUMNS
from sca_search.config.names import ACCURACY, format_metric, format_spread, metric_scale
from sca_search.errors import RunError
from sca_search.system.files import write_text_atomic

COLUMNS = (
    "trial",
    "state",
    "planned_sparsity",
    "sparsity",
    "accuracy",
    "loss",
    "soft_accuracy",
    "rounded_accuracy",
    "moved_share",
    "off_target",
    "seconds",
    "reason",
)
PREDICTED = "predicted_"  # prefix of the predicted costs
# What a trial may tell beside these; whatever else is in a table of trials was searched.
FACTS = (
    "candidate",
    "epochs",
    "images",  # of the validation split
    "accuracy_error",  # its standard error by bootstrap, of metrics that are not accuracy itself
    "sparsity_before",
    "rung_accuracy",  # at the last rung, as if training had ended there
    *COST_COLUMNS,
    "worker",  # 1, 2, …
    "started",  # UTC, ISO 8601
)
_TEXT = ("state", "reason")
_NUMBERED = tuple(name for name in FACTS if name != "started")
# Far beyond every study; a folder has its candidate's number for a name.
_MOST_CANDIDATES = 2**31
_NUMBER_TYPES = {
    name: "int64" if name == "trial" else "float64" for name in COLUMNS if name not in {"off_target", *_TEXT}
}

# A trial whose exact step moved more weights than this did not train at the sparsity that it reports.
OFF_TARGET_SHARE = 0.005


def trial_frame(rows: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """One row a trial, sorted by number: the fixed columns, then the parameters by name.

    A missing number is NaN, a missing text "". `off_target` follows from `moved_share` unless it is given.
    """
    records = [dict(row) for row in rows]
    parameters = sorted({name for row in records for name in row} - set(COLUMNS))
    frame = pd.DataFrame(records, columns=[*COLUMNS, *parameters]).astype(_NUMBER_TYPES)
    off_target = frame["off_target"]
    derived = frame["moved_share"] > OFF_TARGET_SHARE  # False for NaN
    frame["off_target"] = off_target.astype(object).where(off_target.notna(), derived).astype(bool)
    return _with_text(frame).sort_values("trial", kind="stable", ignore_index=True)


def pareto_front(frame: pd.DataFrame, measure: str = "sparsity", *, more_is_better: bool = True) -> pd.DataFrame:
    """The complete trials that no other beats in accuracy and sparsity (or another measure), sorted by it.

    Of trials equal in both, the one with the lowest loss stays, then the earliest.
    """
    known = measured(frame)
    ranked = known[known[measure].abs() < math.inf].sort_values(
        [measure, "accuracy", "loss", "trial"], ascending=[not more_is_better, False, True, True]
    )
    # From the sparsest down, a trial is on the front where it is more accurate than all before it.
    best_before = ranked["accuracy"].cummax().shift(fill_value=-math.inf)
    return ranked[ranked["accuracy"] > best_before].sort_values(measure, ignore_index=True)


def hypervolume(front: pd.DataFrame, *, accuracy: float, sparsity: float) -> float:
    """The area that the front dominates above the reference point (accuracy, sparsity)."""
    above = front[(front["accuracy"] > accuracy) & (front["sparsity"] > sparsity)]
    above = above.sort_values("sparsity", ascending=False)
    heights = above["accuracy"].cummax() - accuracy
    edges = [*above["sparsity"].tolist(), sparsity]
    return math.fsum(
        (right - left) * height for (right, left), height in zip(pairwise(edges), heights.tolist(), strict=True)
    )


def front_area(front: pd.DataFrame, dense_accuracy: float, metric: str = ACCURACY) -> float:
    """The hypervolume that studies report: above five points below the dense network, and three zeros in ten."""
    accuracy, sparsity = area_reference(dense_accuracy, metric)
    return hypervolume(front, accuracy=accuracy, sparsity=sparsity)


def area_reference(dense_accuracy: float, metric: str = ACCURACY) -> tuple[float, float]:
    """The accuracy and sparsity that count for nothing; a point of a metric with a unit is a hundredth of the dense
    network's own value."""
    return dense_accuracy - 0.05 * metric_scale(metric, dense_accuracy), 0.3


def choose(frame: pd.DataFrame, target_sparsity: float, tolerance: float = 0.001) -> int | None:
    """The best complete trial within `tolerance` of the target."""
    finished = measured(frame)
    # The slack is for decimal limits: 0.901 - 0.9 is a little more than 0.001 in binary.
    return best_trial(finished[(finished["sparsity"] - target_sparsity).abs() <= tolerance + 1e-12])


def best_trial(frame: pd.DataFrame) -> int | None:
    """The lowest loss among the most accurate and those that chance may have put below it; ties: earlier.

    Chance is one standard error: of the best accuracy on that many validation `images`, or of another metric what was
    found by bootstrap. Accuracy counts images one by one, the loss weighs all of them: of 21 pairs of networks trained
    for one sparsity on MNIST, the loss told 19 times which was better on the test split, the accuracy 12.
    """
    best = float(frame["accuracy"].max())  # numpy's own would warn where a table has numbers without measure
    if "accuracy_error" in frame and frame["accuracy_error"].notna().any():
        error = frame.loc[frame["accuracy"] == best, "accuracy_error"].fillna(0.0).max()
    else:
        images = frame["images"].fillna(math.inf) if "images" in frame else math.inf
        error = (best * (1.0 - best) / images) ** 0.5
    return _first(frame[frame["accuracy"] >= best - error], {"loss": True, "accuracy": False, "trial": True})


def sparsest(frame: pd.DataFrame, min_accuracy: float) -> int | None:
    """The sparsest complete trial that is accurate enough; ties: higher accuracy, lower loss, then earlier."""
    finished = measured(frame)
    enough = finished[finished["accuracy"] >= min_accuracy]
    return _first(enough, {"sparsity": False, "accuracy": False, "loss": True, "trial": True})


def most_accurate(frame: pd.DataFrame, min_sparsity: float, tolerance: float = 0.001) -> int | None:
    """The best complete trial that is sparse enough."""
    finished = measured(frame)
    return best_trial(finished[finished["sparsity"] >= min_sparsity - tolerance - 1e-12])


def least_of(frame: pd.DataFrame, min_accuracy: float, column: str) -> int | None:
    """Of the complete trials that are accurate enough, the one with the least of something, or the sparsest; ties:
    higher accuracy, lower loss, then earlier."""
    if column == "sparsity":
        return sparsest(frame, min_accuracy)
    finished = measured(frame)
    enough = finished[(finished["accuracy"] >= min_accuracy) & finished[column].notna()] if column in finished else None
    if enough is None:
        return None
    return _first(enough, {column: True, "accuracy": False, "loss": True, "trial": True})


def _first(frame: pd.DataFrame, order: Mapping[str, bool]) -> int | None:
    """The trial that comes first by these columns, each ascending or not."""
    ranked = frame.sort_values(list(order), ascending=list(order.values()))
    return None if ranked.empty else int(ranked["trial"].iloc[0])


def write_csv(frame: pd.DataFrame, path: str | os.PathLike[str]) -> None:
    """Writes the table of trials; a reader sees the old file or the new one, never half of it."""
    # With "\n" alone, a "\r" in a reason (a progress bar's) is left unquoted, and ends the row when read.
    write_text_atomic(path, frame.to_csv(index=False, lineterminator="\r\n"))


def read_csv(path: str | os.PathLike[str]) -> pd.DataFrame:
    """The table that `write_csv` wrote; pandas before 3.1 may return a number's last digit changed."""
    try:
        content = Path(path).read_bytes()
        # Only an empty cell is a missing one: "NA" or "None" may be a parameter's value.
        with np.errstate(invalid="raise"):  # a trial's number that is no whole one would become another
            frame = pd.read_csv(
                io.BytesIO(content),
                keep_default_na=False,
                na_values=[""],
                dtype={**_NUMBER_TYPES, **dict.fromkeys(_TEXT, "str"), "off_target": "bool"},
            )
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, ArithmeticError) as error:  # pandas' parser errors and UnicodeDecodeError are ValueErrors
        raise RunError(f"{path} is no table of trials: {error}") from error
    missing = [name for name in COLUMNS if name not in frame.columns]
    if missing:
        raise RunError(f"{path} is no table of trials: it lacks the column {missing[0]!r}")
    for name in _NUMBERED:
        if name in frame and not pd.api.types.is_numeric_dtype(frame[name]):
            raise RunError(f"{path} is no table of trials: the column {name!r} must hold numbers")
    if "candidate" in frame and not frame["candidate"].dropna().between(0, _MOST_CANDIDATES).all():
        raise RunError(f"{path} is no table of trials: a candidate's number must be between 0 and {_MOST_CANDIDATES:,}")
    return _with_text(frame)


def _with_text(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with "" where a text is missing."""
    return frame.assign(**{name: frame[name].astype(object).fillna("").astype("str") for name in _TEXT})


def measured(frame: pd.DataFrame) -> pd.DataFrame:
    """The complete trials whose two objectives are finite."""
    finite = (frame[["accuracy", "sparsity"]].abs() < math.inf).all(axis=1)  # NaN is not less
    return frame[(frame["state"] == "complete") & finite]


def expected_accuracy(chosen: Mapping[str, Any], metric: str = ACCURACY) -> str:
    """What may be expected of the chosen candidate, in words: one seed alone tells of no spread."""
    mean, spread = format_metric(metric, chosen["accuracy_mean"]), spread_of(chosen, metric)
    return f"{mean} {spread}" if spread.startswith("±") else f"{mean}, {spread}"


def spread_of(chosen: Mapping[str, Any], metric: str = ACCURACY) -> str:
    """How far seeds lie apart, in words."""
    if chosen["seeds"] == 1:
        return "one seed"
    return f"± {format_spread(metric, chosen['accuracy_spread'])} over {chosen['seeds']} seeds"
