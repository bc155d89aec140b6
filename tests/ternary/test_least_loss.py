"""Splits within limits: every limit holds, the tightest is used up; the solver's allocation against all others."""

import itertools
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
    Limit,
    allocate,
    allocate_within,
    check_limits,
    least_loss_weighting,
    least_loss_within,
    limits_met_without_zeros,
    total_sparsity,
    weighting_of,
)

TWO = [LayerShape("a", (100, 10)), LayerShape("b", (50, 60))]


def linear(most: float, fixed: float = 0.0, **slopes: float) -> Limit:
    """So much of each layer without zeros, in proportion to its density."""
    return Limit("latency", "ms", most, fixed, lambda name, density: slopes[name] * density)


def densities(allocation: dict[str, float]) -> dict[str, float]:
    return {name: 1.0 - sparsity for name, sparsity in allocation.items()}


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[LayerShape], dict[str, float], list[Limit]]:
    sizes = draw(st.lists(st.integers(20, 3000), min_size=1, max_size=6))
    layers = [LayerShape(f"l{i}", (size, 1), draw(st.integers(0, 5))) for i, size in enumerate(sizes)]
    weighting = {layer.name: draw(st.floats(-4, 4)) for layer in layers}
    limits = []
    for _ in range(draw(st.integers(1, 3))):
        slopes = {layer.name: draw(st.floats(0.01, 10)) for layer in layers}
        powers = {layer.name: draw(st.floats(0.3, 2)) for layer in layers}
        limit = Limit("size", "KB", 0.0, draw(st.floats(0, 5)), lambda n, d, s=slopes, p=powers: s[n] * d ** p[n])
        least = limit.amount({layer.name: layer.least_density for layer in layers})
        most = limit.amount({layer.name: 1.0 for layer in layers})
        share = draw(st.floats(0.001, 1.2))
        limits.append(Limit("size", "KB", least + share * (most - least), limit.fixed, limit.of_layer))
    return layers, weighting, limits


@given(problems())
def test_limits_hold_and_the_tightest_is_used_up(problem) -> None:
    layers, weighting, limits = problem
    allocation = allocate_within(layers, weighting, limits)
    kept = densities(allocation)
    # A density is read back from 1 - sparsity, which costs the small ones some digits.
    assert all(limit.amount(kept) <= limit.most * (1 + 1e-6) for limit in limits)
    for layer in layers:
        assert layer.least_density - 1e-12 <= kept[layer.name] <= 1.0
    used = max(limit.amount(kept) / limit.most for limit in limits)
    assert used == pytest.approx(1.0, rel=1e-6) or all(density == 1.0 for density in kept.values())


@given(problems())
def test_split_within_limits_is_that_of_its_sparsity(problem) -> None:
    # A trial that goes on has its sparsity and weighting only.
    layers, weighting, limits = problem
    allocation = allocate_within(layers, weighting, limits)
    again = allocate(layers, weighting, total_sparsity(layers, allocation))
    assert all(again[name] == pytest.approx(allocation[name], abs=1e-6) for name in allocation)


def test_split_within_a_limit_worked_out_by_hand() -> None:
    # 4 ms and 6 ms without zeros at the same density: 2 + 10 d = 5 gives d = 0.3.
    allocation = allocate_within(TWO, {"a": 0.0, "b": 0.0}, [linear(5.0, fixed=2.0, a=4.0, b=6.0)])
    assert allocation == pytest.approx({"a": 0.7, "b": 0.7})
    # 3,000 of 4,000 weights lie in b.
    assert total_sparsity(TWO, {"a": 0.5, "b": 0.9}) == pytest.approx((500 + 2700) / 4000)


def test_limit_that_holds_without_zeros_is_told() -> None:
    wide, narrow = linear(11.0, a=4.0, b=6.0), linear(9.0, a=4.0, b=6.0)
    assert limits_met_without_zeros(TWO, [wide, narrow]) == [wide]
    assert allocate_within(TWO, {"a": 0.0, "b": 1.0}, [wide]) == {"a": 0.0, "b": 0.0}


