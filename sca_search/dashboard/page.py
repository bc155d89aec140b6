"""Documents -> one HTML file that opens offline, with plotly.js, style, script and values inside.

A running study rewrites its page at intervals that depend on the time for rendering it.
"""

import base64
import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from sca_search.dashboard.document import study_document
from sca_search.dashboard.read import read_run
from sca_search.runs.folder import RunFolder
from sca_search.runs.integrity import damage_as_run_error
from sca_search.study.events import Event, StudyEnded, StudyStarted, Throttle, TrialEnded
from sca_search.system.files import write_text_atomic
from sca_search.system.machine import versions

# Writing a page of a thousand trials takes a second, so it is limited to a fraction of the study's time.
_FRACTION_OF_TIME = 0.02
SHARED_PLOTLY = "plotly.min.js"
_MAX_NAMES = 4  # in a heading
_CHECKOUT = Path(__file__).parents[2] / "dashboards" / "template"
# Concatenated in this order: each file uses those before it.
SCRIPTS = (
    "values.js",
    "theme.js",
    "figures.js",
    "front.js",
    "layers.js",
    "epochs.js",
    "trial.js",
    "prior.js",
    "study.js",
    "choices.js",
    "features.js",
    "table.js",
    "compare.js",
    "live.js",
    "main.js",
)


def write_page(path: str | os.PathLike[str], runs: Sequence[Path], *, share_plotly: bool = False) -> None:
    """Write the page of one run, or of several side by side, atomically.

    With `share_plotly`, plotly.js is a file next to the page, for folders with several pages.
    """
    documents = [document_of(run) for run in runs]
    if share_plotly:
        write_text_atomic(Path(path).parent / SHARED_PLOTLY, get_plotlyjs())
    write_text_atomic(path, render_page(documents, plotly_file=SHARED_PLOTLY if share_plotly else None))


def document_of(run: Path) -> dict[str, Any]:
    """The document of a run folder, which may be untrusted."""
    with damage_as_run_error(run, "shown"):
        return study_document(read_run(run))


class PageWriter:
    """Writes the page of a running study: at its start, at its end, and after trials if rendering would not slow the
    study down. A study listener."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._throttle = Throttle(_FRACTION_OF_TIME, clock)
        self._run: RunFolder | None = None

    def on_event(self, event: Event) -> None:
        match event:
            case StudyStarted(run=run):
                self._run = run
                self._throttle.run(self._write)
            case TrialEnded():
                self._throttle.run_if_due(self._write)
            case StudyEnded():
                self._throttle.run(self._write)

    def _write(self) -> None:
        assert self._run is not None
        write_page(self._run.dashboard_file, [self._run.path])


def render_page(
    documents: Sequence[dict[str, Any]], *, live: dict[str, Any] | None = None, plotly_file: str | None = None
) -> str:
    """The whole page as text; names that users chose are escaped, and only our own scripts may run.

    `live` holds what the page of a server needs; `plotly_file` names a copy of plotly.js next to the page.
    """
    parts = "\n".join(_template(name) for name in SCRIPTS)
    script = f'\n"use strict";\n(() => {{\n{parts}}})();\n'
    plotly = "" if plotly_file else get_plotlyjs()
    names = [str(document["name"]) for document in documents]
    title = " · ".join(names) if len(names) <= _MAX_NAMES else f"{names[0]} and {len(names) - 1} others"
    lead = documents[0]["lead"] if len(names) == 1 else f"{len(names)} studies side by side."
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")  # so that readers see how old the page is
    return Template(_template("page.html")).substitute(
        policy=_policy([script, plotly], live is not None, plotly_file),
        title=escape(title),
        lead=escape(lead),
        style=_template("style.css"),
        plotly=f'<script src="{escape(plotly_file)}"></script>' if plotly_file else f"<script>{plotly}</script>",
        data=embedded({"studies": list(documents), "live": live}),
        script=script,
        made=escape(f"Made by sca-search {versions()['sca-search']}, {now}."),
    )


def embedded(value: Any) -> str:
    """JSON that cannot end the script element around it or start another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(scripts: Sequence[str], is_live: bool, plotly_file: str | None) -> str:
    """Only our own scripts run, by their hash; plotly sets styles; nothing is fetched."""
    allowed = " ".join(_source(script) for script in scripts if script) + (" 'self' file:" if plotly_file else "")
    fetched = "; connect-src 'self'" if is_live else ""
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'{fetched}"
    )


@lru_cache(maxsize=4)
def _source(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _template(name: str) -> str:
    """A file of the template: in the installed package, else in the source checkout."""
    packaged = resources.files("sca_search.dashboard") / "template" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (_CHECKOUT / name).read_text(encoding="utf-8")
