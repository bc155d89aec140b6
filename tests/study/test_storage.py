"""The storage of shared studies, on a real PostgreSQL: one taker for a trial, patience, and nothing done twice."""

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
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState, create_trial

from sca_search.config.storage_url import Shared, storage_address
from sca_search.errors import StorageError
from sca_search.runs.folder import RunFolder
from sca_search.study.storage import (
    NothingWaitsError,
    Patience,
    QueueStorage,
    SharedStorage,
    open_storage,
    queue_locked,
    storage_errors,
)
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
    return optuna.create_study(study_name="x", storage=opened(open_storage(run)), load_if_exists=True)


def test_what_fails_for_a_while_is_tried_again() -> None:
    failures = [LOST, LOST, LOST]

    def attempt() -> str:
        if failures:
            raise failures.pop()
        return "done"

    assert Patience(seconds=10, longest_pause=0.01).retry(attempt) == "done"


def test_what_was_carried_out_is_not_done_again() -> None:
    done: list[int] = []

    def attempt() -> str:
        done.append(1)
        raise LOST

    patience = Patience(seconds=10, longest_pause=0.01)
    assert patience.retry(attempt, lambda: "carried out" if done else None) == "carried out"
    assert len(done) == 1


def test_patience_ends_and_a_stop_cuts_it_short() -> None:
    def attempt() -> None:
        raise LOST

    with pytest.raises(StorageInternalError):
        Patience(seconds=0.05, longest_pause=0.01).retry(attempt)
    began = time.monotonic()
    with pytest.raises(StorageInternalError):
        Patience(seconds=1000, stop_requested=lambda: True).retry(attempt)
    assert time.monotonic() - began < 100


def test_other_errors_are_not_tried_again() -> None:
    tries: list[int] = []

    def attempt() -> None:
        tries.append(1)
        raise StorageInternalError("too long") from sqlalchemy.exc.DataError("insert", {}, Exception("too long"))

    with pytest.raises(StorageInternalError):
        Patience(seconds=10).retry(attempt)
    assert len(tries) == 1


def test_nothing_is_made_where_nothing_waits(run: RunFolder) -> None:
    study = a_study(run)
    with pytest.raises(NothingWaitsError):
        study.ask()
    study.enqueue_trial({})
    assert study.ask().number == 0
    with pytest.raises(NothingWaitsError):
        study.ask()


def _take(address: str, folder: Path, told: "multiprocessing.Queue[list[int]]") -> None:
    study = a_study(RunFolder(folder, Shared(address)))
    taken = []
    while True:
        try:
            taken.append(study.ask().number)
        except NothingWaitsError:
            break
    told.put(taken)


@pytest.mark.e2e
def test_many_takers_take_each_trial_once(run: RunFolder) -> None:
    assert run.shared is not None
    study = a_study(run)
    for _ in range(60):
        study.enqueue_trial({})
    context = multiprocessing.get_context("spawn")
    told: multiprocessing.Queue[list[int]] = context.Queue()
    takers = [context.Process(target=_take, args=(run.shared.storage, run.path, told)) for _ in range(4)]
    for taker in takers:
        taker.start()
    taken = [told.get(timeout=120) for _ in takers]
    for taker in takers:
        taker.join()
    assert sorted(number for each in taken for number in each) == list(range(60))


@pytest.mark.e2e
def test_a_database_that_is_restarted_is_waited_for(run: RunFolder, server: Server) -> None:
    """Calls in the middle of an outage come back with their answers, and each has its effect once."""
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
    (told,) = study.get_trials()
    assert (told.state, told.value, told.user_attrs["a"]) == (TrialState.COMPLETE, 1.0, 1)


def test_a_storage_opened_in_the_middle_of_an_outage_waits(run: RunFolder, server: Server) -> None:
    a_study(run)
    server.stop()
    starting = threading.Timer(1.0, server.start)
    starting.start()
    assert a_study(run).get_trials() == []
    starting.join()


class _AnswerLost:
    """Carries a call out and then loses its answer, once."""

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


