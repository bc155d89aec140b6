"""The storage of shared studies, on a real PostgreSQL: one taker for a trial, patience, and nothing done twice."""

import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
import sqlalchemy
from optuna.exceptions import StorageInternalError
from optuna.trial import TrialState, create_trial
from postgres import Server, running_server

from sca_search.errors import StorageError
from sca_search.run_folder import RunFolder
from sca_search.shared_study import Shared, storage_address
from sca_search.storage import (
    NothingWaitsError,
    Patience,
    QueueStorage,
    SharedStorage,
    open_storage,
    queue_locked,
    storage_errors,
)

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


@pytest.mark.slow
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


def test_a_database_that_fails_for_good_is_one_sentence_without_the_password(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, Shared("postgresql+psycopg://me:hunter-2@db/x"))
    with pytest.raises(StorageError) as caught, storage_errors(run):
        raise LOST
    assert str(caught.value) == "postgresql://me:***@db/x cannot be written: server closed the connection"
