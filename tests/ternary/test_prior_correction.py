"""The prior's correction: a map that never falls, trusted only where it foretells, and a drift that it learns."""

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sca_search.ternary.prior_correction import (
    LEAST_OBSERVATIONS,
    MOST_OBSERVATIONS,
    Observation,
    asked_for,
    by_layer,
    leave_one_out_error,
    nearest,
    reached_for,
    trusted,
)

quick = settings(max_examples=20, deadline=None, derandomize=True)
shares = st.floats(0, 1)
strengths = st.one_of(st.just(0.0), st.floats(1e-6, 1e6))
observed = st.lists(st.builds(Observation, st.just("conv2"), shares, shares, strengths), max_size=8)


def shifted(sparsity, by):
    """A sparsity moved in log-odds."""
    return 1 / (1 + math.exp(-(math.log(sparsity / (1 - sparsity)) + by)))


def at(asked, reached):
    """The answer of `reached_for` to one asked sparsity; its grid is even, from 0 to 1."""
    return float(np.interp(asked, np.linspace(0, 1, len(reached)), reached))


# A map that never falls


@quick
@given(observed, strengths)
def test_reached_never_falls_and_runs_from_nothing_to_everything(observations, strength):
    reached = reached_for(observations, strength)
    assert (np.diff(reached) >= 0).all()
    assert (reached[0], reached[-1]) == (0, 1)


@quick
@given(observed, strengths, st.lists(shares, min_size=2, max_size=4))
def test_asked_lies_between_0_and_1_and_never_falls_as_the_plan_rises(observations, strength, plans):
    asked = [asked_for(observations, plan, strength) for plan in sorted(plans)]
    assert all(0 <= each <= 1 for each in asked)
    assert asked == sorted(asked)


@quick
@given(observed, strengths)
def test_nothing_and_everything_are_requested_as_such(observations, strength):
    assert asked_for(observations, 0.0, strength) == 0.0
    assert asked_for(observations, 1.0, strength) == pytest.approx(1.0, abs=1e-6)


@quick
@given(strengths, shares)
def test_without_observations_what_is_asked_is_reached(strength, asked):
    assert at(asked, reached_for([], strength)) == pytest.approx(asked, abs=1e-12)


def test_one_observation_moves_the_map_where_it_was_made():
    # Asked for ½ it reached a log-odds of +1. Its own weight there is 1, the closed form's beside it 0.05.
    reached = reached_for([Observation("conv2", 0.5, shifted(0.5, 1.0), 10.0)], 10.0)
    assert at(0.5, reached) == pytest.approx(shifted(0.5, 1 / 1.05), rel=1e-9)


@pytest.mark.parametrize("strength", [1e-6, 1e9])
def test_far_from_all_observations_the_closed_form_is_right_again(strength):
    seen = [Observation("conv2", share, shifted(share, 1.0), 10.0) for share in (0.3, 0.5, 0.9)]
    assert at(0.5, reached_for(seen, 10.0)) > 0.65
    assert at(0.5, reached_for(seen, strength)) == pytest.approx(0.5, abs=1e-6)


def test_an_observation_counts_less_the_further_its_strength_is():
    seen = [Observation("conv2", 0.5, 0.8, 10.0)]
    reached = [at(0.5, reached_for(seen, strength)) for strength in (10.0, 30.0, 90.0, 270.0)]
    assert reached == sorted(reached, reverse=True)
    assert reached[0] - reached[-1] > 0.1


# Trust


@quick
@given(st.lists(st.builds(Observation, st.just("conv2"), shares, shares, strengths), max_size=2), shares, strengths)
def test_a_handful_is_needed_before_the_fit_is_trusted(observations, plan, strength):
    assert len(observations) < LEAST_OBSERVATIONS
    assert not trusted(observations)
    assert asked_for(observations, plan, strength) == plan


@quick
@given(st.lists(st.tuples(shares, strengths), max_size=8), shares, strengths)
def test_where_the_closed_form_is_exact_nothing_is_corrected(seen, plan, strength):
    observations = [Observation("conv2", share, share, pull) for share, pull in seen]
    assert not trusted(observations)
    assert asked_for(observations, plan, strength) == plan


def test_deviations_that_cancel_are_noise():
    """Each left out, the others' mean drift points the other way: worse than to expect none."""
    seen = [Observation("conv2", 0.9, shifted(0.9, by), 10.0) for by in (0.5, -0.5, 0.5, -0.5)]
    closed_form = np.mean([abs(each.reached - each.asked) for each in seen])
    assert leave_one_out_error(seen) > closed_form
    assert not trusted(seen)
    assert asked_for(seen, 0.8, 10.0) == 0.8


def seen_with(drift, noise, seed, count=8):
    """A study's worth of observations of one layer: its sparsities and strengths drawn, its drift known."""
    draw = random.Random(seed)
    seen = []
    for _ in range(count):
        asked, strength = draw.uniform(0.3, 0.97), math.exp(draw.uniform(math.log(3), math.log(300)))
        seen.append(Observation("conv2", asked, shifted(asked, drift(strength) + draw.gauss(0, noise)), strength))
    return seen


def test_a_drift_is_trusted_beside_its_noise_and_noise_alone_mostly_not():
    noise = [trusted(seen_with(lambda _: 0.0, 0.2, seed)) for seed in range(20)]
    drift = [trusted(seen_with(lambda _: 0.8, 0.2, seed)) for seed in range(10)]
    assert sum(noise) < 10
    assert all(drift)


def test_noise_that_is_trusted_by_chance_does_little_harm():
    """Without drift the plan itself is what should be asked for; what is asked lies nearer than the noise is wide."""
    studies = [seen_with(lambda _: 0.0, 0.2, seed) for seed in range(20)]
    harm = [abs(asked_for(seen, 0.8, 30.0) - 0.8) for seen in studies]
    noise = [abs(shifted(0.8, each) - 0.8) for each in (-0.2, 0.2)]
    assert np.mean(harm) < 0.5 * np.mean(noise)


def test_trust_is_the_comparison_of_the_two_errors():
    for seed in range(10):
        seen = seen_with(lambda _: 0.1, 0.2, seed, count=5)
        closed_form = np.mean([abs(each.reached - each.asked) for each in seen])
        assert trusted(seen) == (leave_one_out_error(seen) < closed_form)


# Learning


def drift_of(strength):
    """A weak pull leaves zeros behind, a strong one none: by a log-odds of 1 at 3, of 0.1 at 300."""
    return 1.0 - 0.9 * math.log(strength / 3) / math.log(100)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sign", [1, -1])
def test_a_drift_that_depends_on_the_strength_is_learned_from_a_handful(seed, sign):
    seen = seen_with(lambda strength: sign * drift_of(strength), 0.0, seed)
    with_correction, without = [], []
    for plan in (0.4, 0.6, 0.8, 0.9, 0.95):
        for strength in (5.0, 15.0, 50.0, 150.0):
            drift = sign * drift_of(strength)
            asked = asked_for(seen, plan, strength)
            with_correction.append(abs(shifted(asked, drift) - plan))
            without.append(abs(shifted(plan, drift) - plan))
    assert np.mean(with_correction) < 0.5 * np.mean(without)


def test_a_drift_seen_where_it_is_needed_is_nearly_undone():
    """At the very sparsities and strength of the plan, what is left is the closed form's small weight."""
    seen = [Observation("conv2", share, shifted(share, 0.8), 10.0) for share in (0.7, 0.8, 0.9, 0.95)]
    for plan in (0.85, 0.9, 0.95):
        asked = asked_for(seen, plan, 10.0)
        assert asked < plan
        assert shifted(asked, 0.8) == pytest.approx(plan, abs=0.005)


@quick
@given(st.lists(st.builds(Observation, st.just("conv2"), shares, shares, strengths), min_size=1, max_size=8))
def test_leaving_out_all_at_once_is_leaving_out_one_after_the_other(observations):
    errors = []
    for index, left_out in enumerate(observations):
        others = observations[:index] + observations[index + 1 :]
        errors.append(abs(at(left_out.asked, reached_for(others, left_out.strength)) - left_out.reached))
    assert leave_one_out_error(observations) == pytest.approx(np.mean(errors), rel=1e-9, abs=1e-12)


# Of many, the nearest


def repeated(asked, strength=10.0, reached=None, count=MOST_OBSERVATIONS):
    return [Observation("conv2", asked, asked if reached is None else reached, strength) for _ in range(count)]


def test_while_they_are_few_all_observations_count():
    seen = [*repeated(0.1, count=MOST_OBSERVATIONS - 1), *repeated(0.99, count=1)]
    assert nearest(seen, [0.5], 10.0) == seen


def test_near_is_a_plan_that_was_requested_or_reached_at_about_the_strength():
    """Beside 200 far ones: at the plan itself, reaching it from elsewhere, and at a strength that is 1.1 times ours."""
    near = [
        Observation("conv2", 0.9, 0.5, 10.0),
        Observation("conv2", 0.5, 0.9, 10.0),
        Observation("conv2", 0.9, 0.9, 11.0),
    ]
    far = [*repeated(0.5, count=60), *repeated(0.9, 1e4, count=70), *repeated(0.999, count=70)]
    found = nearest([*near, *far], [0.9], 10.0)
    assert len(found) == MOST_OBSERVATIONS == len(far)
    assert found[:3] == near


def test_of_equally_near_ones_the_newest_count_in_their_order():
    seen = [Observation("conv2", 0.9, 0.9 + number * 1e-6, 10.0) for number in range(2 * MOST_OBSERVATIONS)]
    assert nearest(seen, [0.9], 10.0) == seen[MOST_OBSERVATIONS:]


def test_what_is_long_past_is_not_looked_at():
    past, newer = repeated(0.9, count=1), repeated(0.5, count=2000)
    assert past[0] in nearest([*past, *newer[1:]], [0.9], 10.0)
    assert past[0] not in nearest([*past, *newer], [0.9], 10.0)


def test_observations_by_layer_keep_their_order():
    seen = [Observation(layer, share, share, 1.0) for share in (0.1, 0.2) for layer in ("fc1", "conv2")]
    assert by_layer(seen) == {"fc1": [seen[0], seen[2]], "conv2": [seen[1], seen[3]]}
    assert by_layer([]) == {}


def test_for_several_plans_an_observation_is_near_if_it_is_near_one():
    seen = [*repeated(0.5, count=100), *repeated(0.97, count=100), *repeated(0.8, count=100)]
    found = nearest(seen, [0.97, 0.5], 10.0)
    assert {each.asked for each in found} == {0.5, 0.97}


def test_a_long_study_learns_its_drift_from_the_near_ones():
    """Nine times as many of another strength say the opposite, and come later."""
    near = seen_with(lambda _: 0.8, 0.1, 0, count=200)
    near = [Observation("conv2", each.asked, each.reached, 10.0) for each in near]
    opposite = [Observation("conv2", each.asked, shifted(each.asked, -0.8), 1e5) for each in near]
    asked = asked_for([*near, *opposite * 9], 0.9, 10.0)
    assert shifted(asked, 0.8) == pytest.approx(0.9, abs=0.01)
