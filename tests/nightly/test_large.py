"""Networks at the limits: ten thousand classes, three hundred layers."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.support.command import sca_search

SHORT = ("--trials", "2", "--refits", "0", "--epochs", "1", "--dense-epochs", "1", "--threads", "1", "--name", "large")
NETWORKS = """
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x):
        return x + torch.relu(self.norm(self.linear(x)))


def deep(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), *(Residual() for _ in range(298)), nn.Linear(16, num_classes))


def wide(num_classes):
    first = (nn.Flatten(), nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU())
    return nn.Sequential(*first, nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, num_classes))
"""


def searched_and_exported(folder: Path, *arguments: str) -> dict:
    """The document of the verification."""
    done = sca_search(*arguments, *SHORT, cwd=folder, timeout=1500)
    assert done.returncode == 0, done.stderr
    assert set(pd.read_csv(folder / "runs" / "large" / "trials.csv")["state"]) == {"complete"}
    done = sca_search(
        "export", "runs/large", "--trust", "--out", "out", "--seconds", "2", "--json", cwd=folder, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["verification"]


@pytest.mark.timeout(2400)
def test_a_network_of_300_layers_is_searched_and_exported(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NETWORKS)
    assert searched_and_exported(tmp_path, "--model", "net.py:deep")["holds"]
    study = json.loads(sca_search("show", "runs/large", "--json", cwd=tmp_path).stdout)
    assert len(study["summary"]["chosen"]["layers"]) == 298


@pytest.mark.timeout(2400)
def test_ten_thousand_classes_are_searched_and_exported(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    labels = np.arange(20_000) % 10_000
    patterns = random.standard_normal((10_000, 32), dtype=np.float32)
    images = patterns[labels] + 0.1 * random.standard_normal((20_000, 32), dtype=np.float32)
    arrays = {"train_inputs": images, "train_targets": labels, "test_inputs": images, "test_targets": labels}
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "net.py").write_text(NETWORKS)
    assert searched_and_exported(tmp_path, "--data", "npz:data.npz", "--model", "net.py:wide")["holds"]
