"""A run folder -> what a page is made of, as values; nothing here needs torch, and everything may be missing."""

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
    read_history,
    read_json,
    read_table,
    records_of,
)
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import chosen_trial
from sca_search.runs.log import Now, read_now
from sca_search.runs.trials import pareto_front, read_csv, trial_frame
from sca_search.system.files import stamp_of

# Of longer studies a page keeps details for the front and so many of the newest trials.
DETAILED = 50


@dataclass(frozen=True)
class RunFiles:
    """One run as its files tell it."""

    run: RunFolder
    spec: StudySpec
    frame: pd.DataFrame
    dense_accuracy: float | None
    summary: Mapping[str, Any]
    about: Mapping[str, Any]
    prior: Mapping[str, Any]
    closed_form: Mapping[str, Any]
    sensitivity: list[Mapping[str, Any]]
    now: Now | None  # a sign of life that is young enough
    metric: str = ACCURACY  # the name of what the tables call accuracy

    @cached_property
    def chosen(self) -> int | None:
        return chosen_trial(self.frame, self.spec.goal, self.metric)

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The trials, without what they do not tell."""
        return [
            {str(name): value for name, value in row.items() if not _is_missing(value)}
            for row in self.frame.to_dict("records")
        ]


def read_run(path: Path, clock: float | None = None) -> RunFiles:
    """Reads a run folder. Raises RunError where it is none, or where a file is damaged."""
    run = RunFolder(path)
    now = read_now(run.progress_file)
    return RunFiles(
        run=run,
        spec=run.spec(),
        frame=read_csv(run.trials_file) if run.trials_file.is_file() else trial_frame([]),
        dense_accuracy=_number(read_table(run.dense_scores_file).get("accuracy")),
        metric=run.metric,
        summary=read_table(run.summary_file),
        about=read_table(run.about_file),
        prior=read_table(run.prior_file),
        closed_form=read_table(run.closed_form_file),
        sensitivity=[entry for entry in read_json(run.sensitivity_file, []) if isinstance(entry, dict)],
        now=now if now is not None and now.is_alive(time.time() if clock is None else clock) else None,
    )


def detailed_trials(frame: pd.DataFrame) -> list[int]:
    """The trials whose details a page keeps: the front and the newest complete ones."""
    front = {int(trial) for trial in pareto_front(frame)["trial"]}
    complete = [int(trial) for trial in frame.loc[frame["state"] == "complete", "trial"]]
    return sorted(front | set(complete[-DETAILED:]))


@dataclass(frozen=True)
class CandidateFiles:
    """A finished candidate: its record, those of its refits, and what was kept of its training."""

    records: list[dict[str, Any]]
    history: list[dict[str, Any]]
    snapshots: list[dict[str, Any]]
    features: Mapping[str, Any]


def read_candidate(run: RunFolder, number: int) -> CandidateFiles | None:
    """A candidate's files, None where they are missing or damaged: one bad folder is no reason to show nothing."""
    folder = run.candidate(number)
    names = [folder / name for name in (RECORD, HISTORY, DISTRIBUTION, FEATURES)]
    stamps = [*names, *sorted(folder.glob(f"refit-*/{RECORD}"))]
    return _read_candidate(run, number, tuple((str(path), stamp_of(path)) for path in stamps))


@lru_cache(maxsize=4096)
def _read_candidate(
    run: RunFolder, number: int, _stamps: tuple[tuple[str, tuple[int, ...]], ...]
) -> CandidateFiles | None:
    """The stamps are only there so that a folder that changed is read again."""
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
