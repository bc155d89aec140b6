"""What a folder that somebody sent may not do: lead out of itself, or bring code that its study file calls.

Reading a run, or the data of an export, runs no code of whoever made it, and writes nowhere else; an export's C source
is a program, which `verify`, `bench` and `check` are there to build and run. A study file may name a user's own
functions, though, and a folder may hold links. Own functions lie beside the runs, never in them.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from sca_search.config.references import is_reference
from sca_search.errors import RunError


def refuse_links_out(folder: Path) -> None:
    """RunError where a link in the folder leads out of it: to be read, or to be written through."""
    home = folder.resolve()
    for link in _links(home):
        if not link.resolve().is_relative_to(home):
            raise RunError(f"{folder}: must hold its files itself, {link.relative_to(home)} leads out of it")


def _links(folder: Path) -> Iterator[Path]:
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return  # what cannot be looked through cannot be read either, which is said there
    for entry in entries:
        if entry.is_symlink():
            yield Path(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            yield from _links(Path(entry.path))


def refuse_own_code(folder: Path, names: Iterable[str | None]) -> None:
    """RunError where one of a study's names is of a function in a file of this very folder."""
    home = folder.resolve()
    for name in names:
        if name is not None and is_reference(name) and any(_lies_in(home, file) for file in _files(name)):
            raise RunError(
                f"{folder}: its study names code in the folder itself, {name[:200]!r}, which whoever made it could run "
                "here; if you trust it, move that file elsewhere and name its new place in study.toml"
            )


def _files(reference: str) -> Iterator[Path]:
    """The files that a reference may stand for, seen from here: of a module also each package that it is in."""
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        yield Path(place)
        return
    parts = place.split(".")
    for count in range(1, len(parts) + 1):
        yield Path(*parts[:count])
        yield Path(*parts[:count]).with_suffix(".py")


def _lies_in(home: Path, file: Path) -> bool:
    try:
        return file.exists() and file.resolve().is_relative_to(home)
    except (OSError, ValueError):
        return False
