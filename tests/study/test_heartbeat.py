"""Hearts: a trial's number counts up while it is trained, and whoever sees it stand still knows, by no clock's time."""

import time

import optuna
from optuna.trial import TrialState

from sca_search.study.heartbeat import BEAT, OWNER, Watchman, beating, owner_name


class Clock:
    """A steady clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def a_study() -> tuple[optuna.Study, optuna.Trial]:
    study = optuna.create_study()
    return study, study.ask()


def beat(study: optuna.Study, trial: optuna.Trial, count: int) -> None:
    study._storage.set_trial_system_attr(trial._trial_id, BEAT, count)


def numbers(watchman: Watchman) -> list[int]:
    return [trial.number for trial in watchman.stopped()]


def test_a_heart_beats_until_its_trial_is_over() -> None:
    study, trial = a_study()
    with beating(study, trial._trial_id, seconds=0.01) as is_lost:
        time.sleep(0.2)
        told = study.get_trials()[0].system_attrs
        assert told[BEAT] > 2
        assert told[OWNER] == owner_name()
        assert not is_lost()
    before = study.get_trials()[0].system_attrs[BEAT]
    time.sleep(0.05)
    assert study.get_trials()[0].system_attrs[BEAT] == before


def test_who_trains_notices_that_the_trial_was_taken_away() -> None:
    study, trial = a_study()
    with beating(study, trial._trial_id, seconds=0.01) as is_lost:
        study.tell(trial.number, state=TrialState.FAIL)
        for _ in range(200):
            if is_lost():
                break
            time.sleep(0.01)
        assert is_lost()


def test_a_heart_that_stands_still_for_the_whole_patience_is_seen() -> None:
    study, trial = a_study()
    clock = Clock()
    watchman = Watchman(study, patience=9.0, clock=clock)
    for second in range(0, 9, 3):
        clock.now = second
        assert numbers(watchman) == []
    clock.now = 9
    assert numbers(watchman) == [trial.number]


def test_a_beat_starts_the_patience_anew() -> None:
    study, trial = a_study()
    clock = Clock()
    watchman = Watchman(study, patience=9.0, clock=clock)
    for second in range(0, 60, 3):
        clock.now = second
        beat(study, trial, second)
        assert numbers(watchman) == []
    for second, seen in ((60, []), (63, []), (66, [trial.number])):
        clock.now = second
        assert numbers(watchman) == seen


def test_time_in_which_nobody_could_look_hardly_counts() -> None:
    """A database that was gone, or a watcher that was suspended: a third of the patience at most."""
    study, trial = a_study()
    clock = Clock()
    watchman = Watchman(study, patience=9.0, clock=clock)
    assert numbers(watchman) == []
    clock.now = 100_000
    assert numbers(watchman) == []
    clock.now += 3
    assert numbers(watchman) == []
    clock.now += 3
    assert numbers(watchman) == [trial.number]


def test_a_clock_that_runs_back_takes_nobody_for_dead() -> None:
    study, _ = a_study()
    clock = Clock()
    watchman = Watchman(study, patience=9.0, clock=clock)
    for second in range(100, 0, -3):
        clock.now = second
        assert numbers(watchman) == []


def test_only_running_trials_are_watched() -> None:
    study, trial = a_study()
    study.tell(trial, 1.0)
    study.enqueue_trial({})
    clock = Clock()
    watchman = Watchman(study, patience=1.0, clock=clock)
    for second in range(10):
        clock.now = second
        assert numbers(watchman) == []
