"""A candidate's record, as it may have been sent."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from sca_search.errors import RunError
from sca_search.runs.candidates import read_history, records_of
from sca_search.runs.folder import RunFolder

GOOD: dict[str, Any] = {"metric": 0.5, "loss": 0.1, "layers": {"conv2": {"zeros": 1, "weights": 2}}}


def run_with(folder: Path, record: dict[str, Any]) -> RunFolder:
    run = RunFolder(folder)
    run.candidate(0).mkdir(parents=True)
    (run.candidate(0) / "candidate.json").write_text(json.dumps(record))
    return run


@pytest.mark.parametrize("metric", [True, "0.5", None, [], math.nan, math.inf, -math.inf, 10**309, -(10**309)], ids=str)
def test_metric_that_is_not_a_finite_number_is_rejected(tmp_path: Path, metric: object) -> None:
    with pytest.raises(RunError, match=r"candidate\.json cannot be read: metric must be a finite number"):
        records_of(run_with(tmp_path, GOOD | {"metric": metric}), 0)


@pytest.mark.parametrize("loss", [False, "0.1", math.nan, 10**309], ids=str)
def test_loss_that_is_not_a_number_is_rejected(tmp_path: Path, loss: object) -> None:
    with pytest.raises(RunError, match=r"candidate\.json cannot be read: loss must be a finite number"):
        records_of(run_with(tmp_path, GOOD | {"loss": loss}), 0)


def test_a_record_without_a_loss_is_after_all_that_have_one(tmp_path: Path) -> None:
    record = {name: value for name, value in GOOD.items() if name != "loss"}
    (read,) = records_of(run_with(tmp_path, record), 0)
    assert read["loss"] == math.inf


def test_a_history_is_read_without_missing_values(tmp_path: Path) -> None:
    (tmp_path / "history.csv").write_text("phase,epoch,soft_fraction\nternary,1,0.5\nfrozen,1,\n")
    assert read_history(tmp_path) == [
        {"phase": "ternary", "epoch": 1.0, "soft_fraction": 0.5},
        {"phase": "frozen", "epoch": 1.0},
    ]


@pytest.mark.parametrize("line", ["ternary,one,0.5", "ternary,1"], ids=["word", "short"])
def test_a_history_with_a_damaged_line_is_rejected(tmp_path: Path, line: str) -> None:
    (tmp_path / "history.csv").write_text(f"phase,epoch,soft_fraction\n{line}\n")
    with pytest.raises(RunError, match=r"history\.csv cannot be read"):
        read_history(tmp_path)
