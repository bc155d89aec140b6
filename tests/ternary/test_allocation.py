"""Splits: the sum is met by construction, floors and full layers are kept, and the transform goes both ways."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import PchipInterpolator

from sca_search.errors import SpecError
from sca_search.ternary.allocation import (
    LayerCost,
    LayerShape,
    allocate,
    group_of,
    grouped,
    highest_sparsity,
    least_loss_weighting,
    uniform_weighting,
    weighting_of,
)

LENET = [LayerShape("conv2", (64, 32, 5, 5)), LayerShape("fc1", (512, 3136))]


def overall(layers: list[LayerShape], allocation: dict[str, float]) -> float:
    zeros = sum(layer.weights * allocation[layer.name] for layer in layers)
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
    allocation = allocate(layers, weighting, sparsity)
    assert overall(layers, allocation) == pytest.approx(sparsity, abs=1e-9)
    for layer in layers:
        assert -1e-12 <= allocation[layer.name] <= 1
        assert (1 - allocation[layer.name]) * layer.weights >= layer.least_nonzeros - 1e-6


@given(problems(), st.floats(-3, 3))
def test_a_constant_added_to_the_weighting_changes_nothing(problem, shift: float) -> None:
    layers, weighting, sparsity = problem
    moved = {name: value + shift for name, value in weighting.items()}
    first, second = (allocate(layers, each, sparsity) for each in (weighting, moved))
    assert all(first[name] == pytest.approx(second[name], abs=1e-9) for name in first)


@given(problems())
def test_every_split_comes_from_its_weighting(problem) -> None:
    layers, weighting, sparsity = problem
    allocation = allocate(layers, weighting, sparsity)
    again = allocate(layers, weighting_of(layers, allocation), sparsity)
    assert all(again[name] == pytest.approx(allocation[name], abs=1e-7) for name in allocation)


@given(problems())
def test_a_denser_weighting_gives_a_layer_no_more_zeros(problem) -> None:
    layers, weighting, sparsity = problem
    first = layers[0].name
    denser = weighting | {first: weighting[first] + 1}
    before, after = (allocate(layers, each, sparsity)[first] for each in (weighting, denser))
    assert after <= before + 1e-9


@given(st.floats(0, 0.999))
def test_uniform_weighting_gives_every_layer_the_same(sparsity: float) -> None:
    allocation = allocate(LENET, uniform_weighting(LENET), sparsity)
    assert all(value == pytest.approx(sparsity, abs=1e-9) for value in allocation.values())


def test_a_layer_that_is_full_leaves_its_fraction_to_the_others() -> None:
    # 10 + 90 weights, half of them kept: the first wants all of its 10, so the second keeps 40 of 90.
    layers = [LayerShape("small", (10, 1)), LayerShape("large", (90, 1))]
    allocation = allocate(layers, {"small": 5.0, "large": 0.0}, 0.5)
    assert allocation["small"] == pytest.approx(0.0)
    assert allocation["large"] == pytest.approx(5 / 9)


def test_a_sparsity_beyond_the_floors_is_rejected_with_the_highest_possible() -> None:
    layers = [LayerShape("a", (10, 10), 10), LayerShape("b", (10, 10), 10)]
    with pytest.raises(SpecError, match=r"the highest possible is 0\.90000"):
        allocate(layers, uniform_weighting(layers), 0.95)


# Groups


def test_a_layers_group_is_itself_its_stage_or_all() -> None:
    assert [group_of("stage1.0.conv1", kind) for kind in ("layer", "stage", "all")] == [
        "stage1.0.conv1",
        "stage1",
        "all",
    ]
    assert group_of("conv2", "stage") == "conv2"


def test_a_groups_weighting_is_the_mean_of_its_layers() -> None:
    groups = {"stage1.0": "stage1", "stage1.1": "stage1", "fc": "fc"}
    assert grouped({"stage1.0": 1.0, "fc": -3.0, "stage1.1": 2.0}, groups) == {"stage1": 1.5, "fc": -3.0}


# The allocation that loses least, by an independent brute force

GRID = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
# One of 110 weights must stay, and one of 420.
EQUAL = [LayerShape("a", (10, 11)), LayerShape("b", (10, 11))]
UNEQUAL = [LayerShape("a", (20, 21)), LayerShape("b", (10, 11))]
BEYOND = {110: [1 / 110], 420: [0.005, 0.0025, 1 / 420]}  # densities beyond those measured: halves, then the floor


def costs(grid: tuple[float, ...] = GRID, **losses: list[float]) -> list[LayerCost]:
    return [
        LayerCost(name, s, loss, 0.0) for name, values in losses.items() for s, loss in zip(grid, values, strict=True)
    ]


def minorant(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The corners of the largest convex function below a curve."""
    corners: list[tuple[float, float]] = []
    for point in zip(x, y, strict=True):
        while len(corners) > 1:
            (x0, y0), (x1, y1) = corners[-2:]
            if (y1 - y0) * (point[0] - x0) < (point[1] - y0) * (x1 - x0):
                break
            corners.pop()
        corners.append(point)
    return tuple(map(np.array, zip(*corners, strict=True)))


