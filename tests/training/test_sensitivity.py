"""Sensitivity: trits of one layer by hand, and what rounding one layer costs."""

import math
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch

from sca_search.config.load import resolve
from sca_search.study.setup import make_task
from sca_search.ternary.allocation import LayerCost
from sca_search.ternary.exact import Floor
from sca_search.training.sensitivity import COARSE_GRID, GRID, measure_sensitivity, scaled_trits
from sca_search.training.task import Task, WarmStart
from sca_search.training.train import train_dense


@pytest.fixture(scope="module")
def task() -> Task:
    return make_task(resolve(None, {}))


@pytest.fixture(scope="module")
def start(task: Task) -> WarmStart:
    return train_dense(task, epochs=4, learning_rate=0.01, seed=0)


@pytest.fixture(scope="module")
def measured(task: Task, start: WarmStart) -> list[LayerCost]:
    return measure_sensitivity(task, start)


def test_scaled_trits_by_hand() -> None:
    weight = torch.tensor([[-4.0, 1.0, 2.0, -0.5]])
    # Half of them zero: 1 and 0.5 go; the mean magnitude of -4 and 2 is 3.
    assert scaled_trits(weight, 0.5).tolist() == [[-3.0, 0.0, 3.0, 0.0]]
    assert scaled_trits(weight, 0.0).tolist() == [[-1.875, 1.875, 1.875, -1.875]]
    assert not scaled_trits(torch.zeros(2, 2), 0.5).any()


def test_every_ternary_layer_is_measured_at_every_sparsity_of_the_grid(measured: list[LayerCost]) -> None:
    assert [(cost.layer, cost.sparsity) for cost in measured] == [(n, s) for n in ("conv2", "fc1") for s in GRID]


def test_deep_networks_are_measured_with_fewer_images_and_sparsities(task: Task, start: WarmStart) -> None:
    """Two layers: 7 sparsities of 2 × 256 images each are 7,168 images per batch, 4 sparsities 4,096."""
    passes: list[int] = []
    told: list[tuple[int, int]] = []

    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = task.model_with(start.state)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            passes.append(len(images))
            answers: torch.Tensor = self.network(images)
            return answers

    def counting() -> torch.nn.Module:
        return Counting()

    renamed = {f"network.{name}": value for name, value in start.state.items()}
    layers = tuple(
        replace(choice, layer=replace(choice.layer, name=f"network.{choice.layer.name}")) for choice in task.choices
    )
    counted = replace(task, make_model=counting, choices=layers)
    costs = measure_sensitivity(counted, replace(start, state=renamed), 7000, lambda *far: told.append(far))
    assert [cost.sparsity for cost in costs if cost.layer == "network.fc1"] == list(COARSE_GRID)
    assert len(passes) == 2 * (1 + 2 * len(COARSE_GRID))  # statistics and loss, of the dense network and of each
    assert told == [(1, 2), (2, 2)]


def test_sparsities_beyond_a_layers_floor_are_not_measured(task: Task, start: WarmStart) -> None:
    """At least 8 of a channel's 400 weights of conv2 and of 128 of fc1 must stay: 0.98 and 0.9375 are possible."""
    floored = replace(task, floor=Floor(per_layer=1, per_channel=8))
    costs = measure_sensitivity(floored, start)
    assert [cost.sparsity for cost in costs if cost.layer == "conv2"] == [s for s in GRID if s <= 0.98]
    assert [cost.sparsity for cost in costs if cost.layer == "fc1"] == [s for s in GRID if s <= 0.9375]


def test_digits_lose_more_the_sparser_a_layer_is(measured: list[LayerCost]) -> None:
    for layer in ("conv2", "fc1"):
        loss = {cost.sparsity: cost.loss for cost in measured if cost.layer == layer}
        assert loss[0.5] < loss[0.95] < loss[0.99]


def test_cost_is_the_difference_to_the_dense_network(task: Task, start: WarmStart, measured: list[LayerCost]) -> None:
    """One layer's trits put in by numpy, both networks in evaluation mode after a pass over the training split."""
    (cost,) = [each for each in measured if (each.layer, each.sparsity) == ("fc1", 0.9)]
    dense = start.state["fc1.weight"].numpy()
    border = np.sort(np.abs(dense).ravel())[math.floor(0.9 * dense.size + 0.5) - 1]
    kept = np.abs(dense) > border
    trits = np.where(kept, np.sign(dense) * np.abs(dense[kept]).mean(), 0).astype(np.float32)
    figures = []
    for state in (start.state, start.state | {"fc1.weight": torch.from_numpy(trits)}):
        model = task.model_with(state)
        for module in model.modules():
            if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                module.momentum = None  # a mean over all batches
                module.reset_running_stats()
        with torch.no_grad():
            for images, _ in islice(task.data.train.batches(256, seed=0), 8):
                model.train()(images)
            logits = model.eval()(task.data.val.images).double().numpy()
        labels = task.data.val.labels.numpy()
        losses = np.log(np.exp(logits).sum(1)) - logits[np.arange(len(labels)), labels]
        figures.append((losses.mean(), (logits.argmax(1) == labels).mean()))
    (dense_loss, dense_accuracy), (loss, accuracy) = figures
    assert cost.loss == pytest.approx(loss - dense_loss, abs=1e-4)
    assert cost.accuracy == pytest.approx(dense_accuracy - accuracy, abs=1e-6)


def test_measuring_leaves_the_start_alone(task: Task, start: WarmStart) -> None:
    before = {name: value.clone() for name, value in start.state.items()}
    measure_sensitivity(task, start)
    assert all(torch.equal(start.state[name], before[name]) for name in before)
