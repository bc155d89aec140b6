"""Works timed in turns, in one process: noise that comes and goes meets all of them alike, and it only ever adds."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sca_search.system.memory import trim_heap

Work = Callable[[], object]


@dataclass(frozen=True)
class Taken:
    """One run of a work."""

    seconds: float
    processor_seconds: float  # of all threads: what it took of the machine, also where others had the rest


def in_turns(works: Mapping[str, Callable[[], Work]], rounds: int) -> dict[str, list[Taken]]:
    """Each work is made ready, which is not timed, and run once a round. The first round warms up and is left out.

    None inherits the memory that the one before it freed: pages that a process has need not be asked for.
    """
    taken: dict[str, list[Taken]] = {name: [] for name in works}
    for turn in range(rounds + 1):
        for name, make_ready in works.items():
            work = make_ready()
            trim_heap()
            one = _timed(work)
            if turn:
                taken[name].append(one)
    return taken


def _timed(work: Work) -> Taken:
    began, used = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - began, time.process_time() - used)


def best(taken: list[Taken]) -> float:
    """Seconds."""
    return min(each.seconds for each in taken)
