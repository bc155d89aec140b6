"""The storage of shared studies, on a real PostgreSQL: each trial is started once, and calls are retried."""

import contextlib
import multiprocessing
import re
import secrets
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import TrialState, create_trial

from sca_search.config.storage_url import Shared, storage_address
from sca_search.errors import StorageError
from sca_search.runs.folder import RunFolder
from sca_search.study.optuna_internals import QueueEmptyError, QueueStorage, queue_locked
from sca_search.study.storage import PostgresStorage, RetryPolicy, open_storage, storage_errors
from tests.support.postgres import Server, running_server

LOST = StorageInternalError("gone")
LOST.__cause__ = sqlalchemy.exc.OperationalError("select", {}, Exception("server closed the connection"))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server() as running:
        yield running


@pytest.fixture
def run(server: Server, tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "joint", Shared(storage_address(server.new_database())))


_OPENED: list[QueueStorage] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while _OPENED:
        _OPENED.pop().close()


def opened(storage: QueueStorage) -> QueueStorage:
    _OPENED.append(storage)
    return storage


def a_study(run: RunFolder) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return a_stored_study(opened(open_storage(run)))


def a_stored_study(storage: QueueStorage) -> optuna.Study:
    return optuna.create_study(study_name="x", storage=storage, load_if_exists=True)


def test_a_transient_error_is_retried() -> None:
    failures = [LOST, LOST, LOST]

    def attempt() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert RetryPolicy(seconds=10, longest_pause=0.01).retry(attempt) == "done"


def test_an_executed_call_is_not_repeated() -> None:
    done: list[int] = []

    def attempt() -> str:
        done.append(1)
        raise LOST

    policy = RetryPolicy(seconds=10, longest_pause=0.01)
    assert policy.retry(attempt, lambda: "executed" if done else None) == "executed"
    assert len(done) == 1


def test_retries_end_after_a_time_or_with_a_stop() -> None:
    def attempt() -> None:
        raise LOST

    with pytest.raises(StorageInternalError):
        RetryPolicy(seconds=0.05, longest_pause=0.01).retry(attempt)
    began = time.monotonic()
    with pytest.raises(StorageInternalError):
        RetryPolicy(seconds=1000, stop_requested=lambda: True).retry(attempt)
    assert time.monotonic() - began < 100


def test_other_errors_are_not_retried() -> None:
    tries: list[int] = []

    def attempt() -> None:
        tries.append(1)
        raise StorageInternalError("too long") from sqlalchemy.exc.DataError("insert", {}, Exception("too long"))

    with pytest.raises(StorageInternalError):
        RetryPolicy(seconds=10).retry(attempt)
    assert len(tries) == 1


def test_an_empty_queue_creates_no_trial(run: RunFolder) -> None:
    study = a_study(run)
    with pytest.raises(QueueEmptyError):
        study.ask()
    study.enqueue_trial({})
    assert study.ask().number == 0
    with pytest.raises(QueueEmptyError):
        study.ask()


def _start_all(address: str, folder: Path, results: "multiprocessing.Queue[list[int]]") -> None:
    study = a_study(RunFolder(folder, Shared(address)))
    started = []
    while True:
        try:
            started.append(study.ask().number)
        except QueueEmptyError:
            break
    results.put(started)


@pytest.mark.e2e
def test_many_processes_start_each_trial_once(run: RunFolder) -> None:
    assert run.shared is not None
    study = a_study(run)
    for _ in range(60):
        study.enqueue_trial({})
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[list[int]] = context.Queue()
    processes = [context.Process(target=_start_all, args=(run.shared.storage, run.path, results)) for _ in range(4)]
    for process in processes:
        process.start()
    started = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert sorted(number for each in started for number in each) == list(range(60))


@pytest.mark.e2e
def test_calls_wait_for_a_database_that_restarts(run: RunFolder, server: Server) -> None:
    """Calls during an outage return their results, and each has its effect once."""
    study = a_study(run)
    server.stop()
    starting = threading.Timer(1.0, server.start)
    starting.start()
    study.enqueue_trial({}, user_attrs={"candidate": 7})
    starting.join()
    assert [trial.user_attrs["candidate"] for trial in study.get_trials()] == [7]
    trial = study.ask()
    server.stop()
    starting = threading.Timer(1.0, server.start)
    starting.start()
    trial.set_user_attr("a", 1)
    study.tell(trial, 1.0)
    starting.join()
    (ended,) = study.get_trials()
    assert (ended.state, ended.value, ended.user_attrs["a"]) == (TrialState.COMPLETE, 1.0, 1)


