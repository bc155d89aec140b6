"""A study's database, looked through before Optuna opens it: a run folder may come from somebody else.

A database can hold more than rows: triggers and views are programs that run when a table is read or written. And each
trial has facts of ours, as JSON, from which folders are named and plans are made.
"""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sca_search.errors import RunError

# Steps of SQLite's machine, in thousands: a thousand trials take about a thousandth of it.
_MOST_STEPS = 1_000_000
_Share = Annotated[float, Field(strict=True, ge=0, le=1)]


class _Observed(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    layer: str
    asked: _Share
    reached: _Share
    strength: Annotated[float, Field(strict=True, ge=0)]


class _Facts(BaseModel):
    """What a study goes on from; all else is only shown."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    candidate: Annotated[int, Field(strict=True, ge=0, lt=10**9)]
    planned_sparsity: _Share | None = None
    split: dict[str, _Share] | None = None
    asked: dict[str, _Share] | None = None
    observed: list[_Observed] = []


def require_sound(path: Path) -> None:
    """RunError unless the database, where there is one, is whole and holds trials of ours and nothing that runs."""
    if not path.exists():
        return
    try:
        # Not read-only: what a killed process left half-written is taken back here.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=60.0)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.set_progress_handler(_give_up_after(_MOST_STEPS), 1000)
            _require_rows_alone(database)
            _require_whole(database)
            for trial, facts in _facts_by_trial(database) if _has_trials(database) else ():
                _require_facts(trial, facts)
    except (sqlite3.Error, sqlite3.Warning, OSError, ValueError, OverflowError, RecursionError) as error:
        raise RunError(f"{path}: is no database of a study that can be read: {str(error)[:300]}") from error


def _give_up_after(steps: int) -> Any:
    left = iter(range(steps))
    return lambda: int(next(left, None) is None)


def _require_rows_alone(database: sqlite3.Connection) -> None:
    for kind, name, made_by in database.execute("SELECT type, name, sql FROM sqlite_schema"):
        if kind not in ("table", "index") or "VIRTUAL" in str(made_by).upper().split():
            raise ValueError(f"it must hold tables alone, got the {kind} {str(name)[:80]!r}")


def _require_whole(database: sqlite3.Connection) -> None:
    (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        raise ValueError(f"it is damaged: {found}")


def _has_trials(database: sqlite3.Connection) -> bool:
    """A process may have been killed before it had made all tables; Optuna then makes the others."""
    tables = {name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
    return "trials" in tables and database.execute("SELECT 1 FROM trials LIMIT 1").fetchone() is not None


def _facts_by_trial(database: sqlite3.Connection) -> Iterator[tuple[int, dict[str, Any]]]:
    rows = database.execute("SELECT trial_id, key, value_json FROM trial_user_attributes").fetchall()
    told: dict[int, dict[str, Any]] = {}
    for trial, key, value in rows:
        told.setdefault(trial, {})[str(key)] = json.loads(value) if isinstance(value, str) else None
    for trial, number in database.execute("SELECT trial_id, number FROM trials").fetchall():
        if type(number) is not int or not 0 <= number < 10**9:
            raise ValueError(f"a trial's number must be a whole one from 0, got {str(number)[:80]}")
        yield number, told.get(trial, {})


def _require_facts(trial: int, facts: dict[str, Any]) -> None:
    try:
        _Facts.model_validate(facts)
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, fault["loc"]))
        raise ValueError(f"trial {trial}: {place} cannot be used, got {str(fault['input'])[:80]}") from error
