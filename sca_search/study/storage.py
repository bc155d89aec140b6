"""The storage of a study: Optuna's database with a queue, shared by processes or machines.

A local study is a SQLite file in its run folder. A shared one is in PostgreSQL, which may be restarted while a study
runs: every call is then repeated until the database responds.
"""

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState
from sqlalchemy import URL, Connection, exc, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from sca_search.config.storage_url import shown_address
from sca_search.errors import SpecError, StorageError
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import logger
from sca_search.study.optuna_internals import QueueStorage, RetryingStorage
from sca_search.system.console import scrub

_T = TypeVar("_T")
# If two machines create the tables of an empty database at the same time, one fails and finds them when it retries.
_CREATE_ATTEMPTS = 5
_LOCK_SECONDS = 60.0
# If a machine that holds a lock loses its network, the server notices after about a minute and releases the lock.
_SET_LOCK_SESSION = """
    select set_config('lock_timeout', '5s', false), set_config('tcp_keepalives_idle', '30', false),
           set_config('tcp_keepalives_interval', '10', false), set_config('tcp_keepalives_count', '3', false)
"""
_RESET_SESSION = "select set_config('lock_timeout', '0', false)"


@dataclass(frozen=True)
class RetryPolicy:
    """How long calls are repeated while a database does not respond, and what ends the waiting."""

    seconds: float = 900.0
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    longest_pause: float = 5.0

    def retry(self, attempt: Callable[[], _T], executed: Callable[[], _T | None] = lambda: None) -> _T:
        """The result of `attempt`, or of `executed` if an attempt whose response was lost had its effect."""
        began, pause, is_first = time.monotonic(), 0.1, True
        while True:
            try:
                done = None if is_first else executed()
                return attempt() if done is None else done
            except (StorageInternalError, SQLAlchemyError) as error:
                if not is_transient(error) or time.monotonic() - began > self.seconds or self.stop_requested():
                    raise
                if is_first:
                    logger.warning("the database does not respond, retrying: %s", _cause(error))
                is_first = False
            time.sleep(pause)
            pause = min(2 * pause, self.longest_pause)


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed later: the server is stopped, starting, or overloaded."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) else error
    is_lost = isinstance(cause, DBAPIError) and bool(cause.connection_invalidated)
    # PendingRollbackError: the connection was lost during a transaction.
    return is_lost or isinstance(cause, exc.OperationalError | exc.InterfaceError | exc.PendingRollbackError)


def _cause(error: Exception) -> str:
    """The first line of a driver's message, without passwords."""
    cause = getattr(error.__cause__ or error, "orig", None) or error.__cause__ or error
    return scrub((str(cause).splitlines() or [repr(cause)])[0])


def local_address(run: RunFolder) -> str:
    """The URL of the database in a run folder. The path may contain characters that are special in a URL."""
    return URL.create("sqlite", database=str((run.path / "study.db").resolve())).render_as_string()


class SqliteStorage(QueueStorage):
    """SQLite with a file lock: it cannot lock a row, so two workers could start or end the same trial."""

    def __init__(self, run: RunFolder) -> None:
        # SQLite's own timeout of 5 seconds is too short if several workers write to a slow disk.
        super().__init__(local_address(run), {"connect_args": {"timeout": _LOCK_SECONDS}})
        self._run = run

    def locked(self) -> contextlib.AbstractContextManager[object]:
        return self._run.queue_locked()

    def set_trial_state_values(self, trial_id: int, state: TrialState, values: Sequence[float] | None = None) -> bool:
        with self.locked():  # it compares the state with the old one before it writes the new one
            started: bool = super().set_trial_state_values(trial_id, state, values)
        return started


class PostgresStorage(RetryingStorage):
    """PostgreSQL with retries and advisory locks."""

    def __init__(self, url: str, study_name: str, policy: RetryPolicy) -> None:
        self._policy, self._study_name = policy, study_name
        options = {"application_name": "sca-search", "connect_timeout": 10}
        super().__init__(url, {"pool_pre_ping": True, "connect_args": options})

    def retry(self, attempt: Callable[[], _T], executed: Callable[[], _T | None] = lambda: None) -> _T:
        return self._policy.retry(attempt, executed)

    def locked(self) -> contextlib.AbstractContextManager[object]:
        """Hold the advisory lock of the queue."""
        # Waiting ends after some seconds and starts again, so that a stop request is noticed.
        return self._locking("select pg_advisory_lock(:key)", "")

    def try_locked(self, name: str) -> contextlib.AbstractContextManager[bool]:
        """Hold an advisory lock of the study if it is free; whether it is held.

        The lock ends with its connection: with the process, with its machine, or with a restart of the database.
        """
        return self._locking("select pg_try_advisory_lock(:key)", name)

    @contextlib.contextmanager
    def _locking(self, lock: str, name: str) -> Iterator[bool]:
        whole = f"{self._study_name}\n{name}" if name else self._study_name
        key = int.from_bytes(hashlib.sha256(whole.encode()).digest()[:8], "big", signed=True)
        connection, result = self.retry(lambda: self._connect_and(lock, key))
        is_held = result is not False  # the lock that waits returns nothing
        try:
            yield is_held
        finally:
            with contextlib.suppress(SQLAlchemyError):  # a lost connection has released its lock
                if is_held:
                    connection.execute(text("select pg_advisory_unlock(:key)"), {"key": key})
                connection.execute(text(_RESET_SESSION))
            with contextlib.suppress(SQLAlchemyError):
                connection.close()

    def _connect_and(self, lock: str, key: int) -> tuple[Connection, object]:
        connection = self.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            connection.execute(text(_SET_LOCK_SESSION))
            return connection, connection.execute(text(lock), {"key": key}).scalar()
        except BaseException:
            connection.close()
            raise


def open_storage(
    run: RunFolder, stop_requested: Callable[[], bool] = lambda: False, *, at_once: bool = False
) -> QueueStorage:
    """The storage of a run's study.

    If the database cannot be reached, a running study waits for it; a new one (`at_once`) fails.
    """
    try:
        if run.shared is None:
            with storage_errors(run):
                return SqliteStorage(run)
        return _open_shared(run.shared.storage, run.study_name, RetryPolicy(stop_requested=stop_requested), at_once)
    except ImportError as error:
        raise SpecError("--storage needs the PostgreSQL driver: pip install 'sca-search[postgres]'") from error
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:  # the last: tables of another Optuna
        raise StorageError(f"{_place(run)}: the database cannot be used: {_cause(error)}") from None


def _open_shared(url: str, study_name: str, policy: RetryPolicy, at_once: bool) -> PostgresStorage:
    opening = RetryPolicy(seconds=0.0) if at_once else policy
    for _ in range(_CREATE_ATTEMPTS - 1):
        try:
            return opening.retry(lambda: PostgresStorage(url, study_name, policy))
        except (exc.ProgrammingError, exc.IntegrityError):
            time.sleep(secrets.randbelow(1000) / 1000)
    return opening.retry(lambda: PostgresStorage(url, study_name, policy))


def _place(run: RunFolder) -> str:
    return shown_address(run.shared.storage) if run.shared else str(run.path / "study.db")


@contextlib.contextmanager
def storage_errors(run: RunFolder) -> Iterator[None]:
    """Raise StorageError if the database cannot be written, for example because the disk is full."""
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        # The error may quote the URL with its password, so it is not chained.
        raise StorageError(f"{_place(run)} cannot be written: {_cause(error)}") from None
