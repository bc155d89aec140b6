"""Documents -> one HTML file that opens without a network: plotly.js, style, script and values inside."""

import base64
import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from html import escape
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from plotly.offline import get_plotlyjs

from sca_search.system.versions import versions

# Names that a heading may hold.
_MOST_NAMES = 4
_CHECKOUT = Path(__file__).parents[2] / "dashboards" / "template"
# In this order, as one script: each uses those before it.
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


def render_page(
    documents: Sequence[dict[str, Any]], *, live: dict[str, Any] | None = None, plotly_file: str | None = None
) -> str:
    """The whole page as text; what a user could have named is escaped, and only our own scripts may run.

    `live` is what the page of a server must know; `plotly_file` names a copy of plotly.js beside the page, for several
    pages that share it.
    """
    script = _script()
    plotly = "" if plotly_file else get_plotlyjs()
    names = [str(document["name"]) for document in documents]
    title, lead = _title(names), documents[0]["lead"]
    if len(documents) > 1:
        lead = f"{len(documents)} studies beside each other."
    return Template(_template("page.html")).substitute(
        policy=_policy([script, plotly], live is not None, plotly_file),
        title=escape(title),
        lead=escape(lead),
        style=_template("style.css"),
        plotly=f'<script src="{escape(plotly_file)}"></script>' if plotly_file else f"<script>{plotly}</script>",
        data=embedded({"studies": list(documents), "live": live}),
        script=script,
        made=escape(_made()),
    )


def _title(names: Sequence[str]) -> str:
    """The studies' names, as long as a line may hold them."""
    return " · ".join(names) if len(names) <= _MOST_NAMES else f"{names[0]} and {len(names) - 1} others"


def _made() -> str:
    """A page of a running study is soon old; whoever gets it should see how old."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    return f"Made by sca-search {versions()['sca-search']}, {now}."


def embedded(value: Any) -> str:
    """JSON that cannot end the script element around it, nor begin another."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _policy(scripts: Sequence[str], is_live: bool, plotly_file: str | None) -> str:
    """Only the scripts written here run, by their hash; plotly sets styles of its own; nothing is fetched."""
    allowed = " ".join(_source(script) for script in scripts if script)
    beside = " 'self' file:" if plotly_file else ""
    fetched = "; connect-src 'self'" if is_live else ""
    return (
        f"default-src 'none'; script-src {allowed}{beside}; style-src 'unsafe-inline'; img-src data: blob:; "
        f"base-uri 'none'; form-action 'none'{fetched}"
    )


@lru_cache(maxsize=4)
def _source(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _script() -> str:
    parts = "\n".join(_template(name) for name in SCRIPTS)
    return f'\n"use strict";\n(() => {{\n{parts}}})();\n'


def _template(name: str) -> str:
    """A file of the template: inside an installed package, else in the checkout around this file."""
    packaged = resources.files("sca_search.dashboard") / "template" / name
    if packaged.is_file():
        return packaged.read_text(encoding="utf-8")
    return (_CHECKOUT / name).read_text(encoding="utf-8")
