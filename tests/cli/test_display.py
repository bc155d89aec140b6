"""Lines about trials whose length nobody knows, and about studies that were stopped."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from sca_search.config.study import GoalSpec
from sca_search.errors import StorageError
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
    table = front_table(frame, GoalSpec(target_sparsity=0.25))
    assert list(table.columns[-1].cells) == [""]


def test_a_study_that_was_stopped_has_no_test_figures() -> None:
    chosen: dict[str, Any] = {"trial": 3, "sparsity": 0.5, "metric_mean": 0.9, "metric_spread": 0.0, "seeds": 1}
    summary = {"chosen": chosen, "dense": {"metric": 0.9}}
    (line,) = result_lines(summary)
    assert line.startswith("Chosen: trial 3, sparsity 50.000% counted in the file")


def test_a_database_that_fails_while_a_study_stops_is_a_note(tmp_path: Path) -> None:
    events: list[Event] = []
    error, run = StorageError("the database is gone"), RunFolder(tmp_path)
    assert _stopped_by(error, run, events.append, StopWhen(lambda: True)).stopped
    assert events == [Note("the database is gone")]
    with pytest.raises(StorageError, match="is gone"):
        _stopped_by(error, run, events.append, NEVER)
