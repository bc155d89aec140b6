"""Epochs and trials that fit into a time, by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sca_search.errors import SpecError
from sca_search.study.time_plan import Amount, Given, Pace, parts_of, plan, seconds_of

# A trial of 10 + 2 epochs takes 10·2 + 2·1 + 3 = 25 s.
PACE = Pace(
    start=10, dense_epoch=1, dense_rest=2, before_trials=5, epoch=2, frozen_epoch=1, trial_rest=3, end=4, workers=1
)


def test_parts_are_what_each_takes() -> None:
    parts = parts_of(Amount(dense_epochs=15, epochs=10, frozen_epochs=2, trials=16, refits=2), PACE)
    assert parts == {
        "start": 10,
        "dense warm start": 2 + 15,
        "before trials": 5,
        "trials": 16 * 25,
        "refits": 2 * 25,
        "end": 4,
    }


def test_workers_share_the_trials_but_not_the_refits() -> None:
    pace = Pace(10, 1, 2, 5, 2, 1, 3, 4, workers=4)
    parts = parts_of(Amount(15, 10, 2, trials=9, refits=2), pace)
    assert parts["trials"] == 3 * 25  # 4, 4 and 1
    assert parts["refits"] == 2 * 25


def test_long_time_has_the_most_epochs_and_then_more_trials() -> None:
    """40 + 10 epochs take 93 s; 10,000 s less 10 + 62 + 5 + 186 + 4 leave 104 of them."""
    assert plan(10_000, PACE) == Amount(60, 40, 10, trials=104, refits=2)


def test_time_that_fits_is_spent_on_epochs_while_there_are_enough_trials() -> None:
    """18 trainings of 10 + 2 epochs take 450 s, with 36 s besides; 11 + 3 epochs would take 18·28 + 37 s."""
    assert plan(487, PACE) == Amount(15, 10, 2, trials=16, refits=2)
    assert plan(18 * 28 + 37, PACE).epochs == 11


def test_short_time_has_fewer_trials_then_fewer_epochs() -> None:
    few = plan(480, PACE)
    assert 8 <= few.trials < 16
    assert few.refits == 1
    assert few.epochs > 10  # half of the trials, so that each may be longer
    # 3 epochs take 10 + (2 + 4) + 5 + (6 + 1 + 3) + 4 = 35 s, 2 epochs 32 s
    assert plan(35, PACE) == Amount(4, 3, 1, trials=1, refits=0)
    assert plan(34, PACE) == Amount(3, 2, 1, trials=1, refits=0)


def test_time_below_one_trial_is_refused_with_the_least() -> None:
    with pytest.raises(SpecError, match=r"--time must be at least 32s for 3 dense epochs, 1 trial and no refits"):
        plan(31, PACE)
    assert plan(32, PACE).trials == 1


def test_what_is_given_is_kept() -> None:
    assert plan(1000, PACE, Given(epochs=10)).epochs == 10
    assert plan(1000, PACE, Given(trials=5)).trials == 5
    assert plan(1000, PACE, Given(refits=0)).refits == 0
    assert plan(1000, PACE, Given(dense_epochs=7)).dense_epochs == 7
    with pytest.raises(SpecError, match="100 trials"):
        plan(100, PACE, Given(trials=100))


@settings(deadline=None)
@given(
    seconds=st.floats(60, 100_000),
    epoch=st.floats(0.01, 100),
    frozen=st.floats(0.01, 100),
    rest=st.floats(0.01, 10),
    workers=st.integers(1, 4),
)
def test_plan_fits_and_one_trial_more_would_not(
    seconds: float, epoch: float, frozen: float, rest: float, workers: int
) -> None:
    pace = Pace(5, epoch, 1, 1, 2 * epoch, frozen, rest, 1, workers)
    try:
        amount = plan(seconds, pace)
    except SpecError:
        assert seconds_of(Amount(3, 2, 1, 1, 0), pace) > seconds
        return
    assert seconds_of(amount, pace) <= seconds
    more = Amount(amount.dense_epochs, amount.epochs, amount.frozen_epochs, amount.trials + workers, amount.refits)
    assert seconds_of(more, pace) > seconds * (1 - 1e-9)
