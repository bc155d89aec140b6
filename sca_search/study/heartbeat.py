"""Heartbeats: the worker of a trial increments a counter, and other workers requeue a trial whose counter stops.

No clock is compared with the clock of another machine. A watcher measures with its own monotonic clock how long it has
seen a counter unchanged, so clocks may differ or be changed on either side. Time in which it could not look (it was
suspended, or the database was down, so no heartbeat could be written either) hardly counts.
"""

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from sca_search.runs.log import logger
from sca_search.study.optuna_internals import storage_of, trial_id

HEARTBEAT = "sca-search:heartbeat"
OWNER = "sca-search:owner"
# A trial is stale after this many missed heartbeats.
MISSED_HEARTBEATS = 3


def owner_name(process: int | None = None) -> str:
    """The machine and process of a worker, so that others on the machine can find its trials after a crash."""
    return f"{platform.node()}:{process or os.getpid()}"


@contextlib.contextmanager
def sending_heartbeats(
    trial: optuna.Trial, seconds: float, on_heartbeat: Callable[[], None] = lambda: None
) -> Iterator[Callable[[], bool]]:
    """Send the heartbeats of a trial from a thread; yield a function that tells whether another worker ended the trial.

    `on_heartbeat` is called in the same thread.
    """
    over, lost = threading.Event(), threading.Event()
    storage_of(trial.study).set_trial_system_attr(trial_id(trial), OWNER, owner_name())

    def send() -> None:
        count = 0
        while not over.wait(seconds):
            count += 1
            try:
                if not _is_running(trial, count):
                    lost.set()
                    return
                on_heartbeat()
            except Exception as error:  # must not end the training: others only miss one heartbeat
                logger.debug("missed a heartbeat: %r", error)

    thread = threading.Thread(target=send, name=f"heartbeat of trial {trial.number}", daemon=True)
    thread.start()
    try:
        yield lost.is_set
    finally:
        over.set()
        thread.join(timeout=5.0)  # it may wait longer for a database that is down


def _is_running(trial: optuna.Trial, count: int) -> bool:
    """Store a heartbeat; False if the trial was ended. `on_heartbeat` may raise the same error about another trial."""
    try:
        storage_of(trial.study).set_trial_system_attr(trial_id(trial), HEARTBEAT, count)
    except UpdateFinishedTrialError:
        return False
    return True


@dataclass
class StaleTrialDetector:
    """Finds the running trials without heartbeats."""

    study: optuna.Study
    patience: float  # seconds
    clock: Callable[[], float] = time.monotonic
    # The last counter of each trial, and for how many seconds it has stood still.
    _seen: dict[int, tuple[object, float]] = field(default_factory=dict)
    _last_check: float | None = None

    def stale(self) -> list[FrozenTrial]:
        """Check once: the running trials whose counters have not changed for at least the patience."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        now = self.clock()
        last = now if self._last_check is None else self._last_check
        elapsed = max(0.0, min(now - last, self.patience / MISSED_HEARTBEATS))
        self._last_check = now
        seen = {}
        for trial in running:
            count = trial.system_attrs.get(HEARTBEAT)
            before, unchanged = self._seen.get(trial.number, (object(), 0.0))  # none is equal to a new object
            seen[trial.number] = (count, unchanged + elapsed if count == before else 0.0)
        self._seen = seen
        return [trial for trial in running if seen[trial.number][1] >= self.patience]