def lost_by(layer: LayerShape, losses: list[float], share: float) -> tuple[np.ndarray, np.ndarray]:
    """A layer's loss by its zeros: a monotone cubic in the logarithm of the density, and 0.001 · share / density.

    Beyond what was measured the loss grows as the non-zeros dwindle.
    """
    beyond = np.array(BEYOND[layer.weights])
    densities = np.concatenate([1 - np.array(GRID), beyond])
    grown = np.concatenate([losses, losses[-1] * 0.01 / beyond])
    cubic = PchipInterpolator(-np.log(densities), grown + 0.001 * share / densities)
    fine = np.geomspace(1, 1 / layer.weights, 3000)
    return minorant((1 - fine) * layer.weights, cubic(-np.log(fine)))


def regret(layers: list[LayerShape], losses: dict[str, list[float]], sparsity: float) -> tuple[float, float]:
    """How much more our allocation of two layers loses than the best of many, and what that one loses."""
    allocation = allocate(layers, least_loss_weighting(costs(**losses), layers, sparsity), sparsity)
    total = sum(layer.weights for layer in layers)
    curves = [lost_by(layer, losses[layer.name], layer.weights / total) for layer in layers]

    def lost(zeros: np.ndarray) -> np.ndarray:
        return np.interp(zeros, *curves[0]) + np.interp(sparsity * total - zeros, *curves[1])

    first, second = (layer.weights - 1 for layer in layers)
    possible = np.linspace(max(0.0, sparsity * total - second), min(first, sparsity * total), 4000)
    best = float(lost(possible).min())
    return float(lost(np.array(allocation["a"] * layers[0].weights))) - best, best


