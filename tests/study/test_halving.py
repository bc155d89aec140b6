"""Successive halving: rungs, who goes on, and how well rungs foretell; every figure by hand."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sca_search.study.halving import (
    LEAST_COMPARED,
    RungScore,
    comparable,
    continues_at_rung,
    promoted,
    relative_losses,
    rung_correlation,
    rung_epochs,
)

quick = settings(max_examples=100, deadline=None, derandomize=True)


def scores(*losses, sparsity=0.9):
    """Trainings of one sparsity, numbered from 0."""
    return [RungScore(number, sparsity, loss) for number, loss in enumerate(losses)]


# Rungs


@pytest.mark.parametrize(
    ("fractions", "epochs", "expected"),
    [
        ((0.25, 0.5), 20, (5, 10)),
        ((0.5, 0.25), 20, (5, 10)),
        ((0.25, 0.5), 3, (1, 2)),  # 0.75 and 1.5; a half goes to the even one
        ((0.25, 0.5), 2, (1,)),  # half an epoch is none
        ((0.25, 0.5), 1, ()),
        ((0.25, 0.5), 0, ()),
        ((0.5, 0.51), 4, (2,)),  # each once
        ((0.0, 1.0), 10, ()),  # no rung at the start or the end
        ((0.04, 0.96), 10, ()),
        ((), 10, ()),
    ],
)
def test_rungs_by_hand(fractions, epochs, expected):
    assert rung_epochs(fractions, epochs) == expected


@quick
@given(st.lists(st.floats(0, 1), max_size=6), st.integers(0, 300))
def test_rungs_rise_and_lie_within_the_training(fractions, epochs):
    rungs = rung_epochs(fractions, epochs)
    assert list(rungs) == sorted(set(rungs))
    assert all(0 < epoch < epochs for epoch in rungs)


# Who is compared


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        # Densities: 0.03 beside 0.02, 0.045, 0.0199, 0.0451 and 0.1.
        (0.97, 0.97, True),
        (0.97, 0.98, True),
        (0.97, 0.955, True),
        (0.97, 0.9801, False),
        (0.97, 0.9549, False),
        (0.97, 0.9, False),
        (0.5, 0.3, True),  # 0.5 and 0.7: a factor of 1.4
        (0.5, 0.0, False),
        (0.0, 0.3, True),
    ],
)
def test_densities_within_a_factor_of_one_and_a_half_are_comparable(one, other, expected):
    first, second = RungScore(0, one, 1.0), RungScore(1, other, 1.0)
    assert comparable(first, second) is expected
    assert comparable(second, first) is expected


# Who goes on


@pytest.mark.parametrize(
    ("keep", "continuing"),
    [
        (0.2, [0]),  # the best of five
        (0.25, [0, 1]),  # 1.25 of five, rounded up
        (0.5, [0, 1, 2]),
        (0.6, [0, 1, 2]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_the_best_fraction_continues_by_hand(keep, continuing):
    reached = scores(0.1, 0.2, 0.3, 0.4, 0.5)
    assert [mine.candidate for mine in reached if continues_at_rung(mine, reached, keep)] == continuing


def test_a_trial_is_not_compared_with_itself():
    """At its rung it is among those reached, with the score that it has now or one of before."""
    others = scores(0.1, 0.2, 0.3)
    mine = RungScore(3, 0.9, 0.15)
    assert continues_at_rung(mine, others, 0.5)
    assert continues_at_rung(mine, [*others, mine], 0.5)
    assert continues_at_rung(mine, [*others, RungScore(3, 0.9, 0.01)], 0.5)


def test_all_trials_continue_with_too_few_comparable_ones():
    worst = RungScore(9, 0.9, 5.0)
    assert LEAST_COMPARED == 3
    assert continues_at_rung(worst, [], 0.1)
    assert continues_at_rung(worst, scores(0.1), 0.1)
    assert not continues_at_rung(worst, scores(0.1, 0.2), 0.1)


def test_only_comparable_sparsities_count():
    """Denser networks are better, which says nothing of a sparse one."""
    denser = scores(0.01, 0.02, 0.03, 0.04, sparsity=0.5)
    mine = RungScore(7, 0.97, 0.9)
    assert continues_at_rung(mine, denser, 0.1)
    assert continues_at_rung(mine, [*denser, RungScore(8, 0.98, 1.5), RungScore(9, 0.96, 2.0)], 0.34)
    assert not continues_at_rung(mine, [*denser, RungScore(8, 0.98, 0.8), RungScore(9, 0.96, 0.7)], 0.34)


def test_equal_losses_are_no_better():
    reached = scores(0.3, 0.3, 0.3, 0.3)
    assert all(continues_at_rung(mine, reached, 0.25) for mine in reached)


@quick
@given(st.lists(st.floats(0, 10), min_size=3, max_size=12, unique=True), st.floats(0.01, 1))
def test_the_requested_fraction_continues_and_it_is_the_best(losses, keep):
    reached = scores(*losses)
    continuing = [mine.loss for mine in reached if continues_at_rung(mine, reached, keep)]
    wanted = math.ceil(keep * len(losses))
    assert sorted(continuing) == sorted(losses)[:wanted]


@quick
@given(st.lists(st.floats(0, 10), min_size=1, max_size=8), st.floats(0.05, 1), st.floats(0, 1))
def test_a_larger_fraction_pauses_no_more_trials(losses, keep, more):
    reached = scores(*losses)
    larger = keep + (1 - keep) * more
    assert all(continues_at_rung(mine, reached, larger) for mine in reached if continues_at_rung(mine, reached, keep))


# Promotion


def test_paused_trials_are_promoted_once_they_are_among_the_best_by_hand():
    paused = [RungScore(1, 0.9, 0.4), RungScore(2, 0.9, 0.3)]
    # Two of four go on: 0.1 and 0.2 have; both are worse.
    assert promoted(paused, [*paused, *scores(0.1), RungScore(3, 0.9, 0.2)], 0.5) == []
    # Two worse ones later, three of six: 0.3 is the third.
    worse = [RungScore(4, 0.9, 0.9), RungScore(5, 0.9, 0.8)]
    assert promoted(paused, [*paused, *scores(0.1), RungScore(3, 0.9, 0.2), *worse], 0.5) == [2]


def test_the_best_is_promoted_first():
    paused = [RungScore(5, 0.9, 0.3), RungScore(6, 0.9, 0.1), RungScore(7, 0.9, 0.2)]
    worse = [RungScore(number, 0.9, 1.0) for number in range(5)]
    assert promoted(paused, [*paused, *worse], 0.5) == [6, 7, 5]


def test_without_paused_trials_none_is_promoted():
    assert promoted([], scores(0.1, 0.2, 0.3), 0.5) == []


# Losses beside those of comparable trainings


def test_relative_losses_by_hand():
    trials = [
        {"planned_sparsity": 0.9, "loss": math.e**2},
        {"planned_sparsity": 0.91, "loss": math.e**4},
        {"planned_sparsity": 0.5, "loss": math.e**-7},  # alone at its sparsity
    ]
    # Logarithms 2 and 4 have the mean 3. Beside the third they count by their distance, log 5 and log(50 / 9), to the
    # power of -4: 0.14905 and 0.11565. The mean is 2.8738.
    assert relative_losses(trials) == pytest.approx([-1, 1, -9.8738], abs=1e-4)
    assert relative_losses(trials[2:]) == [0]


def test_a_trial_alone_at_its_sparsity_is_compared_with_a_line_through_the_others_by_hand():
    # Log losses 1 and 2 at the densities 1/4 and 1/16: the line has 0 at 1, 1.5 at 1/8 and 3 at 1/64.
    others = [{"planned_sparsity": 0.75, "loss": math.e}, {"planned_sparsity": 0.9375, "loss": math.e**2}]
    for sparsity, predicted in ((0.0, 0.0), (0.875, 1.5), (1 - 1 / 64, 3.0)):
        mine = {"planned_sparsity": sparsity, "loss": math.exp(predicted - 0.25)}
        assert relative_losses([*others, mine])[2] == pytest.approx(-0.25)


@quick
@given(
    st.floats(-3, 3),
    st.floats(-1.5, 3),
    st.lists(st.integers(0, 12), min_size=2, max_size=6, unique=True),
    st.lists(st.integers(-40, 40), min_size=2, max_size=5, unique=True),
    st.integers(-40, 40),
    st.randoms(use_true_random=False),
)
def test_the_ranking_of_offsets_from_an_exact_function_of_density_is_recovered(
    level, slope, exponents, offsets, lone, random
):
    """Groups of trials with the same offsets at some densities, and one trial alone at its density."""
    centered = [offset / 20 - math.fsum(offsets) / 20 / len(offsets) for offset in offsets]
    alone, *shared = exponents
    points = [(exponent, offset) for exponent in shared for offset in centered] + [(alone, lone / 20)]
    if len(shared) == 1:  # no line goes through one point
        slope = 0.0
    random.shuffle(points)
    trials = [
        {"planned_sparsity": 1 - 2.0**-exponent, "loss": math.exp(level + slope * exponent + offset)}
        for exponent, offset in points
    ]
    assert relative_losses(trials) == pytest.approx([offset for _, offset in points], abs=1e-9)


def test_a_paused_trial_is_compared_at_its_last_rung_with_all_that_reached_it():
    trials = [
        {"planned_sparsity": 0.9, "rung.5": math.e**9, "rung.10": math.e**1},
        {"planned_sparsity": 0.9, "rung.5": math.e**8, "rung.10": math.e**3, "loss": math.e**-1},
        {"planned_sparsity": 0.9, "rung.5": math.e**7},
        {"planned_sparsity": 0.9, "loss": math.e**-3},  # finished, without rungs
    ]
    # 0 at rung 10: 1 beside the mean of 1 and 3. 1 at the end: -1 beside the mean of -1 and -3.
    # 2 at rung 5: 7 beside the mean of 9, 8 and 7. 3 at the end.
    assert relative_losses(trials) == pytest.approx([-1, 1, -1, -1])


@pytest.mark.parametrize(
    "silent", [{}, {"planned_sparsity": 0.9}, {"loss": 0.3}, {"planned_sparsity": None, "loss": 1}]
)
def test_a_trial_without_a_loss_has_no_relative_loss(silent):
    trials = [silent, {"planned_sparsity": 0.9, "loss": 0.5}, {"planned_sparsity": 0.9, "loss": 0.5}]
    first, *others = relative_losses(trials)
    assert math.isnan(first)
    assert others == [0, 0]


def test_a_loss_of_0_is_the_best_and_finite():
    best, worst = relative_losses([{"planned_sparsity": 0.9, "loss": 0.0}, {"planned_sparsity": 0.9, "loss": 1.0}])
    assert best < 0 < worst
    assert math.isfinite(best)


@quick
@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=10))
def test_relative_losses_of_one_sparsity_sum_to_0_and_keep_their_order(losses):
    relative = relative_losses([{"planned_sparsity": 0.9, "loss": loss} for loss in losses])
    assert math.fsum(relative) == pytest.approx(0, abs=1e-9)
    by_loss = sorted(range(len(losses)), key=losses.__getitem__)
    assert [relative[each] for each in by_loss] == sorted(relative)


def compared_pairwise(trials):
    """The definition: each beside all that came to where it is, one pair at a time. A line where it is alone."""
    found = []
    for mine in trials:
        epochs = [int(name[5:]) for name in mine if name.startswith("rung.")]
        place = "loss" if "loss" in mine else f"rung.{max(epochs, default=0)}"
        logs = [
            math.log(max(each[place], 1e-12))
            for each in trials
            if place in each and 2 / 3 <= (1 - mine["planned_sparsity"]) / (1 - each["planned_sparsity"]) <= 1.5
        ]
        others = [each for each in trials if place in each and each is not mine]
        mean = line_through(others, place, mine) if len(logs) == 1 and others else math.fsum(logs) / max(1, len(logs))
        found.append(math.log(max(mine[place], 1e-12)) - mean if place in mine else math.nan)
    return found


def line_through(others, place, mine):
    """Weighted by the distance to the power of -4; level if the others are close together."""
    distances = [math.log((1 - each["planned_sparsity"]) / (1 - mine["planned_sparsity"])) for each in others]
    logs = [math.log(max(each[place], 1e-12)) for each in others]
    degree = int(max(distances) - min(distances) > math.log(1.5))
    return np.polynomial.polynomial.polyfit(distances, logs, degree, w=np.power(distances, -2.0))[0]


losses = st.floats(0, 1e6)
trainings = st.fixed_dictionaries(
    {"planned_sparsity": st.one_of(st.sampled_from([0.0, 0.5, 0.9, 0.97]), st.floats(0, 0.999))},
    optional={"loss": losses, "rung.5": losses, "rung.10": losses},
)


@quick
@given(st.lists(trainings, max_size=30))
def test_relative_losses_equal_pairwise_comparison(trials):
    """Bit for bit, where a sum has no other order."""
    for found, expected in zip(relative_losses(trials), compared_pairwise(trials), strict=True):
        if isinstance(expected, np.floating):  # of a line
            assert found == pytest.approx(expected, abs=1e-6)
        else:
            assert str(found) == str(expected)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_does_not_change_the_others(broken):
    trials = [{"planned_sparsity": 0.9, "loss": loss} for loss in (math.e, broken, math.e**3)]
    first, gone, last = relative_losses(trials)
    assert (first, last) == pytest.approx((-1, 1))
    assert not math.isfinite(gone)


# How well rungs foretell


def finished(*pairs, sparsity=0.9):
    return [{"planned_sparsity": sparsity, "rung.5": at_rung, "loss": at_end} for at_rung, at_end in pairs]


def test_rung_correlation_is_spearmans_rank_correlation_by_hand():
    # Ranks 1 2 3 4 against 2 1 4 3: Σd² = 4, 1 - 6·4 / (4·15) = 0.6.
    rows = finished((0.1, 0.3), (0.2, 0.25), (0.3, 0.9), (0.4, 0.8))
    correlation, count = rung_correlation(rows, 5)
    assert correlation == pytest.approx(0.6)
    assert count == 4


@pytest.mark.parametrize(("ends", "expected"), [((1, 2, 3, 4, 5), 1.0), ((5, 4, 3, 2, 1), -1.0)])
def test_rung_correlation_of_the_same_and_of_the_opposite_order(ends, expected):
    rows = finished(*zip((0.1, 0.2, 0.4, 0.8, 1.6), ends, strict=True))
    assert rung_correlation(rows, 5) == (pytest.approx(expected), 5)


def test_sparsity_alone_gives_no_rung_correlation():
    """Sparser ones lose more at both; within a sparsity, here, the order turns round."""
    dense = finished((1, 8), (2, 2), (8, 1), sparsity=0.5)
    sparse = finished((100, 1600), (400, 400), (1600, 100), sparsity=0.97)
    # Beside their own, in powers of 2: dense -4/3 -1/3 5/3 and 5/3 -1/3 -4/3, sparse -2 0 2 and 2 0 -2.
    # Ranks of all: 2 3 5 1 4 6 and 5 3 2 6 4 1, Σd² = 68, 1 - 6·68 / (6·35).
    correlation, count = rung_correlation([*dense, *sparse], 5)
    assert correlation == pytest.approx(1 - 408 / 210)
    assert count == 6


def test_equal_losses_have_no_rung_correlation():
    assert rung_correlation(finished((1, 1), (1, 2), (1, 3), (1, 4)), 5) is None
    assert rung_correlation(finished((1, 1), (2, 1), (3, 1), (4, 1)), 5) is None


def test_only_trials_with_both_losses_count():
    rows = finished((0.1, 0.1), (0.2, 0.2), (0.3, 0.3), (0.4, 0.4))
    paused = {"planned_sparsity": 0.9, "rung.5": 9.0}
    other_rung = {"planned_sparsity": 0.9, "rung.10": 9.0, "loss": 0.01}
    unplanned = {"rung.5": 9.0, "loss": 0.01}
    assert rung_correlation([*rows, paused, other_rung, unplanned], 5) == (pytest.approx(1.0), 4)
    assert rung_correlation([*rows[:3], paused, other_rung, unplanned], 5) is None


def test_too_few_comparable_trials_have_no_rung_correlation():
    assert rung_correlation([], 5) is None
    assert rung_correlation(finished((0.1, 0.1), (0.2, 0.2), (0.3, 0.3)), 5) is None
    apart = [*finished((0.1, 0.1), (0.2, 0.2), sparsity=0.5), *finished((0.3, 0.3), (0.4, 0.4), sparsity=0.97)]
    assert rung_correlation(apart, 5) is None
