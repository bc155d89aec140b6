"""Study files and flags -> a validated StudySpec.

Flags override the file, the file overrides the defaults. All errors are reported at once, before anything is written.
"""

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from sca_search.config.costs import BUDGETS
from sca_search.config.messages import format_value, sentence
from sca_search.config.references import file_of
from sca_search.config.study import GOALS, StudySpec
from sca_search.errors import SpecError
from sca_search.system.console import holds_password, scrub
from sca_search.system.files import require_regular

# Keys that may differ when a study is resumed or joined: they set its length and where it runs, not its results.
MAY_CHANGE = (
    "name",
    "out",
    "data.dir",
    "search.trials",
    "search.time_budget",
    "search.workers",
    "search.threads",
    "search.heartbeat",
    "search.checkpoint_every",
    "search.trial_time",
    "search.trial_memory_gb",
    "search.refits",
)
_MAX_DOTS = 100


@dataclass(frozen=True)
class Flag:
    """A command-line flag of a study key."""

    key: str
    field: FieldInfo

    @property
    def help(self) -> str:
        """The description with the default value, unless it names one."""
        text, default = self.field.description or "", self.field.default
        has_none = default is None or default is False or default == () or "Default" in text
        shown = f"{default:g}" if isinstance(default, float) else default
        return text if has_none else f"{text} Default: {'on' if default is True else shown}."


def _find_flags(table: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, Flag]]:
    own: list[tuple[str, Flag]] = []
    for name, field in table.model_fields.items():
        if isinstance(field.default, BaseModel):
            yield from _find_flags(type(field.default), f"{prefix}{name}.")
        elif isinstance(field.json_schema_extra, dict):
            own.append((str(field.json_schema_extra["flag"] or name), Flag(prefix + name, field)))
    yield from own


STUDY_FLAGS = dict(_find_flags(StudySpec))
FLAGS = {name: flag.key for name, flag in STUDY_FLAGS.items()}
"""Flag -> key in the study file. An error in a flag is reported under the name of the flag."""


def resolve(study_file: Path | None, flags: Mapping[str, object], *, trust: bool = False) -> StudySpec:
    """The spec of a study file and flags; a flag of None is not set. Code that the file names needs `trust`."""
    values = read_toml(study_file) if study_file else {}
    given = {flag: value for flag, value in flags.items() if value is not None}
    if isinstance(values.get("goal"), dict):  # a goal replaces all of the file's, a budget only the front
        replaced = GOALS if given.keys() & {*GOALS} else ("front",) if given.keys() & {*BUDGETS} else ()
        values["goal"] = {key: value for key, value in values["goal"].items() if key not in replaced}
    for flag, value in given.items():
        _put(values, FLAGS[flag].split("."), value)
    by_flag = {FLAGS[flag]: f"--{flag.replace('_', '-')}" for flag in given}
    where = str(study_file) if study_file else "the command line"
    _check_no_passwords(values, where)
    try:
        spec = StudySpec.model_validate(values)
    except ValidationError as error:
        sentences = [sentence(each, where, by_flag, StudySpec) for each in error.errors()]
        raise SpecError("\n".join(dict.fromkeys(sentences))) from error
    if not trust:
        require_trust(where, {key: name for key, name in spec.references.items() if key not in by_flag})
    return spec


def require_trust(where: str, references: Mapping[str, str]) -> None:
    """SpecError for code that a study names which somebody else may have written; flags are the user's own."""
    sentences = [
        f"{where}: {key} names code, {format_value(name)}, which would run here from "
        f"{file_of(name) or 'a file that does not exist'}; if you trust it, add --trust (in Python, trust=True)"
        for key, name in references.items()
    ]
    if sentences:
        raise SpecError("\n".join(sentences))


def _check_no_passwords(values: Mapping[str, Any], where: str) -> None:
    """Reject an address with a password in any key, before other messages quote it or the spec is written to a file."""
    queue: list[tuple[str, object]] = [("a key", list(values)), *values.items()]
    while queue:  # not recursive: a spec from a database may nest tables deeper than the call stack
        key, value = queue.pop()
        if isinstance(value, dict):
            queue += [(key, list(value)), *((f"{key}.{name}", each) for name, each in value.items())]
        elif isinstance(value, list | tuple):
            queue += [(key, each) for each in value]
        elif isinstance(value, str | Path) and holds_password(str(value)):
            shown = scrub(str(value))
            raise SpecError(f"{where}: {key} must not be an address with a password, got {shown!r}")


def read_toml(path: Path) -> dict[str, Any]:
    """Read a study file as a table."""
    require_regular(path, SpecError, ".toml")
    try:
        text = path.read_text(encoding="utf-8")
        # Time and memory of Python's parser grow with the square of the number of parts of a key.
        if max(part.count(".") for part in re.split(r"[\n,=\[\]{}]", text)) > _MAX_DOTS:
            raise SpecError(f"{path}: a key must have at most {_MAX_DOTS} parts between dots")
        return tomllib.loads(text)
    except FileNotFoundError as error:
        raise SpecError(f"{path}: there is no such study file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read as a study file: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path}: is not valid TOML: {error}") from error
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path}: a number has thousands of digits, or tables are nested too deeply") from error


def differences(ours: StudySpec, theirs: StudySpec) -> list[str]:
    """The keys in which two studies differ, apart from those that may change when a study continues."""
    mine, other = flat_keys(ours.model_dump(mode="json")), flat_keys(theirs.model_dump(mode="json"))
    keys = sorted(mine.keys() | other.keys())
    return [key for key in keys if mine.get(key) != other.get(key) and key not in MAY_CHANGE]


def flat_keys(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested tables by dotted key."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flat_keys(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _put(values: dict[str, Any], path: list[str], value: object) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
        if not isinstance(values, dict):
            return  # not a table: validation reports it with all other errors
    values[path[-1]] = value
