"""Epochs and trials that fit into a time, calculated by hand; and epochs that are really timed."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sca_search.config.load import resolve
from sca_search.data import Split
from sca_search.errors import SpecError
from sca_search.study.pace import RESERVE, Pace, StudySize, _first, fit_study, measure_pace
from sca_search.training.fit import StopRequestedError

# A trial of 10 + 2 epochs takes 10·2 + 2·1 + 3 = 25 s.
PACE = Pace(start=21, dense_epoch=1, epoch=2, frozen_epoch=1, trial_rest=3)


def test_parts_of_a_study() -> None:
    size = StudySize(dense_epochs=15, epochs=10, frozen_epochs=2, trials=16, refits=2)
    assert PACE.trial(size) == 25
    assert PACE.parts(size) == {"start": 21, "dense warm start": 15, "trials": 16 * 25, "refits": 2 * 25}
    assert PACE.seconds(size) == 21 + 15 + 18 * 25


def test_workers_train_trials_in_parallel_but_not_refits() -> None:
    parts = Pace(21, 1, 2, 1, 3, workers=4).parts(StudySize(15, 10, 2, trials=9, refits=2))
    assert parts["trials"] == 3 * 25  # 4, 4 and 1
    assert parts["refits"] == 2 * 25


def test_long_time_has_the_most_epochs_and_then_more_trials() -> None:
    """40 + 10 epochs take 93 s; 10,000 s minus 21 + 60 + 186 leave time for 104 of them."""
    assert fit_study(10_000, PACE, {}) == StudySize(60, 40, 10, trials=104, refits=2)


def test_time_is_spent_on_epochs_while_there_are_enough_trials() -> None:
    """18 trainings of 10 + 2 epochs take 450 s, plus 36 s; 11 + 3 epochs would take 18·28 + 37 s."""
    assert fit_study(487, PACE, {}) == StudySize(15, 10, 2, trials=16, refits=2)
    assert fit_study(18 * 28 + 37, PACE, {}).epochs == 11


def test_short_time_has_fewer_trials_then_fewer_epochs() -> None:
    few = fit_study(480, PACE, {})
    assert 8 <= few.trials < 16
    assert few.refits == 1
    assert few.epochs > 10  # half of the trials, so that each can be longer
    # 3 epochs take 21 + 4 + (6 + 1 + 3) = 35 s, 2 epochs 32 s
    assert fit_study(35, PACE, {}) == StudySize(4, 3, 1, trials=1, refits=0)
    assert fit_study(34, PACE, {}) == StudySize(3, 2, 1, trials=1, refits=0)


def test_time_below_one_trial_is_rejected_with_the_least() -> None:
    """32 s of training are 0.9 of 36 s."""
    with pytest.raises(SpecError, match=r"--time must be at least 36s for 3 dense epochs, 1 trial and no refits") as no:
        fit_study(RESERVE * 35, PACE, {})
    assert str(no.value).endswith("got 35s")
    assert fit_study(32, PACE, {}).trials == 1


def test_fixed_numbers_stay() -> None:
    assert fit_study(1000, PACE, {"epochs": 10}).epochs == 10
    assert fit_study(1000, PACE, {"trials": 5}).trials == 5
    assert fit_study(1000, PACE, {"refits": 0}).refits == 0
    assert fit_study(1000, PACE, {"dense_epochs": 7}).dense_epochs == 7
    assert fit_study(1000, PACE, {"dense_epochs": 0}).dense_epochs == 0  # weights are given
    with pytest.raises(SpecError, match="100 trials"):
        fit_study(100, PACE, {"trials": 100})


@settings(deadline=None)
@given(
    seconds=st.floats(60, 100_000),
    epoch=st.floats(0.01, 100),
    frozen=st.floats(0.01, 100),
    rest=st.floats(0.01, 10),
    workers=st.integers(1, 4),
)
def test_size_fits_and_one_trial_more_does_not(
    seconds: float, epoch: float, frozen: float, rest: float, workers: int
) -> None:
    pace = Pace(7, epoch, 2 * epoch, frozen, rest, workers)
    try:
        size = fit_study(seconds, pace, {})
    except SpecError:
        assert pace.seconds(StudySize(3, 2, 1, 1, 0)) > seconds
        return
    assert pace.seconds(size) <= seconds
    more = StudySize(size.dense_epochs, size.epochs, size.frozen_epochs, size.trials + workers, size.refits)
    assert pace.seconds(more) > seconds * (1 - 1e-9)


@pytest.mark.parametrize(
    "flags", [{"target_sparsity": 0.9}, {"front": True, "form": "paper"}, {"method": "twn"}, {"batch": 256}]
)
def test_every_kind_of_study_is_timed(flags: dict[str, object]) -> None:
    said: list[str] = []
    pace = measure_pace(resolve(None, {"train_limit": 600, "threads": 1} | flags), said.append, lambda: False)
    assert 0 < pace.dense_epoch < 30
    assert 0 < pace.epoch < 30
    assert 0 < pace.frozen_epoch < 30
    assert pace.trial_rest > 0
    assert said[0].startswith("timing an epoch")


def test_timing_is_stopped() -> None:
    with pytest.raises(StopRequestedError):
        measure_pace(resolve(None, {"train_limit": 100, "threads": 1}), lambda _line: None, lambda: True)


def test_first_images_of_a_split() -> None:
    split = Split(torch.arange(12.0).reshape(3, 1, 2, 2), torch.tensor([0, 1, 2]))
    some = _first(split, 2)
    assert some.labels.tolist() == [0, 1]
    assert len(some) == 2
