"""Provenance of a run: its commands, the machine and the versions, in about.json."""

import math
import platform
import shlex
import time
from collections.abc import Sequence
from typing import Any

from sca_search.runs.candidates import read_json
from sca_search.runs.folder import FORMAT, RunFolder
from sca_search.system.files import write_json_atomic
from sca_search.system.machine import processor, usable_cores
from sca_search.system.secrets import scrub
from sca_search.system.versions import versions


def note_command(run: RunFolder, arguments: Sequence[str], threads: int) -> None:
    """Append a command to about.json; machine, threads per worker and versions are those of the newest."""
    known = read_json(run.about_file, {})
    commands = known.get("commands") if isinstance(known, dict) else None
    before = [each for each in commands if _is_command(each)] if isinstance(commands, list) else []
    # Before joining: shell quotes would split a password that contains a quote.
    shown = shlex.join(["sca-search", *map(scrub, arguments)])
    command = {"command": shown, "at": time.time()}
    write_json_atomic(run.about_file, {"format": FORMAT, "commands": [*before, command], **made_with(threads)})


def made_with(threads: int) -> dict[str, Any]:
    """What a training depends on bit by bit, besides its settings."""
    return {"machine": machine(), "threads": threads, "versions": versions()}


def _is_command(value: object) -> bool:
    """Whether it is a command of ours: a run may come from somebody else."""
    if not isinstance(value, dict) or value.keys() != {"command", "at"}:
        return False
    return isinstance(value["command"], str) and isinstance(value["at"], int | float) and abs(value["at"]) < math.inf


def machine() -> dict[str, Any]:
    """What measured times depend on."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
