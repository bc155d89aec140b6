"""Lines about trials whose length nobody knows, and about studies that were stopped."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sca_search.errors import StorageError
from sca_search.runs.choice import Choice
from sca_search.runs.folder import RunFolder
from sca_search.study.events import Event, Note
from sca_search.study.progress import _trial_line, front_table, result_lines
from sca_search.study.session import _stopped_by
from sca_search.system.signals import NEVER, StopWhen

COMPLETE = {"trial": 3, "state": "complete", "metric": 0.5, "sparsity": 0.25, "adjusted_fraction": 0.0}


@pytest.mark.parametrize(("seconds", "end"), [(1.25, "(adjusted 0.000%) · 1.2 s"), (None, "(adjusted 0.000%)")])
def test_a_trial_under_which_the_clock_was_moved_has_no_length(seconds: float | None, end: str) -> None:
    assert str(_trial_line({**COMPLETE, "seconds": seconds}, 1, 2)).endswith(end)


def test_the_front_is_shown_where_a_trial_has_no_length() -> None:
    frame = pd.DataFrame([{**COMPLETE, "rounded_metric": 0.5, "loss": 1.0, "seconds": math.nan}])
    table = front_table(frame, Choice(3, "the only eligible trial"))
    assert list(table.columns[-1].cells) == [""]


@pytest.mark.parametrize(
    ("chosen", "marks", "trials"),
    [
        (3, ["→ chosen", ""], ["3", "5"]),
        (4, ["", "", "→ chosen,\n  not on front"], ["3", "5", "4"]),
        (None, ["", ""], ["3", "5"]),
    ],
)
def test_a_chosen_trial_that_is_not_on_the_front_has_its_own_row(
    chosen: int | None, marks: list[str], trials: list[str]
) -> None:
    points = ((3, 0.25, 0.9), (4, 0.25, 0.8), (5, 0.5, 0.7))
    rows = [COMPLETE | {"trial": trial, "sparsity": sparsity, "metric": value} for trial, sparsity, value in points]
    frame = pd.DataFrame([row | {"rounded_metric": 0.5, "loss": 1.0, "seconds": 1.0} for row in rows])
    table = front_table(frame, None if chosen is None else Choice(chosen, "lower loss"))
    assert list(table.columns[0].cells) == marks
    assert list(table.columns[1].cells) == trials
    assert [row.end_section for row in table.rows] == [False, len(trials) == 3, False][: len(trials)]


CHOICE = Choice(3, "tied with trial 2 within noise (0.4 points); lower validation loss")
CHOSEN: dict[str, Any] = {"trial": 3, "sparsity": 0.5, "refit": None, "metric": 0.9, "reason": CHOICE.reason}
NO_REFIT = {"refits": 0, "refit_mean": None, "refit_std": None}


def test_a_study_that_was_stopped_has_no_test_figures() -> None:
    summary = {"chosen": CHOSEN | NO_REFIT, "dense": {"metric": 0.9}}
    assert result_lines(summary, CHOICE) == [
        f"Chosen: trial 3, sparsity 50.000%, validation 90.00% — {CHOICE.reason}",
        "Refits: no refit",
    ]


def test_the_figure_of_the_chosen_model_is_its_own_and_the_expected_one_that_of_the_refits() -> None:
    refits = {"refit": 1, "metric": 0.9963, "refits": 2, "refit_mean": 0.9941, "refit_std": 0.0021}
    summary = {"chosen": CHOSEN | refits, "dense": {"metric": 0.9}}
    assert result_lines(summary, CHOICE) == [
        f"Chosen: trial 3 (refit 1), sparsity 50.000%, validation 99.63% — {CHOICE.reason}",
        "Refits: 99.41% ± 0.21% over 2 seeds",
    ]


@pytest.mark.parametrize("chosen", [None, CHOSEN | NO_REFIT | {"trial": 2}, CHOSEN])
def test_a_trial_that_is_chosen_later_than_the_summary_is_shown_with_its_reason(chosen: dict[str, Any] | None) -> None:
    summary = {"chosen": chosen, "dense": {"metric": 0.9}}
    assert result_lines(summary, CHOICE) == [f"Chosen so far: trial 3 — {CHOICE.reason}"]
    assert result_lines(summary, None) == []


def test_a_database_that_fails_while_a_study_stops_is_a_note(tmp_path: Path) -> None:
    events: list[Event] = []
    error, run = StorageError("the database is gone"), RunFolder(tmp_path)
    assert _stopped_by(error, run, events.append, StopWhen(lambda: True)).stopped
    assert events == [Note("the database is gone")]
    with pytest.raises(StorageError, match="is gone"):
        _stopped_by(error, run, events.append, NEVER)
