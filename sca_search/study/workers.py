"""Workers: one in this process, or several processes of one thread each that share a study.

The process that started them looks after them. A worker that dies is replaced, and what it was training is put back at
once; one whose trial takes more time or memory than it may is ended, and the trial counts as failed. Nothing that they
share has a lock, which a worker could die with: each has a pipe of its own, and flags are bytes.
"""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import optuna
import torch

from sca_search.config.study import StudySpec
from sca_search.errors import ScaError, StorageError
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import logged, logger
from sca_search.study.heartbeat import owner_name
from sca_search.study.objective import Listener, make_objective, work
from sca_search.study.queue import fail, open_study, take_back, trials_of
from sca_search.study.setup import make_space, make_task, warm_start
from sca_search.system.machine import usable_cores
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import Progress, Task

# Networks below this many weights lose by waiting for a second thread: a trial on the 8×8 digits took 3.6 s with one
# thread and 4.1 s with two while another process used the machine.
_WEIGHTS_FOR_THREADS = 100_000
# A worker that dies before its first trial would die again.
_MOST_STILLBORN = 3
# Where a trial's time is limited, a worker may take so long, and a trial's time besides, until it is ready for one: it
# runs a user's code by then, which may hang as well.
_SECONDS_TO_BEGIN = 600.0
_SECONDS_TO_END = 20.0
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


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


def needs_processes(spec: StudySpec) -> bool:
    """Whether trials run in processes of their own: several at once, or such as may have to be ended."""
    search = spec.search
    return search.workers > 1 or search.trial_time is not None or search.trial_memory_gb is not None


@dataclass(frozen=True)
class _Line:
    """What connects a worker process with the one that started it."""

    events: Connection
    stop: Any  # a byte that both see, as is the next
    enough: Any  # no further trial is to begin


@dataclass
class _Worker:
    """A worker as the process that started it sees it."""

    process: Any
    events: Connection
    started: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    trial: int | None = None
    began: float = 0.0
    has_begun: bool = False
    is_done: bool = False


