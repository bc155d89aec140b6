"""Ctrl-C and SIGTERM as requests, so that what is under way can be put back."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Whether a stop was asked for; calling it tells."""

    def __init__(self) -> None:
        self._by: int | None = None

    def __call__(self) -> bool:
        return self._by is not None

    @property
    def exit_code(self) -> int:
        """As shells have it: 128 and the number of the signal."""
        return 128 + (self._by or signal.SIGINT)

    def note(self, by: int) -> None:
        """The first signal is a request; a second Ctrl-C does not wait any more."""
        if self._by is not None and by == signal.SIGINT:
            raise KeyboardInterrupt
        self._by = self._by or by


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Turns the first Ctrl-C or SIGTERM into a request, so that the trial under way can be put back."""
    request = StopRequest()

    def note(by: int, _frame: FrameType | None) -> None:
        request.note(by)

    before = {by: signal.signal(by, note) for by in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for by, handler in before.items():
            signal.signal(by, handler)