def test_a_trial_whose_making_was_not_answered_is_made_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    study = a_study(run)
    lossy = _AnswerLost()
    monkeypatch.setattr(
        optuna.storages.RDBStorage, "_create_new_trial", lossy.around(optuna.storages.RDBStorage._create_new_trial)
    )
    study.add_trial(create_trial(state=TrialState.WAITING))
    assert lossy.left == 0
    assert len(study.get_trials()) == 1


def test_a_trial_that_optuna_itself_makes_again_is_made_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own attempts are within the call: a commit that was carried out and not answered is tried again there."""
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


def test_an_end_that_was_not_answered_is_told_once(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    study = a_study(run)
    study.enqueue_trial({})
    trial = study.ask()
    lossy = _AnswerLost()
    whole = optuna.storages.RDBStorage.set_trial_state_values
    monkeypatch.setattr(optuna.storages.RDBStorage, "set_trial_state_values", lossy.around(whole))
    study.tell(trial, 0.5)
    assert lossy.left == 0
    assert study.get_trials()[0].value == 0.5


def test_one_at_a_time_changes_the_queue(run: RunFolder) -> None:
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


@pytest.mark.timeout(60)
def test_who_waits_for_the_queue_hears_that_it_must_stop(run: RunFolder) -> None:
    assert run.shared is not None
    holder = opened(SharedStorage(run.shared.storage, "x", Patience()))
    waiting = opened(SharedStorage(run.shared.storage, "x", Patience(stop_requested=lambda: True)))
    with holder.locked(), pytest.raises(sqlalchemy.exc.OperationalError, match="lock timeout"), waiting.locked():
        pass
    with waiting.locked():  # the connection that waited in vain is as good as any
        pass


def test_a_lock_ends_with_its_holders_connection(run: RunFolder, server: Server) -> None:
    assert run.shared is not None
    holder = SharedStorage(run.shared.storage, "x", Patience())
    opened(holder)
    with holder.locked():
        server.stop()
        server.start()
    with holder.locked():
        pass


def test_a_database_that_cannot_be_reached_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, Shared(storage_address("postgresql://me:hunter-2@127.0.0.1:1/x")))
    with pytest.raises(StorageError) as caught:
        open_storage(run, at_once=True)
    sentence = str(caught.value)
    assert sentence.startswith("postgresql://me:***@127.0.0.1:1/x: the database cannot be used: ")
    assert "hunter-2" not in sentence
    assert "\n" not in sentence
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("has_tables", [False, True])
def test_a_database_without_the_right_to_use_it_is_one_sentence(
    has_tables: bool, run: RunFolder, server: Server, tmp_path: Path
) -> None:
    """Tables cannot be made, or are another's."""
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


def test_a_database_of_another_version_of_optuna_is_one_sentence(run: RunFolder) -> None:
    study = a_study(run)
    assert run.shared is not None
    engine = sqlalchemy.create_engine(run.shared.storage)
    with engine.begin() as connection:
        connection.execute(sqlalchemy.text("update alembic_version set version_num = 'v99.0.0.a'"))
    engine.dispose()
    assert study.get_trials() == []
    with pytest.raises(StorageError, match="the database cannot be used: The runtime optuna version"):
        open_storage(run, at_once=True)


def test_a_run_folder_of_another_optuna_is_one_sentence(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    open_storage(run).close()
    with contextlib.closing(sqlite3.connect(run.path / "study.db")) as database:
        database.execute("UPDATE alembic_version SET version_num = 'v99.0.0.a'")
        database.commit()
    with pytest.raises(StorageError, match=r"study\.db: the database cannot be used: The runtime optuna version"):
        open_storage(run)


@pytest.mark.parametrize("name", ["q?x=1", "a{b}", "p%20p", "ü b", "#1", "x@y:z"])
def test_a_study_lies_in_its_run_folder_whatever_that_is_called(name: str, tmp_path: Path) -> None:
    run = RunFolder(tmp_path / name)
    run.path.mkdir()
    a_study(run)
    assert (run.path / "study.db").is_file()
    assert {path.name for path in tmp_path.iterdir()} == {name}


def test_a_database_that_fails_for_good_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, Shared("postgresql+psycopg://me:hunter-2@db/x"))
    with pytest.raises(StorageError) as caught, storage_errors(run):
        raise LOST
    assert str(caught.value) == "postgresql://me:***@db/x cannot be written: server closed the connection"
