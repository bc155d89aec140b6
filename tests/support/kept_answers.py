"""Answers about a run's good table of trials and good study file, kept: a bad file beside them leaves them as they are.

Nine tenths of the time that a page takes go into its table of trials. A hundred thousand pages, each with another bad
file, would take half an hour for every kind of file, and ask the same of the same table again and again.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from optuna.storages._rdb.storage import _VersionManager

from sca_search.cli import json_output as answers
from sca_search.config.study import StudySpec
from sca_search.dashboard import document as study_data
from sca_search.dashboard import read as reading
from sca_search.dashboard.read import RunFiles, read_run
from sca_search.export import run as export_run
from sca_search.runs import folder as run_folder
from sca_search.runs import trials as results
from sca_search.study import progress as display

# Functions of a table of trials, or of its rows, where they are looked up.
_OF_TABLES = (
    (reading, "chosen_trial"),
    *((study_data, name) for name in ("detailed_trials", "fronts", "growth", "importance", "parallel", "timeline")),
    *((room, name) for room in (answers, display) for name in ("chosen_trial", "pareto_front")),
    *((display, name) for name in ("front_table", "better_lines")),
)
_READERS = (results, answers, reading, export_run)
_MOST = 2000  # answers that are kept


class KeptAnswers:
    """What was asked of one table."""

    def __init__(self, run: Path) -> None:
        files = read_run(run)
        self._content = files.run.trials_file.read_bytes()
        self._frame, self._rows = files.frame, files.rows
        self._known: dict[str, Any] = {}
        self._study, self._spec = files.run.spec_file.read_bytes(), files.spec
        self._read, self._table, self._made_rows = results.read_csv, study_data._table, RunFiles.rows.func
        self._resolved, self._pictured = run_folder.resolve, study_data.page_features
        self._instead: list[tuple[Any, str, Any]] = [
            *((room, "read_csv", self._read_csv) for room in _READERS),
            *((room, name, self._asking(getattr(room, name))) for room, name in _OF_TABLES),
            (run_folder, "resolve", self._resolve),
            (study_data, "_table", self._page_table),
            (study_data, "page_features", self._features),
            (RunFiles, "rows", property(self._rows_of)),
            # A fact of Optuna's package, for which it runs all its scripts of older databases: half of the time in
            # which a study is opened.
            (_VersionManager, "get_head_version", self._kept_method(_VersionManager.get_head_version)),
        ]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within it, what was asked of them before is not worked out again."""
        before = [(room, name, vars(room)[name]) for room, name, _ in self._instead]
        for room, name, own in self._instead:
            setattr(room, name, own)
        try:
            yield
        finally:
            for room, name, usual in before:
                setattr(room, name, usual)

    def _resolve(self, study_file: Path, flags: dict[str, object]) -> StudySpec:
        return self._spec if study_file.read_bytes() == self._study and not flags else self._resolved(study_file, flags)

    def _features(self, features: dict[str, Any]) -> Any:
        return self._answer(repr(features), lambda: self._pictured(features))

    def _read_csv(self, path: Path) -> pd.DataFrame:
        return self._frame if path.read_bytes() == self._content else self._read(path)

    def _rows_of(self, files: RunFiles) -> list[dict[str, Any]]:
        return self._rows if files.frame is self._frame else self._made_rows(files)

    def _page_table(self, files: RunFiles, names: list[str]) -> Any:
        if files.frame is not self._frame:
            return self._table(files, names)
        return self._answer(f"table {names}", lambda: self._table(files, names))

    def _asking(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(about: Any, *more: Any) -> Any:
            if about is not self._frame and about is not self._rows:
                return function(about, *more)
            return self._answer(f"{function.__name__} {more!r}", lambda: function(about, *more))

        return ask

    def _kept_method(self, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A method whose answer is the same for every object."""
        return lambda one: self._answer(method.__qualname__, lambda: method(one))

    def _answer(self, question: str, work_out: Callable[[], Any]) -> Any:
        if len(self._known) > _MOST:
            self._known.clear()
        if question not in self._known:
            self._known[question] = work_out()
        return self._known[question]
