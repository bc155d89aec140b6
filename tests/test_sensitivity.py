"""Sensitivity: trits of one layer by hand, and the split that loses least."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sca_search.allocation import LayerShape, split_of_weighting
from sca_search.sensitivity import LayerCost, measure_sensitivity, scaled_trits, sparing_weighting
from sca_search.spec import resolve
from sca_search.task import Progress
from sca_search.train import train_dense
from sca_search.workshop import make_task

LAYERS = [LayerShape("a", (10, 10)), LayerShape("b", (10, 10))]


def costs(losses: dict[str, list[float]], grid: tuple[float, ...] = (0.0, 0.5, 0.99)) -> list[LayerCost]:
    return [
        LayerCost(name, s, loss, 0.0) for name, values in losses.items() for s, loss in zip(grid, values, strict=True)
    ]


def test_scaled_trits_by_hand() -> None:
    weight = torch.tensor([[-4.0, 1.0, 2.0, -0.5]])
    # Half of them zero: 1 and 0.5 go; the mean magnitude of -4 and 2 is 3.
    assert scaled_trits(weight, 0.5).tolist() == [[-3.0, 0.0, 3.0, 0.0]]
    assert scaled_trits(weight, 0.0).tolist() == [[-1.875, 1.875, 1.875, -1.875]]
    assert not scaled_trits(torch.zeros(2, 2), 0.5).any()


@pytest.mark.parametrize(
    ("sparsity", "expected"),
    [
        # a's first 50 zeros are free; then b's cost 5/50 = 0.1 each, a's next 10/49 = 0.20, b's next 15/49 = 0.31.
        (0.25, {"a": 0.5, "b": 0.0}),
        (0.5, {"a": 0.5, "b": 0.5}),
        (0.6, {"a": 0.7, "b": 0.5}),
        (0.9, {"a": 0.99, "b": 0.81}),
    ],
)
def test_zeros_go_where_they_cost_least(sparsity: float, expected: dict[str, float]) -> None:
    known = costs({"a": [0, 0, 10], "b": [0, 5, 20]})
    split = split_of_weighting(LAYERS, sparing_weighting(known, LAYERS, sparsity), sparsity)
    assert split == pytest.approx(expected, abs=1e-6)


def test_a_layer_whose_loss_falls_at_first_gets_zeros_first() -> None:
    # All trits and no zeros cost b more than half zeros do.
    known = costs({"a": [0, 1, 10], "b": [5, 1, 20]})
    split = split_of_weighting(LAYERS, sparing_weighting(known, LAYERS, 0.25), 0.25)
    assert split == pytest.approx({"a": 0.0, "b": 0.5}, abs=1e-6)


@given(
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
    st.floats(0.05, 0.95),
)
def test_no_other_split_loses_less_by_convex_costs(first: list[float], second: list[float], sparsity: float) -> None:
    """Against every split on a fine grid, for losses whose slopes rise."""
    grid = (0.0, 0.3, 0.6, 0.99)
    losses = {name: [0.0, *itertools.accumulate(sorted(steps))] for name, steps in (("a", first), ("b", second))}
    # Equal lengths of the stretches make rising steps rising slopes; the last is longer, so give it more.
    losses = {name: [*values[:3], values[3] + 1.0] for name, values in losses.items()}
    split = split_of_weighting(LAYERS, sparing_weighting(costs(losses, grid), LAYERS, sparsity), sparsity)

    def lost(a: float) -> float:
        return float(np.interp(a, grid, losses["a"]) + np.interp(2 * sparsity - a, grid, losses["b"]))

    possible = [a for a in np.linspace(0, 0.99, 100) if 0 <= 2 * sparsity - a <= 0.99]
    assert lost(split["a"]) <= min(map(lost, possible)) + 1e-6


def test_digits_lose_more_the_sparser_a_layer_is() -> None:
    task = make_task(resolve(None, {}))
    start = train_dense(task, epochs=4, learning_rate=0.01, seed=0, progress=Progress())
    measured = measure_sensitivity(task, start)
    assert {cost.layer for cost in measured} == {"conv2", "fc1"}
    for layer in ("conv2", "fc1"):
        loss = {round(cost.sparsity, 2): cost.loss for cost in measured if cost.layer == layer}
        assert loss[0.5] < loss[0.95] < loss[0.99]
