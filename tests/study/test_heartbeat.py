"""Heartbeats: a counter increases while a trial is trained, and a counter that stands still is detected."""

import time

import optuna
from optuna.trial import TrialState

from sca_search.study.heartbeat import HEARTBEAT, OWNER, StaleTrialDetector, owner_name, sending_heartbeats


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_study() -> tuple[optuna.Study, optuna.Trial]:
    study = optuna.create_study()
    return study, study.ask()


def send(study: optuna.Study, trial: optuna.Trial, count: int) -> None:
    study._storage.set_trial_system_attr(trial._trial_id, HEARTBEAT, count)


def numbers(detector: StaleTrialDetector) -> list[int]:
    return [trial.number for trial in detector.stale()]


def test_heartbeats_are_sent_until_the_trial_ends() -> None:
    study, trial = a_study()
    with sending_heartbeats(trial, seconds=0.01) as is_lost:
        time.sleep(0.2)
        attributes = study.get_trials()[0].system_attrs
        assert attributes[HEARTBEAT] > 2
        assert attributes[OWNER] == owner_name()
        assert not is_lost()
    before = study.get_trials()[0].system_attrs[HEARTBEAT]
    time.sleep(0.05)
    assert study.get_trials()[0].system_attrs[HEARTBEAT] == before


def test_a_worker_notices_that_its_trial_was_ended() -> None:
    study, trial = a_study()
    with sending_heartbeats(trial, seconds=0.01) as is_lost:
        study.tell(trial.number, state=TrialState.FAIL)
        for _ in range(200):
            if is_lost():
                break
            time.sleep(0.01)
        assert is_lost()


def test_the_end_of_another_trial_is_not_taken_for_that_of_ours() -> None:
    study, trial = a_study()
    other = study.ask()
    study.tell(other, 1.0)

    def on_heartbeat() -> None:
        study._storage.set_trial_system_attr(other._trial_id, HEARTBEAT, 1)  # raises UpdateFinishedTrialError

    with sending_heartbeats(trial, seconds=0.01, on_heartbeat=on_heartbeat) as is_lost:
        for _ in range(200):
            if study.get_trials()[0].system_attrs.get(HEARTBEAT, 0) > 2:
                break
            time.sleep(0.01)
        assert study.get_trials()[0].system_attrs[HEARTBEAT] > 2
        assert not is_lost()


def test_a_trial_without_heartbeats_becomes_stale() -> None:
    study, trial = a_study()
    clock = Clock()
    detector = StaleTrialDetector(study, patience=9.0, clock=clock)
    for second in range(0, 9, 3):
        clock.now = second
        assert numbers(detector) == []
    clock.now = 9
    assert numbers(detector) == [trial.number]


def test_a_heartbeat_resets_the_patience() -> None:
    study, trial = a_study()
    clock = Clock()
    detector = StaleTrialDetector(study, patience=9.0, clock=clock)
    for second in range(0, 60, 3):
        clock.now = second
        send(study, trial, second)
        assert numbers(detector) == []
    for second, expected in ((60, []), (63, []), (66, [trial.number])):
        clock.now = second
        assert numbers(detector) == expected


def test_time_without_checks_hardly_counts() -> None:
    """The database was down or the watcher suspended: at most a third of the patience."""
    study, trial = a_study()
    clock = Clock()
    detector = StaleTrialDetector(study, patience=9.0, clock=clock)
    assert numbers(detector) == []
    clock.now = 100_000
    assert numbers(detector) == []
    clock.now += 3
    assert numbers(detector) == []
    clock.now += 3
    assert numbers(detector) == [trial.number]


def test_a_clock_that_is_moved_back_makes_no_trial_stale() -> None:
    study, _ = a_study()
    clock = Clock()
    detector = StaleTrialDetector(study, patience=9.0, clock=clock)
    for second in range(100, 0, -3):
        clock.now = second
        assert numbers(detector) == []


def test_only_running_trials_are_checked() -> None:
    study, trial = a_study()
    study.tell(trial, 1.0)
    study.enqueue_trial({})
    clock = Clock()
    detector = StaleTrialDetector(study, patience=1.0, clock=clock)
    for second in range(10):
        clock.now = second
        assert numbers(detector) == []
