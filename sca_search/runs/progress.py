"""What a study trains now, as a small file: a page beside it can tell a running study from one that was killed."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from sca_search.errors import RunError
from sca_search.runs.candidates import read_json
from sca_search.system.files import write_json_atomic

# An epoch may take minutes; a study that was silent for this many of its usual pauses is taken for dead.
PATIENCE = 5.0
LEAST_PATIENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Now:
    """The newest sign of life."""

    what: str  # "dense warm start", "trial 7", "refit 1"
    epoch: int
    epochs: int
    at: float  # seconds since 1970
    pause_seconds: float  # between this sign and the one before

    def is_alive(self, clock: float) -> bool:
        return clock - self.at <= max(LEAST_PATIENCE_SECONDS, PATIENCE * self.pause_seconds)


class ProgressFile:
    """Writes the newest sign at most once a second; gone when the study ends, however it ends in order."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._last = -math.inf
        self._written = -math.inf

    def note(self, what: str, epoch: int, epochs: int) -> None:
        now = self._clock()
        pause, self._last = (0.0 if self._last == -math.inf else max(0.0, now - self._last)), now
        if not 0.0 <= now - self._written < 1.0:  # a clock that was moved back must not silence it
            self._written = now
            write_json_atomic(self.path, asdict(Now(what, epoch, epochs, now, pause)))

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


def read_now(path: Path) -> Now | None:
    """The newest sign, None where there is none or none that can be read."""
    try:
        told = read_json(path, None)
        return Now(str(told["what"]), int(told["epoch"]), int(told["epochs"]), *map(float, _times(told)))
    except (RunError, KeyError, TypeError, ValueError, OverflowError):
        return None


def _times(told: dict[str, float]) -> tuple[float, float]:
    return told["at"], told["pause_seconds"]
