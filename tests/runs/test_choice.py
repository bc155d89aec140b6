"""The rule of selection: which trial, and why, by hand."""

import math

import pytest

from sca_search.config.study import GoalSpec
from sca_search.runs.choice import Choice, choose, least_of, select
from sca_search.runs.goal import chosen_trial
from sca_search.runs.trials import trial_frame
from tests.runs.test_trials import complete, frame_of


def number(frame, target, tolerance=0.001):
    """The number of the chosen trial."""
    choice = choose(frame, target, tolerance=tolerance)
    return choice and choice.trial


def test_choose_takes_the_most_accurate_within_the_tolerance():
    frame = frame_of(
        complete(0, 0.9, 0.8),
        complete(1, 0.901, 0.85),  # at the tolerance, as decimals say
        complete(2, 0.9011, 0.99),
        complete(3, 0.9, math.nan),
        {"trial": 4, "state": "running", "sparsity": 0.9, "metric": 0.99},
    )
    assert number(frame, 0.9) == 1
    assert number(frame, 0.9, tolerance=0.0) == 0
    assert number(frame, 0.9, tolerance=0.01) == 2
    assert number(frame, 0.5) is None


def test_choose_of_an_accuracy_without_measure_is_nothing_and_without_a_warning():
    assert number(frame_of(complete(0, 0.5, 1e308, images=100)), 0.5) is None


def test_choose_breaks_ties_by_loss_then_trial():
    frame = frame_of(
        complete(0, 0.5, 0.9, loss=math.nan),
        complete(1, 0.5, 0.9, loss=0.4),
        complete(2, 0.5, 0.9, loss=0.3),
        complete(3, 0.5, 0.9, loss=0.3),
    )
    assert number(frame, 0.5) == 2


def test_choose_takes_the_lowest_loss_where_accuracies_differ_by_chance_alone():
    # Of 100 images at 0.9, the standard error is √(0.9 · 0.1 / 100) = 0.03.
    frame = frame_of(
        complete(0, 0.5, 0.90, loss=0.5, images=100),
        complete(1, 0.5, 0.871, loss=0.4, images=100),
        complete(2, 0.5, 0.869, loss=0.3, images=100),
    )
    assert number(frame, 0.5) == 1
    # Of 10,000 it is 0.003; and where their number is unknown, accuracy alone decides.
    assert number(frame.assign(images=10_000), 0.5) == 0
    assert number(frame.assign(images=math.nan), 0.5) == 0
    assert number(frame.drop(columns="images"), 0.5) == 0


def test_ties_of_other_metrics_are_within_the_error_found_by_bootstrap():
    frame = frame_of(
        complete(0, 0.5, -20.0, loss=0.5, images=100, metric_error=1.5),
        complete(1, 0.5, -21.4, loss=0.4, images=100, metric_error=0.1),
        complete(2, 0.5, -21.6, loss=0.3, images=100, metric_error=9.0),
    )
    assert number(frame, 0.5) == 1  # the error of the best decides
    assert number(frame.assign(metric_error=0.0), 0.5) == 0


def test_nothing_is_chosen_among_no_trials():
    assert select(trial_frame([])) is None
    assert choose(trial_frame([]), 0.5) is None
    assert choose(trial_frame([]), 0.0, or_sparser=True) is None
    assert least_of(trial_frame([]), 0.5, "sparsity", "highest sparsity") is None


# Of 100 images at 0.9, the standard error is 0.03: 3 points.
BEST = complete(0, 0.5, 0.9, loss=0.5, images=100)


@pytest.mark.parametrize(
    ("others", "trial", "reason"),
    [
        ([], 0, "the only eligible trial"),
        ([{"metric": 0.86}], 0, "highest validation accuracy, no other eligible trial within noise (3 points)"),
        ([{"metric": 0.88}], 0, "tied with trial 1 within noise (3 points); lower validation loss"),
        ([{"loss": 0.4}], 1, "tied with trial 0 within noise (3 points); lower validation loss"),
        ([{"loss": 0.4}, {}], 1, "tied with 2 other trials within noise (3 points); lower validation loss"),
        ([{"loss": 0.6}] * 4, 0, "tied with 4 other trials within noise (3 points); lower validation loss"),
        (
            [{"loss": 0.5, "file_bytes": 90}],
            1,
            "tied with trial 0 within noise (3 points); equally low validation loss, smaller model",
        ),
        (
            [{"loss": 0.5, "ternary_bytes": 90}, {"loss": 0.5, "ternary_bytes": 80}],
            2,
            "tied with 2 other trials within noise (3 points); equally low validation loss, smaller model",
        ),
        (
            [{"loss": 0.5}],
            0,
            "tied with trial 1 within noise (3 points); equally low validation loss, equal size, earlier trial",
        ),
        (
            [{"loss": 0.5}] * 2,
            0,
            "tied with 2 other trials within noise (3 points); equally low validation loss, equal size, earlier trial",
        ),
    ],
)
def test_the_reason_says_by_which_step_of_the_rule_the_trial_was_chosen(others, trial, reason):
    rows = [BEST | {"file_bytes": 100, "ternary_bytes": 100}]
    for index, changes in enumerate(others, 1):
        rows.append(rows[0] | {"trial": index, "metric": 0.88, "loss": 0.6} | changes)
    assert select(frame_of(*rows)) == Choice(trial, reason)


def test_noise_is_in_the_unit_of_the_metric():
    frame = frame_of(complete(0, 0.5, -20.0, metric_error=1.5), complete(1, 0.5, -21.0, loss=0.4, metric_error=0.1))
    assert select(frame, "negative-mae").reason == (
        "tied with trial 0 within noise (1.5 negative-mae); lower validation loss"
    )


def test_every_goal_resolves_ties_by_the_same_rule():
    """Equal cost, tied metrics: the trial with the lower loss, although the other has the higher metric."""
    rows = [
        complete(0, 0.5, 0.9, loss=0.5, images=100, latency_ms=2.0, ternary_bytes=10),
        complete(1, 0.5, 0.899, loss=0.4, images=100, latency_ms=2.0, ternary_bytes=10),
        complete(2, 0.4, 0.899, loss=0.1, images=100, latency_ms=3.0, ternary_bytes=12),
    ]
    tied = "tied with trial 0 within noise (3 points); lower validation loss"
    reasons = {
        GoalSpec(target_sparsity=0.5): tied,
        GoalSpec(max_latency_ms=2.5): tied,
        GoalSpec(min_accuracy=0.8): f"highest sparsity at 80.00% accuracy or more, shared with trial 0; {tied}",
        GoalSpec(min_accuracy=0.8, prefer="fastest"): (
            f"lowest latency at 80.00% accuracy or more, shared with trial 0; {tied}"
        ),
        GoalSpec(front=True): (
            "highest sparsity within 0.5 points of the best validation accuracy, shared with trial 0; " + tied
        ),
    }
    assert {goal: chosen_trial(frame_of(*rows), goal) for goal in reasons} == {
        goal: Choice(1, reason) for goal, reason in reasons.items()
    }


def test_a_goal_that_one_trial_meets_best_is_its_reason():
    frame = frame_of(complete(0, 0.5, 0.9), complete(1, 0.6, 0.85))
    assert chosen_trial(frame, GoalSpec(min_accuracy=0.8)) == Choice(1, "highest sparsity at 80.00% accuracy or more")
