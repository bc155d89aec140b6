"""Work that is done again and again while something runs, as often as its own length allows."""

import time
from collections.abc import Callable


class Pace:
    """Gives a work at most a share of the time: what took a second waits for the rest of it."""

    def __init__(self, share: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._share = share
        self._clock = clock
        self._due = 0.0

    def run(self, work: Callable[[], object]) -> None:
        """Does it now."""
        began = self._clock()
        work()
        ended = self._clock()
        self._due = ended + (ended - began) * (1.0 / self._share - 1.0)

    def run_if_due(self, work: Callable[[], object]) -> None:
        """Leaves it be where the last time was so long that another would slow the rest down."""
        if self._clock() >= self._due:
            self.run(work)
