"""The exact step: the count, how little is moved for it, what the floors keep, and the ends of the range.

Latent weights are multiples of 1/64, so that differences to the border are exact and no two weights tie.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from torch import nn

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.exact import ExactTrits, Floor, exact_trits
from sca_search.ternary.methods import FinalWeights
from sca_search.ternary.parametrize import TernaryWeight, threshold_of_alpha

quick = settings(max_examples=150, deadline=None, derandomize=True)
NO_FLOOR = Floor(per_layer=0, per_channel=0)
HALF = math.log(3) / 2  # tanh reaches ½ here


def tensor(rows):
    return torch.tensor(rows, dtype=torch.float32)


def soft_weight(latent, form, threshold):
    """W in the paper's form, or after a strong flow."""
    weight = TernaryWeight(form)
    weight.set_threshold(threshold)
    weight.wdr_strength = 1e4
    return weight(latent)


def papers_step(latents, zeros, floor=NO_FLOOR):
    """The exact step on layers in the paper's form."""
    softs = {name: torch.tanh(latent) for name, latent in latents.items()}
    return exact_trits(latents, softs, dict.fromkeys(latents, 0.0), zeros, floor)


def flat(tensors):
    return np.concatenate([np.asarray(each).ravel() for each in tensors.values()])


def zeros_in(result):
    return int((flat(result.trits) == 0).sum())


def dead(result):
    return FinalWeights({name: ScaledTrits(trits) for name, trits in result.trits.items()}).dead_layers


@st.composite
def networks(draw, most_weights=12, layers=3):
    """Layers of (channels, inputs), distinct magnitudes, each with its border: latents, softs, thresholds."""
    shapes = draw(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4)), min_size=1, max_size=layers))
    sizes = [rows * columns for rows, columns in shapes]
    assume(sum(sizes) <= most_weights)
    magnitudes = draw(st.lists(st.integers(1, 200), min_size=sum(sizes), max_size=sum(sizes), unique=True))
    signs = draw(st.lists(st.sampled_from([-1, 1]), min_size=sum(sizes), max_size=sum(sizes)))
    values = iter(np.array(magnitudes) * signs / 64)
    form = draw(st.sampled_from(["paper", "decoupled"]))
    latents, softs, thresholds = {}, {}, {}
    for index, (rows, columns) in enumerate(shapes):
        name = f"layer{index}"
        latents[name] = tensor([[next(values) for _ in range(columns)] for _ in range(rows)])
        # Half a step off the grid of weights, so that none lies on a border.
        thresholds[name] = 0.0
        if form == "decoupled":
            thresholds[name] = draw(st.integers(0, 210).map(lambda k: (k + 0.5) / 64) | st.just(0.0))
        softs[name] = soft_weight(latents[name], form, thresholds[name])
    return latents, softs, thresholds


@st.composite
def tasks(draw, **settings_of_networks):
    """A network and a number of zeros."""
    network = draw(networks(**settings_of_networks))
    zeros = draw(st.integers(0, sum(latent.numel() for latent in network[0].values())))
    return *network, zeros


floors = st.builds(Floor, per_layer=st.integers(0, 3), per_channel=st.integers(0, 2))


# The count


@quick
@given(tasks(most_weights=36), floors)
def test_the_count_is_exact_whatever_the_floors(task, floor):
    latents, softs, thresholds, zeros = task
    result = exact_trits(latents, softs, thresholds, zeros, floor)
    assert zeros_in(result) == zeros
    assert set(flat(result.trits).tolist()) <= {-1, 0, 1}


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_every_count_can_be_met(form):
    generator = torch.Generator().manual_seed(0)
    latents = {
        "conv": torch.randn(4, 3, 2, 2, generator=generator) * 0.6,
        "fc": torch.randn(3, 5, generator=generator) * 0.6,
    }
    border = 0.0 if form == "paper" else 0.5
    softs = {name: soft_weight(latent, form, border) for name, latent in latents.items()}
    for zeros in range(48 + 15 + 1):
        result = exact_trits(latents, softs, dict.fromkeys(latents, border), zeros, Floor(per_layer=2, per_channel=1))
        assert zeros_in(result) == zeros
        assert {name: trits.shape for name, trits in result.trits.items()} == {"conv": (4, 3, 2, 2), "fc": (3, 5)}