def test_limit_that_nothing_meets_is_rejected_with_what_can_be_met() -> None:
    # Floors: one of 1,000 weights in a, one of 3,000 in b.
    limit = linear(1.5, fixed=2.0, a=4.0, b=6.0)
    with pytest.raises(SpecError) as refused:
        check_limits(TWO, [limit])
    assert str(refused.value) == (
        "a latency of 1.5 ms cannot be met: with every ternary layer at its floor it is 2.006 ms, without zeros 12; "
        "the largest parts are the dense layers with 2, then a 0.004, b 0.002"
    )


def costs(layer: str, *losses: float) -> list[LayerCost]:
    return [LayerCost(layer, sparsity, loss, 0.0) for sparsity, loss in zip((0.0, 0.5, 0.9, 0.99), losses, strict=True)]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.floats(0.0, 0.05), min_size=3, max_size=3),
    st.lists(st.floats(0.0, 0.05), min_size=3, max_size=3),
    st.floats(0.05, 0.9),
    st.floats(0.1, 10.0),
)
def test_solver_loses_no_more_than_the_best_of_all(
    first: list[float], second: list[float], share: float, ratio: float
) -> None:
    known = [*costs("a", 0.0, *np.cumsum(first)), *costs("b", 0.0, *np.cumsum(second))]
    limits = [
        linear((1 + ratio) * share, a=1.0, b=ratio),
        Limit("size", "KB", 2.5, 0.0, lambda _, density: 1.5 * math.sqrt(density)),
    ]
    kept = densities(least_loss_within(known, TWO, limits))
    assert all(limit.amount(kept) <= limit.most + 1e-9 for limit in limits)
    # All pairs of the densities that it may pick from; each pair's loss is what it says for a limit that only it meets.
    grids = {layer.name: np.geomspace(1.0, layer.least_density, 60) for layer in TWO}
    alone = {
        (name, density): _loss_of(known, name, density) for name, grid in grids.items() for density in grid.tolist()
    }
    best = min(
        alone["a", a] + alone["b", b]
        for a, b in itertools.product(grids["a"].tolist(), grids["b"].tolist())
        if all(limit.amount({"a": a, "b": b}) <= limit.most for limit in limits)
    )
    found = sum(_loss_of(known, name, density) for name, density in kept.items())
    assert found <= best + 1.1e-3 * abs(best) + 1e-9


def _loss_of(known: list[LayerCost], name: str, density: float) -> float:
    """Restated: a monotone cubic over -ln density through the measured losses, and 0.001 of evenness."""
    layer = next(each for each in TWO if each.name == name)
    share = layer.weights / 4000
    points = [(1.0 - cost.sparsity, cost.loss) for cost in known if cost.layer == name]
    while points[-1][0] > layer.least_density * 1.000001:
        lower = max(points[-1][0] / 2, layer.least_density)
        points.append((lower, points[-1][1] * points[-1][0] / lower))
    depth = [-math.log(at) for at, _ in points]
    loss = [value + 0.001 * share / at for at, value in points]
    return float(PchipInterpolator(depth, loss)(min(max(-math.log(density), depth[0]), depth[-1])))


def test_solver_spares_what_is_slow_to_lose_and_quick_to_run() -> None:
    # Both lose the same by zeros; b is ten times as slow, so b gets more of them.
    known = [*costs("a", 0.0, 0.01, 0.05, 0.2), *costs("b", 0.0, 0.01, 0.05, 0.2)]
    allocation = least_loss_within(known, TWO, [linear(3.0, a=1.0, b=10.0)])
    assert allocation["b"] > allocation["a"]
    # The same of a allocation at a sparsity only, through its weighting.
    again = allocate_within(TWO, weighting_of(TWO, allocation), [linear(3.0, a=1.0, b=10.0)])
    assert densities(again)["a"] >= densities(allocation)["a"] - 1e-9


def test_layers_without_a_floor_are_spared_too() -> None:
    layers = [LayerShape("a", (100, 10), 0), LayerShape("b", (50, 60), 0)]
    known = [*costs("a", 0.0, 0.01, 0.05, 0.2), *costs("b", 0.0, 0.0, 0.0, 0.0)]
    allocation = allocate(layers, least_loss_weighting(known, layers, 0.7), 0.7)
    assert allocation["a"] < 0.7 < allocation["b"]
    assert least_loss_within(known, layers, [linear(1.0, a=1.0, b=1.0)])["b"] > 0.5