@pytest.mark.parametrize("layers", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("sparsity", [0.1, 0.5, 0.75, 0.9, 0.97])
@pytest.mark.parametrize(
    "losses",
    [
        {"a": [0, 0, 0.001, 0.01, 0.04, 0.1, 0.2], "b": [0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.24]},
        {"a": [0, 0, 0, 0, 0, 0, 0.2], "b": [0.05, 0.06, 0.07, 0.08, 0.09, 0.1, 0.11]},
        {"a": [0.1, 0.02, 0.01, 0.02, 0.05, 0.1, 0.2], "b": [0, 0, 0, 0, 0, 0, 0]},  # a falls at first
        {"a": [0, 0.2, 0.2, 0.2, 0.2, 0.2, 0.2], "b": [0, 0, 0, 0.2, 0.2, 0.2, 0.2]},  # neither is convex
    ],
    ids=["rising", "free", "falling", "steps"],
)
def test_no_other_split_loses_less(layers, sparsity: float, losses: dict[str, list[float]]) -> None:
    more, best = regret(layers, losses, sparsity)
    assert more <= 1e-4 + 0.01 * best  # as finely as zeros are handed out


rising_losses = st.lists(st.floats(0, 0.04), min_size=7, max_size=7).map(lambda steps: np.cumsum(steps).tolist())


@settings(max_examples=25, deadline=None, derandomize=True)
@given(rising_losses, rising_losses, st.floats(0.05, 0.97), st.sampled_from([EQUAL, UNEQUAL]))
def test_no_other_split_loses_less_by_any_rising_losses(a, b, sparsity: float, layers) -> None:
    more, best = regret(layers, {"a": a, "b": b}, sparsity)
    assert more <= 1e-4 + 0.01 * best  # as finely as zeros are handed out


@pytest.mark.parametrize("sparsity", [0.2, 0.5, 0.9, 0.97])
@pytest.mark.parametrize("layers", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
def test_where_nothing_is_lost_the_even_split_comes_out(layers, sparsity: float) -> None:
    free = costs(a=[0.0] * 7, b=[0.0] * 7)
    allocation = allocate(layers, least_loss_weighting(free, layers, sparsity), sparsity)
    # To a hundredth of the way from full to the floor, in logarithms: 0.046.
    assert math.log((1 - allocation["a"]) / (1 - allocation["b"])) == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("sparsity", [0.2, 0.5, 0.9, 0.97])
def test_layers_that_lose_alike_are_split_evenly(sparsity: float) -> None:
    alike = [0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.24]
    allocation = allocate(EQUAL, least_loss_weighting(costs(a=alike, b=alike), EQUAL, sparsity), sparsity)
    assert math.log((1 - allocation["a"]) / (1 - allocation["b"])) == pytest.approx(0, abs=0.05)


@given(st.floats(0.05, 0.97))
def test_the_more_sensitive_layer_stays_denser(sparsity: float) -> None:
    known = costs(a=[0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.24], b=[0, 0.001, 0.003, 0.006, 0.01, 0.015, 0.024])
    allocation = allocate(EQUAL, least_loss_weighting(known, EQUAL, sparsity), sparsity)
    assert allocation["a"] < allocation["b"]


def test_a_loss_that_stops_at_chance_does_not_make_a_layer_free() -> None:
    """From 0.9 on both answer by chance; a is broken there, b breaks only then: a must not get the zeros."""
    known = costs(a=[0, 0.5, 1.5, 2.3, 2.3, 2.3, 2.3], b=[0, 0.0, 0.0, 0.01, 0.1, 1.5, 2.3])
    for sparsity in (0.5, 0.8, 0.9):
        allocation = allocate(EQUAL, least_loss_weighting(known, EQUAL, sparsity), sparsity)
        assert allocation["a"] < sparsity < allocation["b"]


def test_zeros_go_beyond_what_was_measured_down_to_the_floors() -> None:
    """5,000 weights with a floor of one: measured to 0.99, asked for 0.999."""
    layers = [LayerShape("a", (50, 100)), LayerShape("b", (50, 100))]
    alike = [0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.24]
    allocation = allocate(layers, least_loss_weighting(costs(a=alike, b=alike), layers, 0.999), 0.999)
    assert overall(layers, allocation) == pytest.approx(0.999, abs=1e-9)
    assert math.log((1 - allocation["a"]) / (1 - allocation["b"])) == pytest.approx(0, abs=0.1)


def test_a_layer_too_small_to_be_measured_far_keeps_its_floor() -> None:
    """Twenty weights of which ten must stay: measured at no zeros and at half."""
    layers = [LayerShape("a", (50, 100)), LayerShape("b", (4, 5), 10)]
    known = [*costs(a=[0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.24]), *costs((0.0, 0.5), b=[0.0, 0.0])]
    allocation = allocate(layers, least_loss_weighting(known, layers, 0.95), 0.95)
    assert overall(layers, allocation) == pytest.approx(0.95, abs=1e-9)
    assert allocation["b"] <= 0.5 + 1e-9


@pytest.mark.parametrize("side", [10, 100])
def test_a_floor_that_meets_a_measured_density_makes_no_empty_stretch(side):
    """The floor is 0.01 or 0.0001: measured itself, or reached by halving."""
    layers = [LayerShape(name, (side, side)) for name in "ab"]
    grid = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98, 0.99)
    losses = (0.0, 0.01, 0.03, 0.06, 0.1, 0.15, 0.24)
    known = [LayerCost(name, sparsity, loss, 0.0) for name in "ab" for sparsity, loss in zip(grid, losses, strict=True)]
    weighting = least_loss_weighting(known, layers, 0.9)
    assert allocate(layers, weighting, 0.9) == pytest.approx({"a": 0.9, "b": 0.9}, abs=0.005)


def test_highest_sparsity_leaves_the_floors():
    layers = [LayerShape("a", (10, 10), 5), LayerShape("b", (2, 2), 9)]
    assert highest_sparsity(layers) == 1 - (5 + 4) / 104