@quick
@given(tasks(), floors)
def test_trits_keep_the_sign_of_their_latent(task, floor):
    latents, softs, thresholds, zeros = task
    trits = flat(exact_trits(latents, softs, thresholds, zeros, floor).trits)
    values = flat(latents)
    assert (trits[trits != 0] == np.sign(values[trits != 0])).all()


def test_no_zeros_leave_signs():
    result = papers_step({"a": tensor([[0.1, -0.2], [3.0, -0.01]])}, 0)
    assert result.trits["a"].tolist() == [[1, -1], [1, -1]]
    assert result.adjusted == 3


def test_nothing_but_zeros_leave_a_dead_layer():
    result = papers_step({"a": tensor([[0.1, -0.2]]), "b": tensor([[3.0], [-4.0]])}, 4, Floor(1, 1))
    assert flat(result.trits).tolist() == [0, 0, 0, 0]
    assert dead(result) == ("a", "b")
    assert result.adjusted == 2


def test_a_latent_of_exactly_0_becomes_plus_1_where_it_must_not_be_a_zero():
    result = papers_step({"a": tensor([[0.0, -0.0, 0.0]])}, 0)
    assert result.trits["a"].tolist() == [[1, 1, 1]]


def test_weights_that_tie_still_give_the_count():
    latents = {"a": torch.full((3, 4), 0.25), "b": torch.full((2, 2), -2.0)}
    for zeros in range(17):
        assert zeros_in(papers_step(latents, zeros, Floor(1, 1))) == zeros


# What is moved


@quick
@given(tasks(most_weights=36))
def test_no_more_is_moved_than_the_count_is_off(task):
    latents, softs, thresholds, zeros = task
    result = exact_trits(latents, softs, thresholds, zeros, NO_FLOOR)
    rounded_zeros = int((np.round(flat(softs)) == 0).sum())
    assert result.adjusted == abs(rounded_zeros - zeros)
    assert result.adjusted == int(((flat(result.trits) == 0) != (np.round(flat(softs)) == 0)).sum())
    assert result.adjusted_fraction == result.adjusted / flat(latents).size


@quick
@given(tasks(most_weights=36))
def test_what_is_moved_lies_nearest_to_its_border(task):
    latents, softs, thresholds, zeros = task
    is_zero = flat(exact_trits(latents, softs, thresholds, zeros, NO_FLOOR).trits) == 0
    was_zero = np.round(flat(softs)) == 0
    margin = flat({name: latent.abs().double() - thresholds[name] for name, latent in latents.items()})
    missing = zeros - int(was_zero.sum())
    candidates = np.flatnonzero(was_zero if missing < 0 else ~was_zero)
    # Outwards the largest of the zeros go first, inwards the smallest of the others.
    nearest_first = sorted(candidates, key=lambda index: -margin[index] if missing < 0 else margin[index])
    got = np.flatnonzero(is_zero != was_zero)
    # Margins are compared, not places: in two layers they may tie.
    assert sorted(margin[got]) == sorted(margin[nearest_first[: abs(missing)]])


def patterns(count, zeros):
    for chosen in itertools.combinations(range(count), zeros):
        mask = np.zeros(count, dtype=bool)
        mask[list(chosen)] = True
        yield mask


def keeps(mask, latents, floor):
    """Whether a pattern of zeros leaves each layer and channel its floor."""
    start = 0
    for latent in latents.values():
        alive = ~mask[start : start + latent.numel()].reshape(latent.shape[0], -1)
        start += latent.numel()
        if alive.sum() < min(floor.per_layer, alive.size):
            return False
        if (alive.sum(axis=1) < min(floor.per_channel, alive.shape[1])).any():
            return False
    return True


@quick
@given(tasks(most_weights=9), st.integers(0, 2))
def test_moves_are_the_fewest_that_count_and_layer_floor_allow(task, per_layer):
    latents, softs, thresholds, zeros = task
    floor = Floor(per_layer, 0)
    was_zero = np.round(flat(softs)) == 0
    costs = [int((mask != was_zero).sum()) for mask in patterns(was_zero.size, zeros) if keeps(mask, latents, floor)]
    assume(costs)
    result = exact_trits(latents, softs, thresholds, zeros, floor)
    assert result.adjusted == min(costs)


