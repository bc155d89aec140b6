"""The queue in the database: read once, and nothing that happens to it is missed."""

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.storages import RDBStorage
from optuna.trial import TrialState

from sca_search.study.optuna_internals import WaitingTrialCache

optuna.logging.set_verbosity(optuna.logging.ERROR)


class Counted(WaitingTrialCache):
    """Counts the trials that are read in full."""

    read = 0

    def _build_frozen_trial_from_trial_model(self, trial):
        self.read += 1
        return super()._build_frozen_trial_from_trial_model(trial)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'study.db'}"


def opened(storage):
    return optuna.create_study(study_name="one", storage=storage, load_if_exists=True)


def queued(study, count):
    for number in range(count):
        study.enqueue_trial({"x": number / 10}, user_attrs={"candidate": number})


def read_by(storage, study):
    storage.read = 0
    trials = study.get_trials(deepcopy=False)
    return storage.read, [trial.state.name for trial in trials]


def test_a_waiting_trial_is_read_once(url):
    storage = Counted(url)
    study = opened(storage)
    queued(study, 5)
    assert read_by(storage, study) == (5, ["WAITING"] * 5)
    assert read_by(storage, study) == (0, ["WAITING"] * 5)


def test_a_running_trial_is_read_again_until_it_is_finished(url):
    storage = Counted(url)
    study = opened(storage)
    queued(study, 3)
    trial = study.ask()
    assert read_by(storage, study) == (1, ["RUNNING", "WAITING", "WAITING"])
    trial.set_user_attr("loss", 0.5)
    assert read_by(storage, study)[0] == 1
    assert study.get_trials()[0].user_attrs == {"candidate": 0, "loss": 0.5}
    study.tell(trial, 1.0)
    assert read_by(storage, study) == (1, ["COMPLETE", "WAITING", "WAITING"])
    assert read_by(storage, study)[0] == 0


def test_changes_by_another_process_are_read(url):
    storage = Counted(url)
    ours, theirs = opened(storage), opened(RDBStorage(url))
    queued(ours, 3)
    assert read_by(storage, ours)[1] == ["WAITING"] * 3
    theirs.tell(theirs.ask(), 1.0)
    started = theirs.ask()
    theirs.enqueue_trial({"x": 0.9})
    assert read_by(storage, ours) == (3, ["COMPLETE", "RUNNING", "WAITING", "WAITING"])
    theirs.tell(started, 2.0)
    assert read_by(storage, ours) == (1, ["COMPLETE", "COMPLETE", "WAITING", "WAITING"])
    assert [ours.ask().number for _ in range(2)] == [2, 3]


def test_other_studies_of_a_database_do_not_matter(url):
    storage = Counted(url)
    study = opened(storage)
    other = optuna.create_study(study_name="two", storage=RDBStorage(url))
    for each in (study, other, study):
        queued(each, 2)
    assert read_by(storage, study) == (4, ["WAITING"] * 4)
    other.tell(other.ask(), 1.0)
    assert read_by(storage, study) == (0, ["WAITING"] * 4)


steps = st.lists(st.sampled_from(["queue", "ask", "tell", "fail", "their ask", "their tell", "look"]), max_size=15)


@pytest.mark.e2e
@settings(max_examples=15, deadline=None, derandomize=True)
@given(steps)
def test_a_study_always_reads_what_a_plain_storage_reads(tmp_path_factory, happening):
    url = f"sqlite:///{tmp_path_factory.mktemp('queue') / 'study.db'}"
    ours, theirs = opened(WaitingTrialCache(url)), opened(RDBStorage(url))
    started = {ours: [], theirs: []}
    for step in happening:
        study = theirs if step.startswith("their") else ours
        if step == "queue":
            queued(study, 2)
        elif step.endswith("ask"):
            started[study].append(study.ask())
        elif step.endswith("tell") and started[study]:
            study.tell(started[study].pop(), 1.0)
        elif step == "fail" and started[study]:
            study.tell(started[study].pop(0), state=TrialState.FAIL)
        assert ours.get_trials() == opened(RDBStorage(url)).get_trials()
