"""All private API of Optuna that this package uses, written for Optuna 5.0.

`tests/study/test_optuna_internals.py` fails with any other version, and if one of the attributes changes. The public
API lacks three things: a queue that hands out each waiting trial once in an order of our own, creation of a trial that
can be repeated after a lost connection, and reading a study without reading all waiting trials again.
"""

import contextlib
import functools
import secrets
from collections.abc import Callable, Container, Sequence
from copy import deepcopy
from typing import Any, TypeVar
from weakref import proxy

import optuna
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb.models import TrialModel, TrialSystemAttributeModel
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.trial import FrozenTrial, TrialState

_T = TypeVar("_T")
_TOKEN = "sca-search:token"
# Higher than any trial id: with it, `_get_trials` returns only the trials that are named by their ids.
_MAX_TRIAL_ID = 2**31 - 1


class QueueEmptyError(Exception):
    """No trial is waiting. Optuna would create one."""


class WaitingTrialCache(RDBStorage):
    """Reads a waiting trial once.

    Optuna reads all unfinished trials again whenever trials are requested, several times per trial: with ten thousand
    in the queue, each time takes seconds. A waiting trial does not change until a worker starts it. Optuna's cache, in
    front of every database, requests the trials with higher ids than the finished ones, and by their ids those that
    were not finished when it read them.
    """

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
            # A trial that is waiting now was waiting when it was read: no state returns to waiting.
            if (state != TrialState.WAITING if trial in included_trial_ids else trial > trial_id_greater_than)
        }
        trials: list[FrozenTrial] = super()._get_trials(study_id, None, changed, _MAX_TRIAL_ID) if changed else []
        return trials

    def _states(self, study_id: int, first: int) -> dict[int, TrialState]:
        """The state per trial, from a trial id on."""
        with _create_scoped_session(self.scoped_session) as session:
            query = session.query(TrialModel.trial_id, TrialModel.state)
            found = query.filter(TrialModel.study_id == study_id, TrialModel.trial_id >= first).all()
        return {trial: state for trial, state in found}  # noqa: C416 - rows are tuples by behavior, not by type


class QueueStorage(WaitingTrialCache):
    """Hands out each waiting trial to one worker, and creates no trials that were not queued."""

    def __init__(self, url: str, engine_options: dict[str, Any]) -> None:
        try:
            super().__init__(url, engine_kwargs=engine_options)
        except BaseException:
            if hasattr(self, "engine"):  # nothing else could close its connections
                self.close()
            raise

    def locked(self) -> contextlib.AbstractContextManager[object]:
        """Only one process at a time changes the queue."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connections."""
        self.remove_session()
        self.engine.dispose()

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        if template_trial is None:
            raise QueueEmptyError
        return super()._create_new_trial(study_id, template_trial)


class RetryingStorage(QueueStorage):
    """Repeats every call until the database responds.

    A call whose response was lost may have been executed, so a call that must not happen twice is looked up first.
    """

    def __init__(self, url: str, engine_options: dict[str, Any]) -> None:
        self._attempted: set[str] = set()  # tokens of trials that are being created
        super().__init__(url, engine_options)

    def retry(self, attempt: Callable[[], _T], executed: Callable[[], _T | None] = lambda: None) -> _T:
        """The result of `attempt`, or of `executed` if an attempt whose response was lost had its effect."""
        raise NotImplementedError

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        marked, token = deepcopy(template_trial), secrets.token_hex(8)
        if marked is not None:
            marked.system_attrs = {**marked.system_attrs, _TOKEN: token}
        create = super()._create_new_trial
        try:
            return self.retry(lambda: create(study_id, marked))
        finally:
            self._attempted.discard(token)

    def _get_prepared_new_trial(self, study_id: int, template_trial: FrozenTrial | None, session: Any) -> TrialModel:
        """Optuna retries too: a trial that an earlier attempt created is found by its token."""
        token = template_trial.system_attrs[_TOKEN] if template_trial is not None else ""
        if token in self._attempted:
            marks = TrialSystemAttributeModel
            created = session.query(TrialModel).join(marks, marks.trial_id == TrialModel.trial_id)
            own = created.filter(TrialModel.study_id == study_id, marks.key == _TOKEN, marks.value_json == f'"{token}"')
            found: TrialModel | None = own.one_or_none()
            if found is not None:
                return found
        self._attempted.add(token)
        return super()._get_prepared_new_trial(study_id, template_trial, session)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """A trial that was started by a call whose response was lost has no heartbeat, and is requeued."""
        change = super().set_trial_state_values

        def executed() -> bool | None:
            now = RDBStorage.get_trial(self, trial_id)
            is_same = now.state == state and state.is_finished() and (values is None or now.values == list(values))
            return True if is_same else None

        return self.retry(lambda: change(trial_id, state, values), executed)


def _retrying(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: RetryingStorage, *arguments: Any, **options: Any) -> Any:
        return self.retry(lambda: method(self, *arguments, **options))

    return call


RETRIED = (
    "create_new_study",  # the second call finds the name in use, which Optuna's create_study accepts
    "set_study_user_attr",
    "set_study_system_attr",
    "get_study_id_from_name",
    "get_study_name_from_id",
    "get_study_directions",
    "get_study_user_attrs",
    "get_study_system_attrs",
    "get_all_studies",
    "_set_trial_param",
    "set_trial_user_attr",
    "set_trial_system_attr",
    "get_trial",
    "get_all_trials",
    "_get_trials",
    "get_trial_id_from_study_id_trial_number",
)
"""Reads, and writes that may be repeated; including those that Optuna's cache calls by private names."""
for _name in RETRIED:
    setattr(RetryingStorage, _name, _retrying(getattr(QueueStorage, _name)))


def trial_id(trial: FrozenTrial | optuna.Trial) -> int:
    """The id of a trial in its storage."""
    return int(trial._trial_id)


def storage_of(study: optuna.Study) -> BaseStorage:
    """The storage of a study, with Optuna's cache."""
    return study._storage


def queue_locked(study: optuna.Study) -> contextlib.AbstractContextManager[object]:
    """Only one process at a time changes the queue; a study in memory has no other process."""
    backend = getattr(study._storage, "_backend", None)
    return backend.locked() if isinstance(backend, QueueStorage) else contextlib.nullcontext()


def set_queue_order(study: optuna.Study, next_trial: Callable[[optuna.Study], int | None]) -> None:
    """Let `next_trial` choose and start the next waiting trial. Optuna takes them in the order of creation."""
    study._pop_waiting_trial_id = functools.partial(next_trial, proxy(study))  # type: ignore[method-assign]
