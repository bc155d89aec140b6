"""Requests to stop: Ctrl-C and SIGTERM as a token that running work polls, so that a running trial can be requeued."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Protocol


class StopToken(Protocol):
    """Polled by running work; a `threading.Event` is one."""

    def is_set(self) -> bool:
        """Whether to stop."""


@dataclass(frozen=True)
class StopWhen:
    """A stop token that evaluates a condition."""

    condition: Callable[[], bool] = lambda: False

    def is_set(self) -> bool:
        return self.condition()


NEVER = StopWhen()


class StopRequest:
    """A stop token that is set by a signal."""

    def __init__(self) -> None:
        self._by: int | None = None

    def is_set(self) -> bool:
        return self._by is not None

    @property
    def exit_code(self) -> int:
        """As shells have it: 128 and the number of the signal."""
        return 128 + (self._by or signal.SIGINT)

    def note(self, by: int, _frame: FrameType | None) -> None:
        """The first signal is a request; a second Ctrl-C does not wait any more."""
        if self._by is not None and by == signal.SIGINT:
            raise KeyboardInterrupt
        self._by = self._by or by


@contextmanager
def stop_on_interrupt() -> Iterator[StopRequest]:
    """Turn the first Ctrl-C or SIGTERM into a request. Only the main thread can handle signals."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before = {by: signal.signal(by, request.note) for by in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for by, handler in before.items():
            signal.signal(by, handler)
