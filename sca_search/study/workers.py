"""Worker processes of this machine.

A worker process joins the study through its storage, as another machine does: it starts waiting trials, sends
heartbeats and requeues stale trials. The process that started it supervises it. A worker that crashes is replaced and
its trial is requeued at once; a worker whose trial exceeds its limit of time or memory is killed and the trial fails.
Each worker has a pipe for its events, and all share one byte that tells them to finish or stop. Neither has a lock,
which a killed worker could leave locked.
"""

import contextlib
import math
import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator
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
from sca_search.study.events import Emit, Event, Note, TrialEnded, TrialStarted
from sca_search.study.heartbeat import owner_name
from sca_search.study.queue import fail, requeue_lost, trial_ended, trials_of
from sca_search.system.signals import StopToken, StopWhen
from sca_search.training.fit import StopRequestedError

# This many workers in a row that end before their first trial end the study: the next one would end too.
_MAX_FAILED_STARTS = 3
# With a time limit per trial, a worker must be ready within this time plus that limit: it runs user code by then, which
# may hang.
_START_SECONDS = 600.0
_STOP_SECONDS = 20.0
_SAFE_PATH = "PYTHONSAFEPATH"
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096
# Values of the shared byte: start waiting trials; start no further trial; requeue the running trial and end.
_RUN, _FINISH, _STOP = range(3)


# Reads a study in a worker process, given its emitter, its stop token and its number; returns what runs the trials as
# long as another may begin.
Prepare = Callable[[Emit, StopToken, int], Callable[[Callable[[], bool]], None]]


@dataclass(frozen=True)
class _Ready:
    """A worker has read the study and starts trials."""


@dataclass(frozen=True)
class _Done:
    """A worker has no more trials, or was stopped."""


_Message = _Ready | _Done | Exception | Event


@dataclass
class _Worker:
    """A worker process as seen by its supervisor."""

    process: Any
    events: Connection
    started: float = field(default_factory=time.monotonic)
    is_ready: bool = False
    is_done: bool = False
    has_trained: bool = False
    trial_started: float | None = None

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


