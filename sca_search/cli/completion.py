"""Shell completion: commands, names, study files and run folders. Must not import torch."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import typer

from sca_search.config.references import expand_home
from sca_search.errors import InputError

# Key in a context's meta: no command was named yet, so the next word may be one.
NO_COMMAND = "sca_search.no_command"
_RUNS, _STUDIES = "runs", "studies"  # default folders


def complete_from(names: Iterable[str]) -> Callable[[str], list[str]]:
    """A completion function that offers fixed names."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    return complete


def run_folders(incomplete: str) -> list[str]:
    """Folders that contain a study."""
    return _matches(incomplete, _RUNS, lambda path: (path / "study.toml").is_file())


def study_files(ctx: typer.Context, incomplete: str) -> list[str]:
    """Study files, and the commands if none was named so far."""
    files = _matches(incomplete, _STUDIES, lambda path: path.suffix == ".toml" and path.is_file())
    group = ctx.find_root().command
    commands = getattr(group, "commands", {}) if ctx.meta.get(NO_COMMAND) else {}
    return [*(name for name in commands if name.startswith(incomplete)), *files]


def _matches(incomplete: str, default: str, accepts: Callable[[Path], bool]) -> list[str]:
    """Paths that start with the typed text: in the folder that it names, else here and in the default folder."""
    folder, slash, _ = incomplete.rpartition("/")
    found: list[str] = []
    for each in [f"{folder}/"] if slash else ["", f"{default}/"]:
        with suppress(OSError, InputError):  # a folder that does not exist or is not readable: nothing to offer
            paths = sorted(expand_home(each or ".").iterdir())
            found += [f"{each}{path.name}" for path in paths if accepts(path)]
    return [path for path in found if path.startswith(incomplete)]
