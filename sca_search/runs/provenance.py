"""How a run came to be: its commands, the machine and the versions, kept in about.json."""

import math
import platform
import shlex
import time
from collections.abc import Sequence
from typing import Any

from sca_search.runs.candidates import read_json
from sca_search.runs.folder import RunFolder
from sca_search.runs.run_format import FORMAT, require_known_format
from sca_search.system.files import write_json_atomic
from sca_search.system.machine import processor, usable_cores
from sca_search.system.secrets import scrub
from sca_search.system.versions import versions


def note_command(run: RunFolder, arguments: Sequence[str], threads: int) -> None:
    """Adds a command to the run's; machine, threads a worker and versions are those of the newest."""
    require_known_format(run.about_file)
    known = read_json(run.about_file, {})
    told = known.get("commands") if isinstance(known, dict) else None
    before = [each for each in told if _is_command(each)] if isinstance(told, list) else []
    # Before they are joined: the shell's quotes would stand in the middle of a password with a quote.
    shown = shlex.join(["sca-search", *map(scrub, arguments)])
    command = {"command": shown, "at": time.time()}
    write_json_atomic(run.about_file, {"format": FORMAT, "commands": [*before, command], **made_with(threads)})


def made_with(threads: int) -> dict[str, Any]:
    """What the bits of a training depend on, beside its settings."""
    return {"machine": machine(), "threads": threads, "versions": versions()}


def _is_command(given: object) -> bool:
    """Whether it is one of ours: a run may come from somebody else."""
    if not isinstance(given, dict) or given.keys() != {"command", "at"}:
        return False
    return isinstance(given["command"], str) and isinstance(given["at"], int | float) and abs(given["at"]) < math.inf


def machine() -> dict[str, Any]:
    """What figures of time depend on."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
