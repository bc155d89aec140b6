"""The page as a file: written anew while a study runs, as often as its length allows."""

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from plotly.offline import get_plotlyjs

from sca_search.dashboard.document import study_document
from sca_search.dashboard.page import render_page
from sca_search.dashboard.read import read_run
from sca_search.runs.damage import damage_refused
from sca_search.runs.folder import RunFolder
from sca_search.study.events import Event, StudyEnded, StudyStarted, TrialEnded
from sca_search.system.files import write_text_atomic
from sca_search.system.throttle import Throttle

# A page of a thousand trials takes a second to make; a study should not spend its time on that.
_SHARE_OF_TIME = 0.02
SHARED_PLOTLY = "plotly.min.js"


def write_page(path: str | os.PathLike[str], runs: Sequence[Path], *, share_plotly: bool = False) -> None:
    """The page of one run, or of several beside each other; a browser that reloads sees the old one or the new one.

    With `share_plotly`, plotly.js lies beside the page, for folders of several pages.
    """
    documents = [document_of(run) for run in runs]
    if share_plotly:
        write_text_atomic(Path(path).parent / SHARED_PLOTLY, get_plotlyjs())
    write_text_atomic(path, render_page(documents, plotly_file=SHARED_PLOTLY if share_plotly else None))


def document_of(run: Path) -> dict[str, Any]:
    """The document of a run folder, which somebody else may have made."""
    with damage_refused(run, "shown"):
        return study_document(read_run(run))


class PageWriter:
    """Writes the page of a running study: at its start, at its end, and after trials if rendering would not slow the
    study down. A study listener."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._pace = Throttle(_SHARE_OF_TIME, clock)
        self._run: RunFolder | None = None

    def on_event(self, event: Event) -> None:
        match event:
            case StudyStarted(run=run):
                self._run = run
                self._pace.run(self._write)
            case TrialEnded():
                self._pace.run_if_due(self._write)
            case StudyEnded():
                self._pace.run(self._write)

    def _write(self) -> None:
        assert self._run is not None
        write_page(self._run.dashboard_file, [self._run.path])
