"""A cache of what is computed from a run's undamaged table of trials and study file, for fuzzing the files beside them.

Nine tenths of the time of a dashboard page are spent on its table of trials. A hundred thousand pages, each with
another damaged file, would take half an hour per kind of file and compute the same values from the same table.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
from optuna.storages._rdb.storage import _VersionManager

from sca_search.config.study import StudySpec
from sca_search.dashboard import document as study_data
from sca_search.dashboard import read as reading
from sca_search.dashboard.read import RunFiles, read_run
from sca_search.export import run as export_run
from sca_search.runs import folder as run_folder
from sca_search.runs import goal
from sca_search.runs import trials as results
from sca_search.study import progress as display

# Functions of a table of trials, or of its rows, where they are looked up.
_OF_TABLES = (
    (reading, "chosen_trial"),
    *((study_data, name) for name in ("detailed_trials", "fronts", "growth", "importance", "parallel", "timeline")),
    *((display, name) for name in ("chosen_trial", "pareto_front")),
    *((goal, "chosen_trial"), (results, "pareto_front")),  # as `show` looks them up
    *((display, name) for name in ("front_table", "better_lines")),
)
_READERS = (results, reading, export_run)
_MOST = 2000  # cached values


class AnswerCache:
    """Caches the values of one table."""

    def __init__(self, run: Path) -> None:
        files = read_run(run)
        self._content = files.run.trials_file.read_bytes()
        self._frame, self._rows = files.frame, files.rows
        self._known: dict[str, Any] = {}
        self._study, self._spec = files.run.spec_file.read_bytes(), files.spec
        self._read, self._table, self._made_rows = results.read_csv, study_data._table, RunFiles.rows.func
        self._resolved, self._pictured = run_folder.resolve, study_data.page_features
        self._instead: list[tuple[Any, str, Any]] = [
            *((module, "read_csv", self._read_csv) for module in _READERS),
            *((module, name, self._cached(getattr(module, name))) for module, name in _OF_TABLES),
            (run_folder, "resolve", self._resolve),
            (study_data, "_table", self._page_table),
            (study_data, "page_features", self._features),
            (RunFiles, "rows", property(self._rows_of)),
            # A fact of Optuna's package, for which it runs all its scripts of older databases: half of the time in
            # which a study is opened.
            (_VersionManager, "get_head_version", self._cached_method(_VersionManager.get_head_version)),
        ]

    @contextmanager
    def used(self) -> Iterator[None]:
        """Within the context, each value is computed once."""
        before = [(module, name, vars(module)[name]) for module, name, _ in self._instead]
        for module, name, own in self._instead:
            setattr(module, name, own)
        try:
            yield
        finally:
            for module, name, usual in before:
                setattr(module, name, usual)

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

    def _cached(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(about: Any, *more: Any) -> Any:
            if about is not self._frame and about is not self._rows:
                return function(about, *more)
            return self._answer(f"{function.__name__} {more!r}", lambda: function(about, *more))

        return ask

    def _cached_method(self, method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """A method whose answer is the same for every object."""
        return lambda one: self._answer(method.__qualname__, lambda: method(one))

    def _answer(self, question: str, compute: Callable[[], Any]) -> Any:
        if len(self._known) > _MOST:
            self._known.clear()
        if question not in self._known:
            self._known[question] = compute()
        return self._known[question]
