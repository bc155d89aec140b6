"""Signs of life: who trains a trial counts up a number at it, and who sees that number stand still puts the trial back.

No clock is compared with another's. A watcher measures by its own steady clock how long it saw a number unchanged, so
that clocks may differ, or be moved, on either side. Time in which it could not look (it was suspended, or the database
was gone, when no heart could beat either) hardly counts.
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
from sca_search.study.storage import storage_of

BEAT = "sca-search:beat"
OWNER = "sca-search:owner"
# A heart may miss this many beats before its trial is put back.
MISSED_BEATS = 3


def owner_name(process: int | None = None) -> str:
    """Who trains, so that others on this machine know when it has died."""
    return f"{platform.node()}:{process or os.getpid()}"


@contextlib.contextmanager
def beating(
    study: optuna.Study, trial_id: int, seconds: float, on_beat: Callable[[], None] = lambda: None
) -> Iterator[Callable[[], bool]]:
    """Counts up at a trial meanwhile; the callable tells whether the trial was taken away.

    `on_beat` is called in between, from a thread: who trains has time to look after others.
    """
    storage, over, lost = storage_of(study), threading.Event(), threading.Event()
    storage.set_trial_system_attr(trial_id, OWNER, owner_name())

    def beat() -> None:
        count = 0
        while not over.wait(seconds):
            count += 1
            try:
                storage.set_trial_system_attr(trial_id, BEAT, count)
                on_beat()
            except UpdateFinishedTrialError:
                lost.set()
                return
            except Exception as error:  # the training must not end by this: others only see a beat less
                logger.debug("a beat was missed: %r", error)

    heart = threading.Thread(target=beat, name=f"heart of trial {trial_id}", daemon=True)
    heart.start()
    try:
        yield lost.is_set
    finally:
        over.set()
        heart.join(timeout=5.0)  # where the database is gone it may wait for long, and is left behind


@dataclass
class Watchman:
    """Finds the trials whose hearts have stopped."""

    study: optuna.Study
    patience: float  # seconds
    clock: Callable[[], float] = time.monotonic
    _beats: dict[int, object] = field(default_factory=dict)
    _quiet: dict[int, float] = field(default_factory=dict)
    _looked: float | None = None

    def stopped(self) -> list[FrozenTrial]:
        """Looks once: the running trials that were quiet for longer than the patience."""
        running = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        now = self.clock()
        since = 0.0 if self._looked is None else min(now - self._looked, self.patience / MISSED_BEATS)
        self._looked = now
        quiet = {trial._trial_id: self._quiet_for(trial, since) for trial in running}
        self._beats = {trial._trial_id: trial.system_attrs.get(BEAT) for trial in running}
        self._quiet = quiet
        return [trial for trial in running if quiet[trial._trial_id] >= self.patience]

    def _quiet_for(self, trial: FrozenTrial, since: float) -> float:
        number = trial._trial_id
        is_same = number in self._beats and self._beats[number] == trial.system_attrs.get(BEAT)
        return self._quiet.get(number, 0.0) + max(0.0, since) if is_same else 0.0
