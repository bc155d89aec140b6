"""A study's storage: Optuna's, with a queue that hands out each waiting trial once, and with patience where machines
share it.

A study on one machine is a SQLite file in its run folder. A shared one is in PostgreSQL, which may be stopped and
started again while a study runs: every call is then tried again until the database answers. A call whose answer was
lost may have been carried out, so that what must not happen twice is looked for before it is tried again.
"""

import contextlib
import functools
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, RDBStorage
from optuna.storages._rdb.models import TrialModel, TrialSystemAttributeModel
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import URL, text
from sqlalchemy.exc import (
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    PendingRollbackError,
    ProgrammingError,
    SQLAlchemyError,
)

from sca_search.config.storage_url import shown_address
from sca_search.errors import SpecError, StorageError
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import logger
from sca_search.study.quiet_queue import QuietQueue
from sca_search.system.secrets import scrub

_T = TypeVar("_T")
_TOKEN = "sca-search:token"
# Two machines that make the tables of an empty database at the same moment: one of them fails, and finds them then.
_TRIES_AT_TABLES = 5
_SECONDS_FOR_A_LOCK = 60.0
# A machine that holds the queue's lock and is cut off: the server notices after about a minute, and lets it go.
_SET_LOCK_SESSION = """
    select set_config('lock_timeout', '5s', false), set_config('tcp_keepalives_idle', '30', false),
           set_config('tcp_keepalives_interval', '10', false), set_config('tcp_keepalives_count', '3', false)
"""
_UNLOCK = "select pg_advisory_unlock(:key), set_config('lock_timeout', '0', false)"


class NothingWaitsError(Exception):
    """There is no trial in the queue to be taken; Optuna would make one of its own."""


@dataclass(frozen=True)
class Patience:
    """How long a database may be gone, and who may cut the waiting short."""

    seconds: float = 900.0
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    longest_pause: float = 5.0

    def retry(self, attempt: Callable[[], _T], carried_out: Callable[[], _T | None] = lambda: None) -> _T:
        """What `attempt` gives, or `carried_out` if an attempt whose answer was lost had its effect."""
        began, pause, is_first = time.monotonic(), 0.1, True
        while True:
            try:
                done = None if is_first else carried_out()
                return attempt() if done is None else done
            except (StorageInternalError, SQLAlchemyError) as error:
                if not is_passing(error) or time.monotonic() - began > self.seconds or self.stop_requested():
                    raise
                if is_first:
                    logger.warning("the database does not answer, trying again: %s", _cause(error))
                is_first = False
            time.sleep(pause)
            pause = min(2 * pause, self.longest_pause)


def is_passing(error: Exception) -> bool:
    """Whether the same call may succeed later: the server is gone, starting, or full."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    is_lost = isinstance(cause, DBAPIError) and bool(cause.connection_invalidated)
    # The last one is raised where a connection was lost in the middle of a transaction.
    return is_lost or isinstance(cause, OperationalError | InterfaceError | PendingRollbackError)


def _cause(error: Exception) -> str:
    """The first line of what a driver says, which may quote an address."""
    cause = getattr(error.__cause__ or error, "orig", None) or error.__cause__ or error
    return scrub((str(cause).splitlines() or [repr(cause)])[0])


class QueueStorage(QuietQueue):
    """A waiting trial is taken by one worker, and trials are only those that were queued."""

    def __init__(self, address: str, engine_options: dict[str, Any]) -> None:
        try:
            super().__init__(address, engine_kwargs=engine_options)
        except BaseException:
            if hasattr(self, "engine"):  # it has connections, and nobody else who could end them
                self.close()
            raise

    def locked(self) -> contextlib.AbstractContextManager[None]:
        """One worker at a time changes the queue."""
        raise NotImplementedError

    def close(self) -> None:
        """Ends its connections, which Python would complain of."""
        self.remove_session()
        self.engine.dispose()

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        if template_trial is None:
            raise NothingWaitsError
        return super()._create_new_trial(study_id, template_trial)


def local_address(run: RunFolder) -> str:
    """Of the database in a run folder, whose path may hold what means something in an address."""
    return URL.create("sqlite", database=str((run.path / "study.db").resolve())).render_as_string()


class LocalStorage(QueueStorage):
    """SQLite cannot lock a row: two workers that look at the same moment would both find a trial waiting."""

    def __init__(self, run: RunFolder) -> None:
        # SQLite's own patience of 5 seconds is short where several workers write to a slow disk.
        super().__init__(local_address(run), {"connect_args": {"timeout": _SECONDS_FOR_A_LOCK}})
        self._run = run

    def locked(self) -> contextlib.AbstractContextManager[None]:
        return self._run.queue_locked()

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        with self.locked() if state == TrialState.RUNNING else contextlib.nullcontext():
            taken: bool = super().set_trial_state_values(trial_id, state, values)
        return taken


class SharedStorage(QueueStorage):
    """PostgreSQL, with patience."""

    def __init__(self, address: str, study_name: str, patience: Patience) -> None:
        self.patience = patience
        self._tried: set[str] = set()  # tokens of trials that are being made
        # What is held while the queue changes: a number of this study's own.
        self._key = int.from_bytes(hashlib.sha256(study_name.encode()).digest()[:8], "big", signed=True)
        options = {"application_name": "sca-search", "connect_timeout": 10}
        super().__init__(address, {"pool_pre_ping": True, "connect_args": options})

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        connection = self.patience.retry(self._connect_locked)
        try:
            yield
        finally:
            with contextlib.suppress(SQLAlchemyError):  # a connection that is gone has let go of it
                connection.execute(text(_UNLOCK), {"key": self._key})
            with contextlib.suppress(SQLAlchemyError):
                connection.close()

    def _connect_locked(self) -> Any:
        connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            # Waiting ends after some seconds and begins again, so that it hears whether to stop.
            connection.execute(text(_SET_LOCK_SESSION))
            connection.execute(text("select pg_advisory_lock(:key)"), {"key": self._key})
        except BaseException:
            connection.close()
            raise
        return connection

    def _create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> FrozenTrial:
        marked, token = deepcopy(template_trial), secrets.token_hex(8)
        if marked is not None:
            marked.system_attrs = {**marked.system_attrs, _TOKEN: token}
        create = super()._create_new_trial
        try:
            return self.patience.retry(lambda: create(study_id, marked))
        finally:
            self._tried.discard(token)

    def _get_prepared_new_trial(self, study_id: int, template_trial: FrozenTrial | None, session: Any) -> TrialModel:
        """Optuna, too, tries again by itself: a trial that an earlier attempt has made is found by its token."""
        token = template_trial.system_attrs[_TOKEN] if template_trial is not None else ""
        if token in self._tried:
            marks = TrialSystemAttributeModel
            made = session.query(TrialModel).join(marks, marks.trial_id == TrialModel.trial_id)
            mine = made.filter(TrialModel.study_id == study_id, marks.key == _TOKEN, marks.value_json == f'"{token}"')
            found: TrialModel | None = mine.one_or_none()
            if found is not None:
                return found
        self._tried.add(token)
        return super()._get_prepared_new_trial(study_id, template_trial, session)

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        """A trial taken in a call whose answer was lost is left: nobody's heart beats for it, and it is put back."""
        change = super().set_trial_state_values

        def carried_out() -> bool | None:
            now = RDBStorage.get_trial(self, trial_id)
            is_same = now.state == state and state.is_finished() and (values is None or now.values == list(values))
            return True if is_same else None

        return self.patience.retry(lambda: change(trial_id, state, values), carried_out)


