"""Limits repeated work to a fraction of the running time."""

import time
from collections.abc import Callable


class Throttle:
    """Runs work for at most a fraction of the time: after a run, the next one waits in proportion to its duration."""

    def __init__(self, fraction: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fraction = fraction
        self._clock = clock
        self._due = 0.0

    def run(self, work: Callable[[], object]) -> None:
        began = self._clock()
        work()
        ended = self._clock()
        self._due = ended + (ended - began) * (1.0 / self._fraction - 1.0)

    def run_if_due(self, work: Callable[[], object]) -> None:
        """Run the work unless that would exceed its fraction of the time."""
        if self._clock() >= self._due:
            self.run(work)
