"""A spec as a study file with a comment on every line; read back, it is the same spec."""

from collections.abc import Mapping
from typing import Any

import tomli_w

from sca_search.config.load import flat_keys
from sca_search.config.study import StudySpec

_COMMENT_COLUMN = 32


def commented_toml(spec: StudySpec, comments: Mapping[str, str], heading: str) -> str:
    """The keys that have a comment or differ from the defaults, as TOML."""
    defaults = flat_keys(StudySpec().model_dump(mode="json"))
    values = flat_keys(spec.model_dump(mode="json", exclude_none=True))
    shown = {key: value for key, value in values.items() if key in comments or value != defaults.get(key)}
    lines = [f"# {line}" if line else "#" for line in heading.splitlines()]
    table = ""
    for key, value in sorted(shown.items(), key=lambda item: _order(item[0])):
        here, _, name = key.rpartition(".")
        if here != table:
            lines += ["", f"[{here}]"]
            table = here
        lines.append(_line(name, value, comments.get(key, "as requested")))
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, comment: str) -> str:
    setting = " ".join(part.strip() for part in tomli_w.dumps({name: value}).splitlines())  # a list on one line
    return f"{setting:<{_COMMENT_COLUMN}}  # {comment}"


def _order(key: str) -> tuple[str, ...]:
    """Top-level keys come before tables, as TOML requires; tables in the order of the spec."""
    top, _, below = key.rpartition(".")[0].partition(".")
    return ("" if not top else f"{list(StudySpec.model_fields).index(top):02d}", below)
