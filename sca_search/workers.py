"""Workers: one in this process, or several processes of one thread each that share a study.

Every worker is told by tickets how many trials it may take, so that together they run exactly what was queued.
"""

import contextlib
import multiprocessing
import os
import queue
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.synchronize import Event, Semaphore
from typing import Any

import torch

from sca_search.errors import ScaError, StorageError
from sca_search.fit import StopRequestedError
from sca_search.objective import Listener, make_objective, work
from sca_search.provenance import usable_cores
from sca_search.run_folder import RunFolder
from sca_search.run_log import logged
from sca_search.spec import StudySpec
from sca_search.task import Progress, Task
from sca_search.trials import open_study
from sca_search.workshop import make_space, make_task, warm_start

# Networks below this many weights lose by waiting for a second thread: a trial on the 8×8 digits took 3.6 s with one
# thread and 4.1 s with two while another process used the machine.
_WEIGHTS_FOR_THREADS = 100_000


def threads_of(spec: StudySpec, task: Task) -> int:
    """Threads a worker: as asked; else one for a small network, or the cores divided among the workers.

    OMP_NUM_THREADS is obeyed as torch's own default does.
    """
    if spec.search.threads:
        return spec.search.threads
    if sum(choice.layer.weights for choice in task.choices) < _WEIGHTS_FOR_THREADS:
        return 1
    allowed = os.environ.get("OMP_NUM_THREADS", "")
    share = max(1, usable_cores() // spec.search.workers)
    return min(share, int(allowed)) if allowed.isdecimal() and int(allowed) else share


@dataclass(frozen=True)
class _Line:
    """What connects a worker process with the one that started it."""

    events: Any  # multiprocessing.Queue is no type
    tickets: Semaphore
    stop: Event


def run_processes(
    run: RunFolder, spec: StudySpec, trials: int, listener: Listener, trial_fits: Callable[[], bool]
) -> None:
    """Runs the queued trials in worker processes and passes on what they report."""
    context = multiprocessing.get_context("spawn")  # a forked torch may hang on its threads' locks
    line = _Line(context.Queue(), context.Semaphore(trials), context.Event())
    processes = [
        context.Process(target=_worker, args=(run, spec, line, number), daemon=True)
        for number in range(1, 1 + min(trials, spec.search.workers))
    ]
    for process in processes:
        process.start()
    try:
        _listen(processes, line, listener, trial_fits)
    finally:
        line.stop.set()
        for process in processes:
            process.join()
    if listener.stop_requested():
        raise StopRequestedError


def _listen(processes: list[Any], line: _Line, listener: Listener, trial_fits: Callable[[], bool]) -> None:
    working = len(processes)
    while working:
        if listener.stop_requested():
            line.stop.set()
        try:
            kind, *told = line.events.get(timeout=0.2)
        except queue.Empty:
            if not any(process.is_alive() for process in processes) and line.events.empty():
                raise StorageError(
                    "all workers ended without a word: they were killed, for want of memory perhaps"
                ) from None
            continue
        if kind == "done":
            working -= 1
        elif kind == "failed":
            raise told[0]
        else:
            getattr(listener, kind)(*told)
            if kind == "on_end" and not trial_fits():
                while line.tickets.acquire(block=False):
                    pass


def _give(tickets: Semaphore, more: int) -> None:
    for _ in range(more):
        tickets.release()


def _worker(run: RunFolder, spec: StudySpec, line: _Line, number: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process decides
    parent = multiprocessing.parent_process()

    def stop_requested() -> bool:
        return line.stop.is_set() or (parent is not None and not parent.is_alive())

    def tell(kind: str) -> Callable[..., None]:
        return lambda *told: line.events.put((kind, *told))

    listener = Listener(tell("on_start"), tell("on_epoch"), tell("on_end"), stop_requested)
    try:
        with logged(run, f"worker {number}: "), contextlib.suppress(StopRequestedError):
            _work(run, spec, line, listener, number)
    except ScaError as error:
        line.events.put(("failed", error))
    line.events.put(("done",))


def _work(run: RunFolder, spec: StudySpec, line: _Line, listener: Listener, number: int) -> None:
    task = make_task(spec)
    torch.set_num_threads(threads_of(spec, task))
    start = warm_start(run, spec, task, Progress())
    space = make_space(run, spec, task, start)
    objective = make_objective(run, space, task, start, listener, number)
    study = open_study(run, space)
    work(study, objective, lambda: line.tickets.acquire(block=False), lambda more: _give(line.tickets, more))
