"""A spec as a study file with a comment on every line; read back, it is the same spec."""

from collections.abc import Collection, Mapping
from typing import Any

import tomli_w

from sca_search.config.load import flat_keys
from sca_search.config.study import StudySpec

_COMMENT_COLUMN = 32


def commented_toml(spec: StudySpec, shown: Collection[str], notes: Mapping[str, str], heading: str) -> str:
    """The keys to show, those with a note and those that differ from the defaults, each with its description."""
    defaults = flat_keys(StudySpec().model_dump(mode="json"))
    values = flat_keys(spec.model_dump(mode="json", exclude_none=True))
    lines = [f"# {line}" if line else "#" for line in heading.splitlines()]
    table = ""
    for key, value in sorted(values.items(), key=lambda item: _order(item[0])):
        if key not in shown and key not in notes and value == defaults.get(key):
            continue
        here, _, name = key.rpartition(".")
        if here != table:
            lines += ["", f"[{here}]"]
            table = here
        comment = "; ".join(part for part in (_description(key), notes.get(key)) if part)
        setting = " ".join(part.strip() for part in tomli_w.dumps({name: value}).splitlines())  # a list on one line
        lines.append(f"{setting:<{_COMMENT_COLUMN}}  # {comment or 'as requested'}")
    return "\n".join(lines) + "\n"


def _description(key: str) -> str:
    """The first sentence of a setting's description; nothing for keys inside a recipe, a schedule or the trainer."""
    table: Any = StudySpec
    *tables, name = key.split(".")
    for each in tables:
        table = type(field.default) if (field := table.model_fields.get(each)) else None
        if not hasattr(table, "model_fields"):
            return ""
    return (table.model_fields[name].description or "").partition(". ")[0].rstrip(".")


def _order(key: str) -> tuple[str, ...]:
    """Top-level keys come before tables, as TOML requires; tables in the order of the spec."""
    top, _, below = key.rpartition(".")[0].partition(".")
    return ("" if not top else f"{list(StudySpec.model_fields).index(top):02d}", below)