def _steadily(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: SharedStorage, *arguments: Any, **options: Any) -> Any:
        return self.patience.retry(lambda: method(self, *arguments, **options))

    return call


# Reading, and writing what may be written twice; those that Optuna's cache calls under names of its own among them.
for _name in (
    "create_new_study",  # a second one finds the name taken, which Optuna's create_study takes for an answer
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
):
    setattr(SharedStorage, _name, _steadily(getattr(QueueStorage, _name)))


def open_storage(
    run: RunFolder, stop_requested: Callable[[], bool] = lambda: False, *, at_once: bool = False
) -> QueueStorage:
    """The storage of a run's study. A database that cannot be reached is waited for, or said at once: who begins wants
    to know, who is in the middle of a study has time."""
    if run.shared is None:
        with storage_errors(run), _versions_told(str(run.path / "study.db")):
            return LocalStorage(run)
    address, patience = run.shared.storage, Patience(stop_requested=stop_requested)
    opening = Patience(seconds=0.0) if at_once else patience
    for tried in range(1, 1 + _TRIES_AT_TABLES):
        try:
            with _versions_told(shown_address(address)):
                return opening.retry(lambda: SharedStorage(address, run.study_name, patience))
        except ImportError as error:
            raise SpecError("--storage needs PostgreSQL's driver: pip install 'sca-search[postgres]'") from error
        except (SQLAlchemyError, StorageInternalError) as error:
            if tried == _TRIES_AT_TABLES or not isinstance(error, ProgrammingError | IntegrityError):
                raise _unusable(shown_address(address), error) from None
            time.sleep(secrets.randbelow(1000) / 1000)
    raise AssertionError("the loop ends by itself")


@contextlib.contextmanager
def _versions_told(place: str) -> Iterator[None]:
    """Tables that another version of Optuna's has made, as an error of ours."""
    try:
        yield
    except RuntimeError as error:
        raise _unusable(place, error) from None


def _unusable(place: str, error: Exception) -> StorageError:
    return StorageError(f"{place}: the database cannot be used: {_cause(error)}")


def storage_of(study: optuna.Study) -> BaseStorage:
    """What keeps a study, for what Optuna's own trials do not offer."""
    return study._storage


def queue_locked(study: optuna.Study) -> contextlib.AbstractContextManager[None]:
    """One worker at a time changes the queue; a study in memory has no other."""
    backend = getattr(study._storage, "_backend", None)
    return backend.locked() if isinstance(backend, QueueStorage) else contextlib.nullcontext()


@contextlib.contextmanager
def storage_errors(run: RunFolder) -> Iterator[None]:
    """A database that cannot be written (a full disk, mostly) is the machine's fault, in one sentence."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        place = shown_address(run.shared.storage) if run.shared else run.path / "study.db"
        # The error itself may quote the address with its password, so that it does not come along.
        raise StorageError(f"{place} cannot be written: {_cause(error)}") from None
