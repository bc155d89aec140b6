"""A run folder -> the values of a page. Needs no torch; every file may be missing."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import pandas as pd

from sca_search.config.names import ACCURACY
from sca_search.config.study import StudySpec
from sca_search.errors import RunError
from sca_search.runs.candidates import (
    DISTRIBUTION,
    FEATURES,
    HISTORY,
    RECORD,
    exported_model,
    read_history,
    read_json,
    read_table,
    records_of,
)
from sca_search.runs.choice import Choice
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import chosen_trial
from sca_search.runs.log import CurrentTraining, read_progress
from sca_search.runs.trials import pareto_front, read_csv, trial_frame
from sca_search.system.files import stamp_of

# A page has the details of the trials on the front and of this many of the newest ones.
DETAILED = 50


@dataclass(frozen=True)
class RunFiles:
    """The content of a run folder."""

    run: RunFolder
    spec: StudySpec
    frame: pd.DataFrame
    dense_metric: float | None
    summary: Mapping[str, Any]
    about: Mapping[str, Any]
    closed_form: Mapping[str, Any]
    sensitivity: list[Mapping[str, Any]]
    now: CurrentTraining | None  # the current training, if its heartbeat is recent
    metric: str = ACCURACY  # name of the study's metric

    @cached_property
    def choice(self) -> Choice | None:
        return chosen_trial(self.frame, self.spec.goal, self.metric)

    @cached_property
    def model(self) -> dict[str, Any] | None:
        """The trial that is chosen, with the figures of its exported model; with its own if its files are missing."""
        if self.choice is None:
            return None
        row = next(row for row in self.rows if row["trial"] == self.choice.trial)
        files = read_candidate(self.run, int(row["candidate"])) if "candidate" in row else None
        records = files.records if files else [{"loss": math.inf} | row | {"refit": 0}]
        return row | exported_model(records, row, self.spec.goal, self.metric) | {"reason": self.choice.reason}

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The trials, without missing values."""
        return [
            {str(name): value for name, value in row.items() if not _is_missing(value)}
            for row in self.frame.to_dict("records")
        ]


def read_run(path: Path, clock: float | None = None) -> RunFiles:
    """Read a run folder; RunError if it is not a run folder or if a file is damaged."""
    run = RunFolder(path)
    return RunFiles(
        run=run,
        spec=run.spec(trust=True),  # a page runs no code of the study
        frame=read_csv(run.trials_file) if run.trials_file.is_file() else trial_frame([]),
        dense_metric=_number(read_table(run.dense_scores_file).get("metric")),
        metric=run.metric,
        summary=read_table(run.summary_file),
        about=read_table(run.about_file),
        closed_form=read_table(run.closed_form_file),
        sensitivity=[entry for entry in read_json(run.sensitivity_file, []) if isinstance(entry, dict)],
        now=current_training(path, clock),
    )


def current_training(path: Path, clock: float | None = None) -> CurrentTraining | None:
    """The current training of a run folder; None if there is none, or if its heartbeat stopped."""
    now = read_progress(RunFolder(path).progress_file)
    return now if now is not None and now.is_alive(time.time() if clock is None else clock) else None


def detailed_trials(frame: pd.DataFrame) -> list[int]:
    """Trials whose details are on the page: the front and the newest complete ones."""
    front = {int(trial) for trial in pareto_front(frame)["trial"]}
    complete = [int(trial) for trial in frame.loc[frame["state"] == "complete", "trial"]]
    return sorted(front | set(complete[-DETAILED:]))


@dataclass(frozen=True)
class CandidateFiles:
    """A finished candidate: its record, those of its refits, and its training."""

    records: list[dict[str, Any]]
    history: list[dict[str, Any]]
    snapshots: list[dict[str, Any]]
    features: Mapping[str, Any]


def read_candidate(run: RunFolder, number: int) -> CandidateFiles | None:
    """Files of a candidate; None if they are missing or damaged, so that the others are still shown."""
    folder = run.candidate(number)
    names = [folder / name for name in (RECORD, HISTORY, DISTRIBUTION, FEATURES)]
    stamps = [*names, *sorted(folder.glob(f"refit-*/{RECORD}"))]
    return _read_candidate(run, number, tuple((str(path), stamp_of(path)) for path in stamps))


@lru_cache(maxsize=4096)
def _read_candidate(
    run: RunFolder, number: int, _stamps: tuple[tuple[str, tuple[int, ...]], ...]
) -> CandidateFiles | None:
    """Cached by the stamps of the files: a folder that changed is read again."""
    folder = run.candidate(number)
    try:
        features = read_json(folder / FEATURES, {})
        return CandidateFiles(
            records_of(run, number),
            read_history(folder),
            read_json(folder / DISTRIBUTION, []),
            features if isinstance(features, dict) else {},
        )
    except RunError:
        return None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _is_missing(value: object) -> bool:
    return value is None or value == "" or (isinstance(value, float) and math.isnan(value))
