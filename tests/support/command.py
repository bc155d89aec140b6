"""Runs the command in a process of its own, and records what a command printed."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TINY = ("--trials", "3", "--refits", "1", "--epochs", "2", "--dense-epochs", "4", "--threads", "1")
# A study with two budgets, both close to what its network can meet.
TINY_BUDGETS = ("--max-ternary-kb", "1", "--max-kb", "11.4", "--no-grid", "--name", "small")


def sca_search(*arguments: str, cwd: Path, timeout: float = 240, **options: object) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own, wide enough that no sentence is folded."""
    return subprocess.run(
        [sys.executable, "-m", "sca_search", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env=os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        **options,
    )


@dataclass(frozen=True)
class Outcome:
    """What a command left on the screen, and its exit code."""

    returncode: int
    stdout: str
    stderr: str
