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
    """For Optuna's cache, which stands in front of every database: it keeps finished trials, asks for those with higher
    ids than these, and includes the ids of trials that it has and that were not finished when it read them."""

    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        if states is not None or not included_trial_ids:
            some: list[FrozenTrial] = super()._get_trials(study_id, states, included_trial_ids, trial_id_greater_than)
            return some
        first = min(trial_id_greater_than + 1, *included_trial_ids)
        changed = {
            trial
            for trial, state in self._states(study_id, first).items()
            # One that waits now has waited when it was read: nothing turns back.
            if (state != TrialState.WAITING if trial in included_trial_ids else trial > trial_id_greater_than)
        }
        trials: list[FrozenTrial] = super()._get_trials(study_id, None, changed, _ABOVE_ALL) if changed else []
        return trials

    def _states(self, study_id: int, first: int) -> dict[int, TrialState]:
        """The state of each trial from an id on."""
        with _create_scoped_session(self.scoped_session) as session:
            query = session.query(TrialModel.trial_id, TrialModel.state)
            found = query.filter(TrialModel.study_id == study_id, TrialModel.trial_id >= first).all()
        return {trial: state for trial, state in found}  # noqa: C416 - rows are tuples by behaviour, not by type
