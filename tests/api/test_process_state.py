"""A study inside another program leaves that program's state as it was."""

import logging
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
import torch
from torch import nn

import sca_search as sca
from sca_search.errors import CodeError
from sca_search.study.process_state import process_state_restored

TINY: dict[str, Any] = {
    "trials": 1, "epochs": 1, "dense_epochs": 1, "refits": 0, "threads": 2, "progress": False,
}  # fmt: skip


def state() -> dict[str, Any]:
    return {
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),  # type: ignore[index, union-attr]
        "random": random.getstate(),
        "threads": torch.get_num_threads(),
        "Optuna": optuna.logging.get_verbosity(),
        "Lightning": logging.getLogger("pytorch_lightning").level,
        "signals": [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)],
    }


@pytest.fixture(autouse=True)
def unusual_state() -> Iterator[dict[str, Any]]:
    """A state of the program that no study would set."""
    with process_state_restored():
        torch.manual_seed(11)
        np.random.seed(12)
        random.seed(13)
        optuna.logging.set_verbosity(optuna.logging.DEBUG)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda _number, _frame: None)
        before = state()
        yield before


class Failing(nn.Module):
    """Draws random numbers, and fails in its third training step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 16), nn.Linear(16, 10))
        self.steps = 0

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        random.random()
        np.random.random()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.steps += self.training and torch.is_grad_enabled()
        if self.steps == 3:
            raise ZeroDivisionError("third step")
        outputs: torch.Tensor = self.layers(nn.functional.dropout(images))
        return outputs


@pytest.mark.e2e
def test_a_finished_study_restores_the_programs_state(unusual_state: dict[str, Any], tmp_path: Path) -> None:
    result = sca.search(target_sparsity=0.5, out=tmp_path, **TINY)
    assert state() == unusual_state
    result.trial(0).model()
    assert state() == unusual_state


def test_a_study_that_ends_with_an_error_restores_the_programs_state(
    unusual_state: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(CodeError, match="third step"):
        sca.search(Failing, target_sparsity=0.5, out=tmp_path, **TINY)
    assert state() == unusual_state