@dataclass
class Team:
    """The workers of a study on this machine."""

    run: RunFolder
    spec: StudySpec
    study: optuna.Study
    listener: Listener
    trial_fits: Callable[[], bool]
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _stillborn: int = 0

    def work(self) -> None:
        """Runs the queued trials in worker processes and passes on what they report."""
        self._context = multiprocessing.get_context("spawn")  # a forked torch may hang on its threads' locks
        self._stop, self._enough = self._context.RawValue("b", 0), self._context.RawValue("b", 0)
        for number in range(1, 1 + self.spec.search.workers):
            self._start(number)
        stopped = math.inf
        try:
            while any(not worker.is_done for worker in self._workers.values()):
                if self.listener.stop_requested():
                    self._stop.value, stopped = 1, min(stopped, time.monotonic())
                if time.monotonic() > stopped + _SECONDS_TO_END:  # one of them hangs, which is why it is stopped
                    break
                self._hear(seconds=0.1)
                self._look_after()
        finally:
            self._stop.value = 1
            self._end(min(stopped, time.monotonic()) + _SECONDS_TO_END)
        if self.listener.stop_requested():
            raise StopRequestedError

    def _start(self, number: int) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        line = _Line(theirs, self._stop, self._enough)
        device = device_of(number, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        arguments = (self.run, self.spec, line, number, device)
        process = self._context.Process(target=_worker, args=arguments, daemon=True)
        process.start()
        theirs.close()  # so that the pipe ends with the worker
        self._workers[number] = _Worker(process, ours)

    def _end(self, patience: float) -> None:
        for worker in self._workers.values():
            worker.process.join(max(0.0, patience - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()

    def _hear(self, seconds: float) -> None:
        speaking = {worker.events: worker for worker in self._workers.values() if not worker.events.closed}
        if not speaking:
            time.sleep(seconds)
        for events in wait(list(speaking), timeout=seconds):
            assert isinstance(events, Connection)
            try:
                self._heard(speaking[events], *events.recv())
            except (EOFError, OSError, pickle.UnpicklingError):  # it has ended, or was killed in the middle of a word
                events.close()

    def _heard(self, worker: _Worker, kind: str, *told: Any) -> None:
        if kind == "ready":
            worker.is_ready = True
        elif kind == "done":
            worker.is_done = True
        elif kind == "failed":
            raise told[0]
        else:
            self._note(worker, kind, *told)
            getattr(self.listener, kind)(*told)

    def _note(self, worker: _Worker, kind: str, *told: Any) -> None:
        if kind == "on_start":
            worker.trial, worker.began, worker.has_begun, self._stillborn = told[0], time.monotonic(), True, 0
        elif kind == "on_end":
            worker.trial = None
            if not self.trial_fits():
                self._enough.value = 1

    def _look_after(self) -> None:
        for number, worker in list(self._workers.items()):
            if worker.is_done:
                continue
            if (reason := self._beyond_limits(worker)) is not None:
                self._end_trial(number, worker, reason)
            elif self._hangs_at_its_start(worker):
                worker.process.kill()
                worker.process.join()
                self._replace(number, worker, "hung before its first trial", "workers hang before their first trial")
            elif worker.events.closed and not worker.process.is_alive():  # all that it said was heard
                self._replace(number, worker)

    def _beyond_limits(self, worker: _Worker) -> str | None:
        """Why a trial must not go on."""
        search = self.spec.search
        if worker.trial is None:
            return None
        if search.trial_time is not None and time.monotonic() - worker.began > search.trial_time:
            return f"took longer than its {search.trial_time:g} s"
        if search.trial_memory_gb is not None:
            taken = resident_bytes(worker.process.pid)
            if taken is not None and taken > search.trial_memory_gb * 1e9:
                return f"took {taken / 1e9:.2f} GB of memory, more than its {search.trial_memory_gb:g}"
        return None

    def _hangs_at_its_start(self, worker: _Worker) -> bool:
        limit = self.spec.search.trial_time
        if worker.is_ready or limit is None:
            return False
        return time.monotonic() - worker.started > limit + _SECONDS_TO_BEGIN

    def _end_trial(self, number: int, worker: _Worker, reason: str) -> None:
        worker.process.kill()
        worker.process.join()
        for trial in trials_of(self.study, owner_name(worker.process.pid)):
            fail(self.study, trial, reason)
            logger.warning("trial %d was ended: it %s", trial.number, reason)
            self.listener.on_end(trial.number)
        self._start_again(number)

    def _replace(
        self,
        number: int,
        worker: _Worker,
        what: str = "died",
        again_and_again: str = "workers end without a word: they are killed, for want of memory perhaps",
    ) -> None:
        """Puts back what a worker was training when it died, and starts another."""
        taken = trials_of(self.study, owner_name(worker.process.pid))
        for trial in taken:
            take_back(self.study, trial, counts=not self._stop.value)
        # One that had taken a trial may have died before it could say so; the trial counts such deaths.
        self._stillborn = 0 if taken else self._stillborn + (not worker.has_begun)
        if self._stillborn >= _MOST_STILLBORN:
            raise StorageError(again_and_again)
        logger.warning("worker %d %s (exit code %s)", number, what, worker.process.exitcode)
        self.listener.on_note(f"worker {number} {what}; another takes its place")
        self._start_again(number)

    def _start_again(self, number: int) -> None:
        if self._enough.value or self._stop.value:
            self._workers[number].is_done = True
        else:
            self._start(number)


def device_of(number: int, count: int, visible: str | None) -> str | None:
    """The accelerator of a worker, in turns, as CUDA_VISIBLE_DEVICES names it; None where there is nothing to share."""
    if count < 2:
        return None
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return names[(number - 1) % len(names)]


def resident_bytes(process: int) -> int | None:
    """The memory that a process has; None where the system does not tell."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _worker(run: RunFolder, spec: StudySpec, line: _Line, number: int, device: str | None) -> None:
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device  # before anything asks for one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the first process decides
    parent = multiprocessing.parent_process()

    def stop_requested() -> bool:
        return bool(line.stop.value) or (parent is not None and not parent.is_alive())

    def tell(kind: str) -> Callable[..., None]:
        def send(*told: Any) -> None:
            with contextlib.suppress(OSError):  # nobody listens any more, which `stop_requested` tells as well
                line.events.send((kind, *told))

        return send

    listener = Listener(tell("on_start"), tell("on_epoch"), tell("on_end"), stop_requested, tell("on_note"))
    try:
        with logged(run, f"worker {number}: "), contextlib.suppress(StopRequestedError):
            _work(run, spec, line, listener, number, tell("ready"))
    except Exception as error:
        tell("failed")(_sendable(error))
    tell("done")()


def _sendable(error: Exception) -> Exception:
    """An error as the process that started this one can raise it, where it would end the study as well."""
    if isinstance(error, ScaError):
        return error
    # A class of the user's own, or of a library's, may not be known there, or not survive the way.
    sent = error if type(error).__module__ == "builtins" else RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(f"In a worker:\n{''.join(traceback.format_exception(error))}")
    return sent


def _work(
    run: RunFolder, spec: StudySpec, line: _Line, listener: Listener, number: int, on_ready: Callable[[], None]
) -> None:
    task = make_task(spec, check_test=False)  # the process that started this one has looked through them
    torch.set_num_threads(threads_of(spec, task))
    start = warm_start(run, spec, task, Progress())
    space = make_space(run, spec, task, start)
    objective = make_objective(run, space, task, start, listener, number)
    study = open_study(run, space, listener.stop_requested)
    on_ready()
    work(study, objective, lambda: not line.enough.value, is_alone=False)
