"""How weights are distributed over a training, and what is kept of it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sca_search.config.candidate import Form
from sca_search.ternary.methods.sca import weights_of
from sca_search.ternary.parametrize import latents, parametrize_layers, ternary_weights
from sca_search.training.task import BINS, MOST_SNAPSHOTS, Snapshot, is_recorded, snapshot


def network(form: Form) -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 50))
    parametrize_layers(model, {"0": 0.6, "1": 0.6}, form)
    for weight in ternary_weights(model).values():
        weight.set_alpha(0.5)
        weight.wdr_strength = 10.0
    return model


def counted(values: list[np.ndarray]) -> tuple[int, ...]:
    edges = np.linspace(-1.0, 1.0, BINS + 1)
    return tuple(int(count) for count in np.histogram(np.concatenate(values), edges)[0])


@pytest.mark.parametrize("form", ["paper", "decoupled", "straight-through"])
def test_snapshot_counts_all_weights_of_all_layers(form: Form) -> None:
    model = network(form)
    taken = snapshot(3, *weights_of(model), {"0": 0.5, "1": 0.5})
    thetas = [latent.detach().numpy().ravel().astype(np.float64) for latent in latents(model).values()]
    assert np.abs(np.subtract(taken.tanh, counted([np.tanh(theta) for theta in thetas]))).max() <= 1
    assert sum(taken.tanh) == sum(taken.soft) == 30 * 40 + 40 * 50
    assert taken.alphas == {"0": 0.5, "1": 0.5}
    border = math.atanh(math.sqrt(0.25))
    zeros = sum(int((np.abs(theta) < border).sum()) for theta in thetas)
    if form == "paper":
        assert taken.soft == taken.tanh
    if form == "straight-through":
        middle = BINS // 2
        assert {index for index, count in enumerate(taken.soft) if count} == {0, middle, BINS - 1}
        assert taken.soft[middle] == zeros
    if form == "decoupled":
        assert taken.soft[0] + taken.soft[BINS // 2] + taken.soft[-1] > 0.9 * 3200


@pytest.mark.parametrize("epochs", [1, 2, MOST_SNAPSHOTS, MOST_SNAPSHOTS + 1, 400])
def test_few_epochs_are_kept_however_many_there_are(epochs: int) -> None:
    kept = [epoch for epoch in range(epochs + 1) if is_recorded(epoch, epochs)]
    assert len(kept) <= MOST_SNAPSHOTS + 2
    assert (kept[0], kept[-1]) == (0, epochs)


def test_snapshots_are_in_the_candidates_folder(tiny_run: tuple[Path, str]) -> None:
    folder = tiny_run[0] / "candidates" / "000"
    taken = [Snapshot.of(each) for each in json.loads((folder / "distribution.json").read_text())]
    assert [each.epoch for each in taken] == [0, 1, 2]
    assert {sum(each.tanh) for each in taken} == {20_992}  # lenet-small's ternary weights on 8×8 digits
    assert (folder / "distribution.json").stat().st_size < 20_000


def test_bytes_of_each_layer_are_those_that_an_export_packs(tiny_run: tuple[Path, str]) -> None:
    record = json.loads((tiny_run[0] / "candidates" / "000" / "candidate.json").read_text())
    layers = record["layers"].values()
    assert record["ternary_bytes"] == sum(layer["ternary_bytes"] for layer in layers)
    for layer in layers:
        share = layer["zeros"] / layer["weights"]
        entropy = -sum(part * math.log2(part) for part in (share, 1 - share) if part)
        bound = layer["weights"] * (entropy + 1 - share) / 8
        assert bound * 0.99 <= layer["ternary_bytes"] <= bound * 1.1 + 100