def test_moves_go_where_they_cost_least_not_where_zeros_are_missing():
    latents = {"near": tensor([[HALF + 0.01, HALF + 0.02, 3.0]]), "far": tensor([[2.0, 2.1, -2.2]])}
    result = papers_step(latents, 2)
    assert result.trits["near"].tolist() == [[0, 0, 1]]
    assert result.trits["far"].tolist() == [[1, 1, -1]]


def test_distance_is_measured_from_each_layers_own_border():
    latents = {"low": tensor([[0.30, 0.50]]), "high": tensor([[1.05, 1.40]])}
    thresholds = {"low": 0.2, "high": 1.0}
    softs = {name: soft_weight(latent, "decoupled", thresholds[name]) for name, latent in latents.items()}
    result = exact_trits(latents, softs, thresholds, 1, NO_FLOOR)
    assert result.trits["low"].tolist() == [[1, 1]]
    assert result.trits["high"].tolist() == [[0, 1]]


# Floors


def test_a_layer_that_rounds_to_nothing_keeps_its_largest_weight():
    latents = {"a": tensor([[0.1, -0.4, 0.3]]), "b": tensor([[1.0, 2.0, 3.0]])}
    result = papers_step(latents, 3, Floor(per_layer=1))
    assert result.trits["a"].tolist() == [[0, -1, 0]]
    assert result.trits["b"].tolist() == [[0, 1, 1]]
    assert result.adjusted == 2
    assert dead(result) == ()


def test_a_channel_keeps_its_largest_weight():
    latents = {"a": tensor([[0.1, 0.2, -0.3], [1.0, 2.0, 3.0]])}
    result = papers_step(latents, 4, Floor(per_layer=0, per_channel=1))
    assert result.trits["a"].tolist() == [[0, 0, -1], [0, 0, 1]]


def test_channels_of_a_convolution_are_its_first_axis():
    latent = torch.linspace(0.01, 0.4, 24).reshape(2, 3, 2, 2)
    result = papers_step({"a": latent}, 22, Floor(per_layer=0, per_channel=1))
    assert [int(channel.sum()) for channel in result.trits["a"]] == [1, 1]
    assert result.trits["a"][0, 2, 1, 1] == result.trits["a"][1, 2, 1, 1] == 1


def test_a_floor_above_a_layers_size_is_the_whole_layer():
    latents = {"a": tensor([[0.1], [0.2]]), "b": tensor([[1.0, 2.0, 3.0, 4.0]])}
    result = papers_step(latents, 4, Floor(per_layer=10))
    assert zeros_in(result) == 4
    result = papers_step({"a": latents["a"], "b": latents["b"]}, 0, Floor(per_layer=10, per_channel=10))
    assert zeros_in(result) == 0


@quick
@given(tasks(most_weights=9), floors)
# Two weights are to stay: one in each channel serves the layer's floor as well as the channels'.
@example(({"a": tensor([[9.0, 8.0], [1.0, 0.5]])}, {"a": torch.ones(2, 2)}, {"a": 0.0}, 2), Floor(2, 1))
def test_both_floors_are_kept_where_some_pattern_keeps_them(task, floor):
    latents, softs, thresholds, zeros = task
    count = sum(latent.numel() for latent in latents.values())
    assume(any(keeps(mask, latents, floor) for mask in patterns(count, zeros)))
    trits = flat(exact_trits(latents, softs, thresholds, zeros, floor).trits)
    assert keeps(trits == 0, latents, floor)


@quick
@given(tasks(most_weights=24), floors)
# Five weights cannot keep seven channels, but they can keep both layers.
@example(
    (
        {"large": torch.arange(10.0, 16.0).reshape(6, 1), "small": tensor([[0.1, 0.2, 0.3]])},
        {"large": torch.ones(6, 1), "small": torch.zeros(1, 3)},
        {"large": 0.0, "small": 0.0},
        4,
    ),
    Floor(1, 1),
)
def test_layer_floors_are_kept_where_the_channels_cannot_be(task, floor):
    latents, softs, thresholds, zeros = task
    count = sum(latent.numel() for latent in latents.values())
    assume(sum(min(floor.per_layer, latent.numel()) for latent in latents.values()) <= count - zeros)
    trits = flat(exact_trits(latents, softs, thresholds, zeros, floor).trits)
    assert keeps(trits == 0, latents, Floor(floor.per_layer, 0))


