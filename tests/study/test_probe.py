"""The pace of a study from the times of a small one, by hand; and the share of large data."""

from dataclasses import replace

import pytest
import torch

from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.data import Split
from sca_search.errors import RunError
from sca_search.study.pace import Share, Shares, Times, _first, pace_of, scaled
from sca_search.study.time_plan import Pace


def spec_of(workers: int = 1) -> StudySpec:
    spec = resolve(None, {"epochs": 4, "dense_epochs": 3, "trials": 2, "workers": workers})
    return spec.model_copy(update={"train": spec.train.model_copy(update={"frozen_epochs": 2})})


# Rungs lie behind epochs 1 and 2; a plain epoch takes 2 s, one behind a rung 5 s; a frozen one 1 s.
TIMES = Times(
    dense=[101.5, 102.5, 103.5],
    queued=[107.0],
    started={0: 107.5, 1: 130.5},
    ternary={0: [110.0, 115.0, 120.0, 122.0], 1: [133.0, 138.0, 143.0, 145.0]},
    frozen={0: [125.0, 126.0], 1: [148.0, 149.0]},
    ended={0: 130.0, 1: 153.0},
)


def test_pace_is_that_of_plain_epochs_and_the_rest_is_kept_apart() -> None:
    pace = pace_of(TIMES, spec_of(), start=9.0, began=100.0, over=156.0)
    assert pace == Pace(
        start=9.0,
        dense_epoch=1.0,
        dense_rest=0.5,  # 101.5 - 100, less an epoch
        before_trials=3.5,
        epoch=2.0,
        frozen_epoch=1.0,
        trial_rest=(153.0 - 107.0) / 2 - 4 * 2.0 - 2 * 1.0,
        end=3.0,
    )


def test_workers_start_is_no_part_of_a_trial() -> None:
    together = replace(TIMES, started={0: 117.0, 1: 118.0})
    pace = pace_of(together, spec_of(workers=2), start=9.0, began=100.0, over=156.0)
    assert pace.before_trials == 117.0 - 103.5
    assert pace.trial_rest == (153.0 - 117.0) - 10.0  # side by side: both took it
    assert pace.workers == 2


def test_trial_that_failed_is_left_out_of_the_epochs() -> None:
    failed = replace(TIMES, ternary={**TIMES.ternary, 1: [133.0]}, frozen={0: TIMES.frozen[0]})
    assert pace_of(failed, spec_of(), start=9.0, began=100.0, over=156.0).epoch == 2.0
    with pytest.raises(RunError, match="no trial of the small study came to its end"):
        pace_of(replace(TIMES, frozen={}), spec_of(), start=9.0, began=100.0, over=156.0)


def test_share_is_scaled_where_time_is_by_image() -> None:
    """A hundredth of a second an image to look at; 10 of 40 images to train on, 5 of 25 to look at, 3 layers' looks."""
    shares = Shares(Share(10, 40), Share(5, 25), Share(5, 105), look=0.01, sensitivities=3)
    pace = Pace(
        start=9.0,
        dense_epoch=1.05,
        dense_rest=0.5,
        before_trials=3.0,
        epoch=2.1,
        frozen_epoch=1.05,
        trial_rest=6.0,
        end=2.0,
    )
    whole = scaled(pace, shares)
    assert whole.dense_epoch == pytest.approx(4 * 1.0 + 0.25)
    assert whole.epoch == pytest.approx(4 * 2.0 + 2 * 0.25)
    assert whole.frozen_epoch == pytest.approx(4 * 1.0 + 0.25)
    assert whole.before_trials == pytest.approx(3.0 + 0.3 + 0.2 + 3 * (0.3 + 0.2))
    assert whole.trial_rest == pytest.approx(6.0 + 0.3 + 2 * 0.3 + 5 * 0.2)
    assert whole.end == pytest.approx(2.0 + 2 * 1.0)
    assert (whole.start, whole.dense_rest) == (9.0, 0.5)


def test_share_of_few_batches_is_missing_only_what_these_lack() -> None:
    assert Share(1000, 9000).missing_of_few == 8 * 256 - 1000
    assert Share(3000, 9000).missing_of_few == 0
    assert Share(1000, 1500).missing_of_few == 500


def test_whole_data_is_not_scaled() -> None:
    pace = Pace(9.0, 1.0, 0.5, 3.0, 2.0, 1.0, 6.0, 2.0)
    assert scaled(pace, Shares(Share(40, 40), Share(25, 25), Share(1, 1))) == pace


def test_first_images_of_a_split() -> None:
    split = Split(torch.arange(12.0).reshape(3, 1, 2, 2), torch.tensor([0, 1, 2]))
    some = _first(split, 2)
    assert some.labels.tolist() == [0, 1]
    assert len(some) == 2
