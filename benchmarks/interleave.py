"""Interleaved timing in one process: temporary noise affects all tasks alike, and noise only adds time."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sca_search.system.machine import trim_heap

TimedTask = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """One run of a task."""

    seconds: float
    processor_seconds: float  # CPU time of all threads, independent of other processes


def interleaved(tasks: Mapping[str, Callable[[], TimedTask]], rounds: int) -> dict[str, list[Timing]]:
    """Runs each task once per round after its untimed setup. The first round is a warm-up and is discarded.

    Freed memory is returned before each task, so that none profits from pages that the previous one allocated.
    """
    timings: dict[str, list[Timing]] = {name: [] for name in tasks}
    for round_number in range(rounds + 1):
        for name, set_up in tasks.items():
            task = set_up()
            trim_heap()
            timing = _timed(task)
            if round_number:
                timings[name].append(timing)
    return timings


def _timed(task: TimedTask) -> Timing:
    began, used = time.perf_counter(), time.process_time()
    task()
    return Timing(time.perf_counter() - began, time.process_time() - used)


def best(timings: list[Timing]) -> float:
    """The minimum, in seconds."""
    return min(timing.seconds for timing in timings)
