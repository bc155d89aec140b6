"""Splits: the sum is met by construction, floors and full layers are kept, and the transform goes both ways."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sca_search.allocation import (
    LayerShape,
    erdos_renyi_weighting,
    split_of_weighting,
    uniform_weighting,
    weighting_of_split,
)
from sca_search.errors import SpecError

LENET = [LayerShape("conv2", (64, 32, 5, 5)), LayerShape("fc1", (512, 3136))]


def overall(layers: list[LayerShape], split: dict[str, float]) -> float:
    zeros = sum(layer.weights * split[layer.name] for layer in layers)
    return zeros / sum(layer.weights for layer in layers)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[LayerShape], dict[str, float], float]:
    shapes = draw(st.lists(st.tuples(st.integers(1, 300), st.integers(1, 300)), min_size=1, max_size=8))
    floors = [draw(st.integers(0, min(5, math.prod(shape)))) for shape in shapes]
    layers = [LayerShape(f"l{i}", shape, floor) for i, (shape, floor) in enumerate(zip(shapes, floors, strict=True))]
    weighting = {layer.name: draw(st.floats(-8, 8)) for layer in layers}
    most = 1 - sum(floors) / sum(layer.weights for layer in layers)
    return layers, weighting, draw(st.floats(0, 1)) * most


@given(problems())
def test_split_meets_the_overall_sparsity_and_every_floor(problem) -> None:
    layers, weighting, sparsity = problem
    split = split_of_weighting(layers, weighting, sparsity)
    assert overall(layers, split) == pytest.approx(sparsity, abs=1e-9)
    for layer in layers:
        assert -1e-12 <= split[layer.name] <= 1
        assert (1 - split[layer.name]) * layer.weights >= layer.least_nonzeros - 1e-6


@given(problems(), st.floats(-3, 3))
def test_a_constant_added_to_the_weighting_changes_nothing(problem, shift: float) -> None:
    layers, weighting, sparsity = problem
    moved = {name: value + shift for name, value in weighting.items()}
    first, second = (split_of_weighting(layers, each, sparsity) for each in (weighting, moved))
    assert all(first[name] == pytest.approx(second[name], abs=1e-9) for name in first)


@given(problems())
def test_every_split_comes_from_its_weighting(problem) -> None:
    layers, weighting, sparsity = problem
    split = split_of_weighting(layers, weighting, sparsity)
    again = split_of_weighting(layers, weighting_of_split(layers, split), sparsity)
    assert all(again[name] == pytest.approx(split[name], abs=1e-7) for name in split)


@given(problems())
def test_a_denser_weighting_gives_a_layer_no_more_zeros(problem) -> None:
    layers, weighting, sparsity = problem
    first = layers[0].name
    denser = weighting | {first: weighting[first] + 1}
    before, after = (split_of_weighting(layers, each, sparsity)[first] for each in (weighting, denser))
    assert after <= before + 1e-9


@given(st.floats(0, 0.999))
def test_uniform_weighting_gives_every_layer_the_same(sparsity: float) -> None:
    split = split_of_weighting(LENET, uniform_weighting(LENET), sparsity)
    assert all(value == pytest.approx(sparsity, abs=1e-9) for value in split.values())


def test_erdos_renyi_by_hand() -> None:
    # conv2: 106 / 51,200 = 0.0020703; fc1: 3,648 / 1,605,632 = 0.0022720. Densities in that proportion;
    # 0.1 * 1,656,832 = 165,683.2 non-zeros = c (51,200 * 0.0020703 + 1,605,632 * 0.0022720) = c (106 + 3648).
    factor = 165_683.2 / 3754
    split = split_of_weighting(LENET, erdos_renyi_weighting(LENET), 0.9)
    assert split["conv2"] == pytest.approx(1 - factor * 106 / 51_200)
    assert split["fc1"] == pytest.approx(1 - factor * 3648 / 1_605_632)


def test_a_layer_that_is_full_leaves_its_share_to_the_others() -> None:
    # 10 + 90 weights, half of them kept: the first wants all of its 10, so the second keeps 40 of 90.
    layers = [LayerShape("small", (10, 1)), LayerShape("large", (90, 1))]
    split = split_of_weighting(layers, {"small": 5.0, "large": 0.0}, 0.5)
    assert split["small"] == pytest.approx(0.0)
    assert split["large"] == pytest.approx(5 / 9)


def test_a_sparsity_beyond_the_floors_is_refused_with_the_highest_possible() -> None:
    layers = [LayerShape("a", (10, 10), 10), LayerShape("b", (10, 10), 10)]
    with pytest.raises(SpecError, match=r"the highest possible is 0\.90000"):
        split_of_weighting(layers, uniform_weighting(layers), 0.95)
