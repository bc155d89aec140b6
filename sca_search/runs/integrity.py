"""Checks of run folders that may be untrusted.

Reading a run, or the data of an export, must neither run code of its author nor write outside the folder; an export's
C source is a program, which `verify`, `bench` and `check` build and run on purpose. A folder may hold links, pipes
and files of any size, and a database may hold triggers and views. Functions that a study file names need the user's
consent (`load.require_trust`).
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sca_search.errors import RunError
from sca_search.system.files import require_regular

# The last but one is raised by Optuna for incomplete rows.
_RAISED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, AssertionError, RecursionError)


def require_plain_files(folder: Path) -> None:
    """RunError if a link in the folder points outside of it, or a file is a pipe or too large for its type."""
    home = folder.resolve()
    for entry in _files(home):
        path = Path(entry.path)
        if entry.is_symlink() and not path.resolve().is_relative_to(home):
            raise RunError(f"{folder}: must contain its files itself, {path.relative_to(home)} points outside of it")
        require_regular(folder / path.relative_to(home), RunError)


def _files(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # an unreadable folder is reported where it is read
    for entry in entries:
        if entry.is_dir(follow_symlinks=False):
            yield from _files(Path(entry.path))
        else:
            yield entry


@contextmanager
def damage_as_run_error(where: Path, what: str) -> Iterator[None]:
    """Turn errors of wrong values in a damaged file into a RunError.

    Only for code that reads and does not call user code, where the same errors are faults of that code.
    """
    try:
        yield
    except _RAISED as error:
        raise RunError(f"{where}: cannot be {what}, a file in it is damaged: {repr(error)[:300]}") from error


def require_intact_database(path: Path) -> None:
    """RunError unless a study's database, if it exists, is undamaged and holds tables only, before Optuna opens it."""
    if not path.exists():
        return
    try:
        # Not read-only: SQLite rolls back here what a killed process left half-written.
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=rw", uri=True, timeout=60.0)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            # Triggers, views and virtual tables are programs that run when a table is read or written.
            for kind, name, sql in database.execute("SELECT type, name, sql FROM sqlite_schema"):
                if kind not in ("table", "index") or "VIRTUAL" in str(sql).upper().split():
                    raise ValueError(f"it must hold tables only, got the {kind} {str(name)[:80]!r}")
            (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise ValueError(f"it is damaged: {found}")
    except (sqlite3.Error, sqlite3.Warning, OSError, ValueError, OverflowError) as error:
        raise RunError(f"{path}: is not a readable study database: {str(error)[:300]}") from error
