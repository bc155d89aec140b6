"""What is done once for a study that several machines share: the dense warm start, and each refit.

A chore is a trial of a study beside the study, so that it has a heart, and is taken over if that stops. Its files are
told with it where machines do not see each other's run folders.
"""

import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from sca_search.runs.folder import RunFolder
from sca_search.study.artifacts import FILES, shelf_of
from sca_search.study.heartbeat import MISSED_BEATS, Watchman, beating
from sca_search.study.storage import QueueStorage, open_storage, queue_locked, storage_of
from sca_search.training.fit import StopRequestedError

_NAME = "chore"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Chores:
    """The chores of one study."""

    run: RunFolder
    heartbeat: float
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    on_wait: Callable[[str], None] = field(default=lambda _chore: None)

    def once(self, name: str, do: Callable[[], None], files: Callable[[], Iterable[Path]]) -> None:
        """Does it, or waits until another machine has; its files are in the run folder then."""
        if self.run.shared is None:
            do()
            return
        storage = open_storage(self.run, self.stop_requested)
        try:
            done = self._done_by_somebody(_open(self.run, storage), name, do, files)
        finally:
            storage.close()
        if (shelf := shelf_of(self.run)) is not None:
            shelf.fetch(done.user_attrs[FILES])

    def _done_by_somebody(
        self, study: optuna.Study, name: str, do: Callable[[], None], files: Callable[[], Iterable[Path]]
    ) -> FrozenTrial:
        watchman, is_told = Watchman(study, MISSED_BEATS * self.heartbeat), False
        while (done := _done(study, name)) is None:
            if self.stop_requested():
                raise StopRequestedError
            _release(study, watchman)
            trial = _claim(study, name)
            if trial is not None:
                self._do(study, trial, do, files)
            else:
                if not is_told:
                    self.on_wait(name)
                is_told = True
                time.sleep(_POLL_SECONDS)
        return done

    def _do(
        self, study: optuna.Study, trial: FrozenTrial, do: Callable[[], None], files: Callable[[], Iterable[Path]]
    ) -> None:
        storage = storage_of(study)
        try:
            with beating(study, trial._trial_id, self.heartbeat):
                do()
                shelf = shelf_of(self.run)
                kept = shelf.put(path for path in files() if path.exists()) if shelf else {}
        except BaseException:
            with contextlib.suppress(UpdateFinishedTrialError):
                storage.set_trial_state_values(trial._trial_id, TrialState.FAIL)
            raise
        with contextlib.suppress(UpdateFinishedTrialError):  # it was taken away meanwhile, and the other's counts
            storage.set_trial_user_attr(trial._trial_id, FILES, kept)
            storage.set_trial_state_values(trial._trial_id, TrialState.COMPLETE, [0.0])


def _open(run: RunFolder, storage: QueueStorage) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return optuna.create_study(study_name=f"{run.study_name} (chores)", storage=storage, load_if_exists=True)


def _done(study: optuna.Study, name: str) -> FrozenTrial | None:
    complete = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    return next((trial for trial in complete if trial.user_attrs[_NAME] == name), None)


def _claim(study: optuna.Study, name: str) -> FrozenTrial | None:
    """A running trial of this chore's own, unless somebody has one."""
    with queue_locked(study):
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.RUNNING))
        if any(trial.user_attrs.get(_NAME) == name for trial in trials):
            return None
        study.add_trial(optuna.trial.create_trial(state=TrialState.RUNNING, user_attrs={_NAME: name}))
        return study.get_trials(deepcopy=False)[-1]


def _release(study: optuna.Study, watchman: Watchman) -> None:
    for trial in watchman.stopped():
        with queue_locked(study):
            if study.get_trials(deepcopy=False)[trial.number].state == TrialState.RUNNING:
                storage_of(study).set_trial_state_values(trial._trial_id, TrialState.FAIL)