def test_a_budget_below_the_floors_goes_to_the_largest_and_the_dead_are_named():
    latents = {"a": tensor([[0.1, 0.2]]), "b": tensor([[3.0, 1.0]]), "c": tensor([[-2.0, 0.5]])}
    result = papers_step(latents, 4, Floor(per_layer=1))
    assert result.trits["b"].tolist() == [[1, 0]]
    assert result.trits["c"].tolist() == [[-1, 0]]
    assert dead(result) == ("a",)


# Odd borders and layouts


def test_an_infinite_border_lets_the_largest_weights_out():
    latents = {"a": tensor([[0.1, -3.0, 0.2], [2.5, 0.3, 0.4]])}
    result = exact_trits(latents, {"a": torch.zeros(2, 3)}, {"a": threshold_of_alpha(2.0)}, 4, NO_FLOOR)
    assert result.trits["a"].tolist() == [[0, -1, 0], [1, 0, 0]]
    assert result.adjusted == 2


def test_an_infinite_border_picks_the_largest_of_many():
    latent = torch.from_numpy(np.random.default_rng(0).permutation(500).astype(np.float32)).reshape(50, 10)
    result = exact_trits({"a": latent}, {"a": torch.zeros(50, 10)}, {"a": math.inf}, 490, NO_FLOOR)
    assert sorted(latent[result.trits["a"] != 0].tolist()) == list(range(490, 500))


def test_an_infinite_border_in_one_layer_does_not_disturb_the_others():
    latents = {"all": tensor([[5.0, 6.0]]), "some": tensor([[0.1, 0.9, 2.0]])}
    softs = {"all": torch.zeros(1, 2), "some": soft_weight(latents["some"], "decoupled", 1.0)}
    result = exact_trits(latents, softs, {"all": math.inf, "some": 1.0}, 3, NO_FLOOR)
    assert result.trits["all"].tolist() == [[0, 0]]  # infinitely far from their border
    assert result.trits["some"].tolist() == [[0, 1, 1]]


def test_memory_order_does_not_matter():
    latent = torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(1))
    expected = papers_step({"a": latent}, 200, Floor(2, 1)).trits["a"]
    got = papers_step({"a": latent.to(memory_format=torch.channels_last)}, 200, Floor(2, 1)).trits["a"]
    assert torch.equal(got, expected)


def test_double_precision_is_taken_as_well():
    result = papers_step({"a": torch.tensor([[0.1, 2.0]], dtype=torch.float64)}, 1)
    assert result.trits["a"].tolist() == [[0, 1]]


def test_the_latents_are_left_alone():
    latents = {"a": tensor([[0.1, 2.0, -0.3]])}
    papers_step(latents, 1, Floor(1, 1))
    assert torch.equal(latents["a"], tensor([[0.1, 2.0, -0.3]]))


def test_moved_fraction_is_over_all_weights():
    assert ExactTrits({"a": torch.zeros(2, 5), "b": torch.zeros(10)}, 5).adjusted_fraction == 0.25
    assert ExactTrits({}, 0).adjusted_fraction == 0.0


# Transposed convolutions


@pytest.mark.parametrize("groups", [1, 2])
def test_floors_of_a_transposed_convolution_are_of_its_outputs(groups):
    """(inputs, outputs of a group, kernel): of each output the largest stays, found here output by output."""
    torch.manual_seed(0)
    layer = nn.ConvTranspose1d(4, 6, 3, groups=groups, bias=False)
    latent = layer.weight.detach() * 0.01
    nothing_kept = {"up": torch.zeros_like(latent)}
    kept = exact_trits(
        {"up": latent}, nothing_kept, {"up": 0.5}, latent.numel() - 6, Floor(1, 1), {"up": groups}
    ).trits["up"]
    of_one = 6 // groups
    for output in range(6):
        group, place = divmod(output, of_one)
        inputs = slice(group * (4 // groups), (group + 1) * (4 // groups))
        feeding, magnitudes = kept[inputs, place], latent[inputs, place].abs()
        assert int((feeding != 0).sum()) == 1
        assert magnitudes[feeding != 0].item() == magnitudes.max().item()