def test_opening_a_storage_waits_for_a_database_that_restarts(run: RunFolder, server: Server) -> None:
    a_study(run)
    server.stop()
    starting = threading.Timer(1.0, server.start)
    starting.start()
    assert a_study(run).get_trials() == []
    starting.join()


class _ResponseLost:
    """Executes a call and loses its response, once."""

    def __init__(self) -> None:
        self.left = 1

    def around(self, call):
        def lossy(*arguments, **options):
            result = call(*arguments, **options)
            if self.left:
                self.left -= 1
                raise LOST
            return result

        return lossy


def test_a_trial_is_created_once_if_the_response_is_lost(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    study = a_study(run)
    lossy = _ResponseLost()
    monkeypatch.setattr(
        optuna.storages.RDBStorage, "_create_new_trial", lossy.around(optuna.storages.RDBStorage._create_new_trial)
    )
    study.add_trial(create_trial(state=TrialState.WAITING))
    assert lossy.left == 0
    assert len(study.get_trials()) == 1


def test_a_trial_is_created_once_if_optuna_itself_retries(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its retries are inside the call, after a commit whose response was lost."""
    study, left = a_study(run), [1]
    whole = optuna.storages._rdb.storage._create_scoped_session

    @contextlib.contextmanager
    def lossy(*arguments: object, **options: object) -> Iterator[object]:
        with whole(*arguments, **options) as session:
            yield session
        if left and options.get("ignore_integrity_error") is None and _made(run):
            left.clear()
            raise LOST

    monkeypatch.setattr(optuna.storages._rdb.storage, "_create_scoped_session", lossy)
    study.add_trial(create_trial(state=TrialState.WAITING))
    monkeypatch.undo()
    assert not left
    assert len(study.get_trials()) == 1


def _made(run: RunFolder) -> int:
    assert run.shared is not None
    engine = sqlalchemy.create_engine(run.shared.storage)
    with engine.connect() as connection:
        count = connection.execute(sqlalchemy.text("select count(*) from trials")).scalar_one()
    engine.dispose()
    return int(count)


def test_a_trial_ends_once_if_the_response_is_lost(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    study = a_study(run)
    study.enqueue_trial({})
    trial = study.ask()
    lossy = _ResponseLost()
    whole = optuna.storages.RDBStorage.set_trial_state_values
    monkeypatch.setattr(optuna.storages.RDBStorage, "set_trial_state_values", lossy.around(whole))
    study.tell(trial, 0.5)
    assert lossy.left == 0
    assert study.get_trials()[0].value == 0.5


def test_only_one_process_changes_the_queue(run: RunFolder) -> None:
    first, second = a_study(run), a_study(run)
    order: list[str] = []

    def other() -> None:
        with queue_locked(second):
            order.append("second")

    with queue_locked(first):
        waiting = threading.Thread(target=other)
        waiting.start()
        time.sleep(0.3)
        order.append("first")
    waiting.join(timeout=30)
    assert order == ["first", "second"]


def test_a_trial_of_a_run_folder_does_not_end_while_another_worker_changes_the_queue(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    ours, theirs = (opened(open_storage(run)) for _ in range(2))
    study = a_stored_study(ours)
    study.enqueue_trial({})
    trial = study.ask()
    other = a_stored_study(theirs)

    def tell() -> None:
        with pytest.raises(UpdateFinishedTrialError):
            study.tell(trial, 0.5)

    ending = threading.Thread(target=tell)
    with queue_locked(other):
        ending.start()
        ending.join(timeout=1.0)
        assert other.get_trials()[0].state == TrialState.RUNNING
        theirs.set_trial_state_values(trial._trial_id, TrialState.FAIL)  # a thread may lock the queue again
    ending.join()
    assert other.get_trials()[0].state == TrialState.FAIL


@pytest.mark.timeout(60)
def test_a_stop_ends_the_waiting_for_the_queue(run: RunFolder) -> None:
    assert run.shared is not None
    holder = opened(PostgresStorage(run.shared.storage, "x", RetryPolicy()))
    waiting = opened(PostgresStorage(run.shared.storage, "x", RetryPolicy(stop_requested=lambda: True)))
    with holder.locked(), pytest.raises(sqlalchemy.exc.OperationalError, match="lock timeout"), waiting.locked():
        pass
    with waiting.locked():  # the connection that timed out is usable
        pass


def test_a_lock_ends_with_its_connection(run: RunFolder, server: Server) -> None:
    assert run.shared is not None
    holder = PostgresStorage(run.shared.storage, "x", RetryPolicy())
    opened(holder)
    with holder.locked():
        server.stop()
        server.start()
    with holder.locked():
        pass


def test_a_named_lock_is_held_by_one_and_free_after_it(run: RunFolder) -> None:
    assert run.shared is not None
    first, second = (opened(PostgresStorage(run.shared.storage, "x", RetryPolicy())) for _ in range(2))
    with first.try_locked("task") as is_held:
        assert is_held
        with second.try_locked("task") as is_free, second.try_locked("other") as is_other_free:
            assert (is_free, is_other_free) == (False, True)
        with second.locked():  # the lock of the queue is another
            pass
    with second.try_locked("task") as is_free:
        assert is_free


def test_a_database_that_cannot_be_reached_is_one_line_without_the_password(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, Shared(storage_address("postgresql://me:hunter-2@127.0.0.1:1/x")))
    with pytest.raises(StorageError) as caught:
        open_storage(run, at_once=True)
    sentence = str(caught.value)
    assert sentence.startswith("postgresql://me:***@127.0.0.1:1/x: the database cannot be used: ")
    assert "hunter-2" not in sentence
    assert "\n" not in sentence
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_database_without_permission_is_one_line(
    has_tables: bool, run: RunFolder, server: Server, tmp_path: Path
) -> None:
    """Tables cannot be created, or belong to another role."""
    assert run.shared is not None
    if has_tables:
        a_study(run)
    user = f"u{secrets.token_hex(4)}"
    engine = sqlalchemy.create_engine(run.shared.storage)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text(f"create role {user} login"))
        connection.execute(sqlalchemy.text("revoke create on schema public from public"))
    engine.dispose()
    address = re.sub(r"//[^@]*@", f"//{user}:hunter-2@", run.shared.storage)
    with pytest.raises(StorageError) as caught:
        open_storage(RunFolder(tmp_path, Shared(address)), at_once=True)
    assert "the database cannot be used: permission denied" in str(caught.value)
    assert "hunter-2" not in str(caught.value)


def test_a_database_of_another_version_of_optuna_is_one_line(run: RunFolder) -> None:
    study = a_study(run)
    assert run.shared is not None
    engine = sqlalchemy.create_engine(run.shared.storage)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("update alembic_version set version_num = 'v99.0.0.a'"))
    engine.dispose()
    assert study.get_trials() == []
    with pytest.raises(StorageError, match="the database cannot be used: The runtime optuna version"):
        open_storage(run, at_once=True)


def test_a_run_folder_of_another_optuna_is_one_line(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    open_storage(run).close()
    with contextlib.closing(sqlite3.connect(run.path / "study.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
        database.commit()
    with pytest.raises(StorageError, match=r"study\.db: the database cannot be used: The runtime optuna version"):
        open_storage(run)


@pytest.mark.parametrize("name", ["q?x=1", "a{b}", "p%20p", "ü b", "#1", "x@y:z"])
def test_a_study_is_in_its_run_folder_for_any_name(name: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / name)
    run.path.mkdir()
    a_study(run)
    assert (run.path / "study.db").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_a_database_that_fails_for_good_is_one_line_without_the_password(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, Shared("postgresql+psycopg://me:hunter-2@db/x"))
    with pytest.raises(StorageError) as caught, storage_errors(run):
        raise LOST
    assert str(caught.value) == "postgresql://me:***@db/x cannot be written: server closed the connection"
