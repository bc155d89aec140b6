"""A study's database, read so that a long queue costs nothing.

Optuna reads all trials that are not finished anew whenever it is asked for trials, several times a trial: with ten
thousand in the queue, each of these takes seconds. A trial that waits does not change until somebody takes it, so here
it is read once.
"""

from collections.abc import Container

from optuna.storages import RDBStorage
from optuna.storages._rdb.models import TrialModel
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState

# No trial has an id as high: asked for those above it and for some by their ids, a storage gives the latter alone.
_ABOVE_ALL = 2**31 - 1


class QuietQueue(RDBStorage):
    """Made for one reader that keeps what it is given, as Optuna's cache in front of every database does."""

    _waiting: frozenset[int] = frozenset()  # the ids that the reader knows to wait

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        asked_for = (study_id, states, included_trial_ids, trial_id_greater_than)
        if not self._waiting or states is not None:
            trials: list[FrozenTrial] = super()._get_trials(*asked_for)
            still: frozenset[int] = self._waiting
        else:
            found = self._states(*asked_for)
            still = frozenset(each for each in self._waiting if found.get(each) == TrialState.WAITING)
            changed = found.keys() - still
            trials = super()._get_trials(study_id, None, changed, _ABOVE_ALL) if changed else []
        if states is None:
            # What was taken between the two queries came as it is now, and is not said to wait.
            self._waiting = still | {trial._trial_id for trial in trials if trial.state == TrialState.WAITING}
        return trials

    def _states(
        self, study_id: int, _states: object, included_trial_ids: set[int], trial_id_greater_than: int
    ) -> dict[int, TrialState]:
        """The state that each trial asked for has now, by its id."""
        first = min([trial_id_greater_than + 1, *included_trial_ids])
        with _create_scoped_session(self.scoped_session) as session:
            query = session.query(TrialModel.trial_id, TrialModel.state)
            found = query.filter(TrialModel.study_id == study_id, TrialModel.trial_id >= first).all()
        return {trial: state for trial, state in found if trial > trial_id_greater_than or trial in included_trial_ids}
