"""A spec as a study file with a comment on every line that says why; read back, it is the same spec."""

from collections.abc import Mapping
from typing import Any

import tomli_w

from sca_search.spec import StudySpec

_COMMENT_COLUMN = 32


def study_text(spec: StudySpec, reasons: Mapping[str, str], heading: str) -> str:
    """What has a reason, and what differs from the defaults, since somebody asked for it."""
    usual = _flat(StudySpec().model_dump(mode="json"))
    values = _flat(spec.model_dump(mode="json", exclude_none=True))
    kept = {key: value for key, value in values.items() if key in reasons or value != usual.get(key)}
    lines = [f"# {line}" if line else "#" for line in heading.splitlines()]
    table = ""
    for key, value in sorted(kept.items(), key=lambda item: _place(item[0])):
        here, _, name = key.rpartition(".")
        if here != table:
            lines += ["", f"[{here}]"]
            table = here
        lines.append(_line(name, value, reasons.get(key, "as asked")))
    return "\n".join(lines) + "\n"


def _line(name: str, value: Any, why: str) -> str:
    given = " ".join(part.strip() for part in tomli_w.dumps({name: value}).splitlines())  # a list on one line
    return f"{given:<{_COMMENT_COLUMN}}  # {why}"


def _place(key: str) -> tuple[str, ...]:
    """Keys of the study itself come before its tables, as TOML wants it; tables in the spec's order."""
    table, _, _ = key.rpartition(".")
    order = list(StudySpec.model_fields)
    top, _, below = table.partition(".")
    return ("" if not table else f"{order.index(top):02d}", below)


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat
