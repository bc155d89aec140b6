"""α ↔ sparsity: the closed form against numpy, its ends, and its inverse."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from sca_search.ternary.parametrize import threshold_of_alpha
from sca_search.ternary.prior import alpha_for_sparsity, border, zeros_for_sparsity

quick = settings(max_examples=100, deadline=None, derandomize=True)
sparsities = st.floats(0, 1)
weights = st.lists(st.floats(-6, 6, width=32), min_size=1, max_size=40)
distinct = st.lists(st.floats(-6, 6, width=32), min_size=1, max_size=40, unique_by=abs)


def sparsity_for_alpha(latent: torch.Tensor, alpha: float) -> float:
    """F(atanh √(α/2)), the inverse of the prior: the fraction of weights inside the zero basin of α."""
    return float((latent.abs() < threshold_of_alpha(alpha)).double().mean()) if latent.numel() else 0.0


def rounded_half_up(value):
    return int(np.floor(value + 0.5))


# How many zeros


@pytest.mark.parametrize(
    ("sparsity", "count", "zeros"),
    [(0.0, 10, 0), (0.5, 10, 5), (0.54, 10, 5), (0.56, 10, 6), (0.999, 1000, 999), (0.9996, 1000, 1000), (0.3, 0, 0)],
)
def test_zeros_for_sparsity_by_hand(sparsity, count, zeros):
    assert zeros_for_sparsity(sparsity, count) == zeros


@quick
@given(sparsities, st.integers(0, 10**8))
def test_zeros_for_sparsity_is_the_nearest_count(sparsity, count):
    zeros = zeros_for_sparsity(sparsity, count)
    assert 0 <= zeros <= count
    assert abs(zeros - sparsity * count) <= 0.5 + 1e-6


# The border


def test_border_lies_half_way_between_its_neighbors():
    latent = torch.tensor([[0.5, -0.1], [-2.0, 1.0], [0.25, -4.0]])  # 0.1 0.25 0.5 1 2 4
    assert border(latent, 1 / 6) == pytest.approx((0.1 + 0.25) / 2)
    assert border(latent, 0.5) == 0.75
    assert border(latent, 5 / 6) == 3.0


@quick
@given(weights, sparsities)
def test_border_against_a_sort(values, sparsity):
    zeros = rounded_half_up(sparsity * len(values))
    assume(0 < zeros < len(values))
    ordered = np.sort(np.abs(np.array(values, dtype=np.float64)))
    assert border(torch.tensor(values), sparsity) == (ordered[zeros - 1] + ordered[zeros]) / 2


# Near, at the edge of what is looked at, far off, and where nothing was known.
@pytest.mark.parametrize("near", [1.001, 0.991, 0.989, 0.951, 1.049, 0.949, 0.5, 2.0, 0.0, math.inf])
@pytest.mark.parametrize("sparsity", [0.001, 0.3, 0.9, 0.999])
def test_border_does_not_depend_on_where_it_was(near: float, sparsity: float) -> None:
    latent = torch.randn(4000, generator=torch.Generator().manual_seed(5))
    ordered = np.sort(np.abs(latent.numpy().astype(np.float64)))
    zeros = rounded_half_up(sparsity * 4000)
    expected = (ordered[zeros - 1] + ordered[zeros]) / 2
    assert border(latent, sparsity, near=near * expected) == expected


@quick
@given(distinct, sparsities)
# Next to each other among the float32 numbers: their middle is none of them.
@example([0.5, 0.50000006, -0.25], 2 / 3)
def test_border_has_just_the_wanted_weights_below_it(values, sparsity):
    below = np.abs(np.array(values, dtype=np.float64)) < border(torch.tensor(values), sparsity)
    assert below.sum() == rounded_half_up(sparsity * len(values))


def test_border_does_not_depend_on_the_layout():
    latent = torch.randn(8, 6, 3, 3, generator=torch.Generator().manual_seed(5))
    assert border(latent.to(memory_format=torch.channels_last), 0.7) == border(latent, 0.7)
    assert border(latent[:, ::2], 0.7) == border(latent[:, ::2].contiguous(), 0.7)


def test_border_leaves_the_latent_alone():
    latent = torch.tensor([3.0, -1.0, 2.0], requires_grad=True)
    border(latent, 0.5)
    assert latent.tolist() == [3, -1, 2]
    assert latent.grad is None


def test_border_of_large_float32_numbers():
    latent = torch.tensor([1e38, -2e38, 3e38, 3.4e38])
    assert border(latent, 0.5) == pytest.approx(2.5e38, rel=1e-6)  # their sum is beyond float32
    assert border(latent, 0.75) == pytest.approx(3.2e38, rel=1e-6)
    assert alpha_for_sparsity(latent, 0.5) == 2.0


def test_border_reads_a_weight_in_any_memory_order():
    latent = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    assert border(latent.to(memory_format=torch.channels_last), 0.3) == border(latent, 0.3)


# α


@quick
@given(weights, sparsities)
def test_alpha_is_the_closed_form(values, sparsity):
    zeros = rounded_half_up(sparsity * len(values))
    ordered = np.sort(np.abs(np.array(values, dtype=np.float64)))
    if zeros == 0:
        expected = 0.0
    elif zeros == len(values):
        expected = 2.0
    else:
        expected = 2 * np.tanh((ordered[zeros - 1] + ordered[zeros]) / 2) ** 2
    assert alpha_for_sparsity(torch.tensor(values), sparsity) == pytest.approx(expected, rel=1e-12)


@quick
@given(weights, sparsities, sparsities)
def test_alpha_rises_with_sparsity(values, one, other):
    latent = torch.tensor(values)
    assert alpha_for_sparsity(latent, min(one, other)) <= alpha_for_sparsity(latent, max(one, other))


@quick
@given(weights, sparsities)
def test_alpha_stays_within_the_papers_range(values, sparsity):
    assert 0 <= alpha_for_sparsity(torch.tensor(values), sparsity) <= 2


@quick
@given(weights)
def test_no_zeros_need_no_alpha(values):
    assert alpha_for_sparsity(torch.tensor(values), 0.0) == 0.0
    assert sparsity_for_alpha(torch.tensor(values), 0.0) == 0.0


@quick
@given(weights)
def test_only_zeros_need_alpha_2(values):
    assert alpha_for_sparsity(torch.tensor(values), 1.0) == 2.0
    assert sparsity_for_alpha(torch.tensor(values), 2.0) == 1.0


def test_alpha_near_sparsity_1_keeps_the_largest_weight():
    latent = torch.linspace(0.001, 1.0, 1000)
    alpha = alpha_for_sparsity(latent, 0.999)
    assert alpha == pytest.approx(2 * np.tanh(0.9995) ** 2, rel=1e-6)
    assert sparsity_for_alpha(latent, alpha) == 0.999
    assert alpha_for_sparsity(latent, 0.9996) == 2.0  # to the nearest weight, that is all of them


# And back


@quick
@given(weights, st.floats(0, 2.5))
def test_sparsity_is_the_fraction_inside_the_basin(values, alpha):
    magnitudes = np.abs(np.array(values, dtype=np.float64))
    edge = math.inf if alpha >= 2 else np.arctanh(np.sqrt(alpha / 2))
    assume((np.abs(magnitudes - edge) > 1e-6).all())
    assert sparsity_for_alpha(torch.tensor(values), alpha) == pytest.approx((magnitudes < edge).mean())


@quick
@given(distinct, sparsities)
def test_round_trip_is_right_within_one_weight(values, sparsity):
    latent = torch.tensor(values)
    back = sparsity_for_alpha(latent, alpha_for_sparsity(latent, sparsity))
    assert abs(back * len(values) - rounded_half_up(sparsity * len(values))) <= 1 + 1e-9


def test_round_trip_is_exact_where_weights_stand_apart():
    latent = torch.randperm(1000, generator=torch.Generator().manual_seed(0)) / 250 - 2.0005
    for zeros in range(0, 1001, 37):
        assert sparsity_for_alpha(latent, alpha_for_sparsity(latent, zeros / 1000)) == zeros / 1000


def test_round_trip_holds_far_out_where_tanh_is_nearly_1():
    latent = torch.arange(1.0, 19.0)
    for zeros in range(19):
        assert sparsity_for_alpha(latent, alpha_for_sparsity(latent, zeros / 18)) == pytest.approx(zeros / 18)


# Odd layers


def test_a_layer_of_one_weight_is_either_or():
    latent = torch.tensor([[0.3]])
    assert alpha_for_sparsity(latent, 0.49) == 0.0
    assert alpha_for_sparsity(latent, 0.5) == 2.0


def test_a_layer_of_two_weights():
    latent = torch.tensor([-0.2, 0.6])
    assert alpha_for_sparsity(latent, 0.24) == 0.0
    assert alpha_for_sparsity(latent, 0.25) == pytest.approx(2 * np.tanh(0.4) ** 2)
    assert alpha_for_sparsity(latent, 0.74) == pytest.approx(2 * np.tanh(0.4) ** 2)
    assert alpha_for_sparsity(latent, 0.75) == 2.0


@pytest.mark.parametrize("value", [0.3, -1.5])
def test_constant_weights_have_their_own_size_as_border(value):
    latent = torch.full((4,), value)
    assert border(latent, 0.5) == pytest.approx(abs(value))
    assert alpha_for_sparsity(latent, 0.5) == pytest.approx(2 * np.tanh(abs(value)) ** 2)
    assert sparsity_for_alpha(latent, alpha_for_sparsity(latent, 0.5)) in {0.0, 1.0}  # nothing divides equals


def test_all_zero_weights_give_numbers():
    latent = torch.zeros(2, 5)
    assert [alpha_for_sparsity(latent, sparsity) for sparsity in (0.0, 0.5, 0.9, 1.0)] == [0, 0, 0, 2]
    assert sparsity_for_alpha(latent, 0.1) == 1.0


def test_a_layer_without_weights_gives_numbers():
    assert alpha_for_sparsity(torch.zeros(0), 0.5) == 0.0
    assert sparsity_for_alpha(torch.zeros(0), 0.5) == 0.0


@pytest.mark.e2e
def test_forty_million_weights_are_no_obstacle():
    count = 40_000_000
    latent = torch.from_numpy(np.random.default_rng(0).standard_normal(count, dtype=np.float32))
    edge = border(latent, 0.9)
    assert np.count_nonzero(np.abs(latent.numpy()) <= np.float32(edge)) == pytest.approx(0.9 * count, abs=20)
    assert edge == pytest.approx(1.6449, abs=2e-3)  # the 95th percentile of a normal distribution
    assert sparsity_for_alpha(latent, alpha_for_sparsity(latent, 0.9)) == pytest.approx(0.9, abs=1e-6)