@dataclass
class LocalWorkers:
    """Supervises the worker processes of a study on this machine."""

    run: RunFolder
    spec: StudySpec
    study: optuna.Study
    emit: Emit
    stop: StopToken
    trial_fits: Callable[[], bool]
    prepare: Prepare
    _workers: dict[int, _Worker] = field(default_factory=dict)
    _failed_starts: int = 0

    def __post_init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")  # a forked torch may hang on the locks of its threads
        self._state = self._context.RawValue("b", _RUN)

    def work(self) -> None:
        """Run the queued trials in worker processes and forward their events."""
        stopped = math.inf
        try:
            for number in range(1, 1 + self.spec.search.workers):
                self._start(number)
            while any(not worker.is_done for worker in self._workers.values()):
                if self.stop.is_set():
                    self._state.value, stopped = _STOP, min(stopped, time.monotonic())
                if time.monotonic() > stopped + _STOP_SECONDS:  # a worker hangs
                    break
                self._receive(seconds=0.1)
                for number, worker in list(self._workers.items()):
                    self._supervise(number, worker)
        finally:
            self._state.value = _STOP
            deadline = min(stopped, time.monotonic()) + _STOP_SECONDS
            for worker in self._workers.values():
                worker.process.join(max(0.0, deadline - time.monotonic()))
                worker.kill()
        if self.stop.is_set():
            raise StopRequestedError

    def _start(self, number: int) -> None:
        ours, theirs = self._context.Pipe(duplex=False)
        device = device_of(number, torch.cuda.device_count(), os.environ.get("CUDA_VISIBLE_DEVICES"))
        arguments = (self.prepare, self.run, theirs, self._state, number, device)
        process = self._context.Process(target=_worker, args=arguments, daemon=True)
        with _safe_path():
            process.start()
        theirs.close()  # the pipe then ends with the worker
        self._workers[number] = _Worker(process, ours)

    def _receive(self, seconds: float) -> None:
        pipes = {worker.events: worker for worker in self._workers.values() if not worker.events.closed}
        if not pipes:
            time.sleep(seconds)
        for events in wait(list(pipes), timeout=seconds):
            assert isinstance(events, Connection)
            try:
                self._on_message(pipes[events], events.recv())
            except (EOFError, OSError, pickle.UnpicklingError):  # the worker has ended, perhaps within a message
                events.close()

    def _on_message(self, worker: _Worker, message: _Message) -> None:
        match message:
            case _Ready():
                worker.is_ready = True
            case _Done():
                worker.is_done = True
            case Exception():
                raise message
            case TrialStarted():
                worker.trial_started, worker.has_trained, self._failed_starts = time.monotonic(), True, 0
            case TrialEnded():
                worker.trial_started = None
                if not self.trial_fits():
                    self._state.value = max(_FINISH, self._state.value)
        if not isinstance(message, _Ready | _Done):
            self.emit(message)

    def _supervise(self, number: int, worker: _Worker) -> None:
        if worker.is_done:
            return
        start_limit = (self.spec.search.trial_time or math.inf) + _START_SECONDS
        if (reason := self._exceeded_limit(worker)) is not None:
            worker.kill()
            for trial in trials_of(self.study, owner_name(worker.process.pid)):
                fail(self.study, trial, reason)
                logger.warning("trial %d was killed: it %s", trial.number, reason)
                self.emit(trial_ended(self.study, trial.number))
            self._restart(number)
        elif not worker.is_ready and time.monotonic() - worker.started > start_limit:
            worker.kill()
            self._replace(number, worker, "hung")
        elif worker.events.closed and not worker.process.is_alive():  # all its messages were received
            self._replace(number, worker, "crashed")

    def _exceeded_limit(self, worker: _Worker) -> str | None:
        """The limit that a trial exceeds."""
        search = self.spec.search
        if worker.trial_started is None:
            return None
        if search.trial_time is not None and time.monotonic() - worker.trial_started > search.trial_time:
            return f"took longer than its {search.trial_time:g} s"
        if search.trial_memory_gb is not None:
            used = resident_bytes(worker.process.pid)
            if used is not None and used > search.trial_memory_gb * 1e9:
                return f"used {used / 1e9:.2f} GB of memory, more than its {search.trial_memory_gb:g}"
        return None

    def _replace(self, number: int, worker: _Worker, what: str) -> None:
        """Requeue the trial of a worker that has ended, and start another worker."""
        trials = trials_of(self.study, owner_name(worker.process.pid))
        for trial in trials:
            requeue_lost(self.study, trial, is_crash=self._state.value != _STOP)
        # A worker may crash before it can report its trial, which counts the crash itself.
        self._failed_starts = 0 if trials else self._failed_starts + (not worker.has_trained)
        if self._failed_starts >= _MAX_FAILED_STARTS:
            raise StorageError(
                f"{_MAX_FAILED_STARTS} workers in a row {what} before their first trial (out of memory?)"
            )
        logger.warning("worker %d %s (exit code %s)", number, what, worker.process.exitcode)
        self.emit(Note(f"worker {number} {what}; starting another"))
        self._restart(number)

    def _restart(self, number: int) -> None:
        if self._state.value == _RUN:
            self._start(number)
        else:
            self._workers[number].is_done = True


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """New Python processes do not search the working folder, which may be somebody else's, for modules."""
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        del os.environ[_SAFE_PATH]
        if before is not None:
            os.environ[_SAFE_PATH] = before


def device_of(number: int, count: int, visible: str | None) -> str | None:
    """The accelerator of a worker, round-robin, as in CUDA_VISIBLE_DEVICES; None with fewer than two."""
    if count < 2:
        return None
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return names[(number - 1) % len(names)]


def resident_bytes(process: int) -> int | None:
    """The resident memory of a process; None if the system does not report it."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, ValueError, IndexError):
        return None


def _worker(prepare: Prepare, run: RunFolder, events: Connection, state: Any, number: int, device: str | None) -> None:
    """The main function of a worker process."""
    if device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = device  # before CUDA is initialized
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes; the supervisor decides
    parent = multiprocessing.parent_process()
    stop = StopWhen(lambda: state.value == _STOP or (parent is not None and not parent.is_alive()))

    def send(message: _Message) -> None:
        with contextlib.suppress(OSError):  # the supervisor has ended, so `stop` is set too
            events.send(message)

    try:
        with logged(run, f"worker {number}: "), contextlib.suppress(StopRequestedError):
            run_trials = prepare(send, stop, number)
            send(_Ready())
            run_trials(lambda: state.value == _RUN)
    except Exception as error:
        send(_picklable(error))
    send(_Done())


def _picklable(error: Exception) -> Exception:
    """An error that the supervisor can raise; classes of user code or libraries may not survive pickling."""
    if isinstance(error, ScaError):
        return error
    sent = error if type(error).__module__ == "builtins" else RuntimeError(f"{type(error).__name__}: {error}")
    sent.add_note(f"In a worker:\n{''.join(traceback.format_exception(error))}")
    return sent
