"""Budgets: what is foretold, what trials are planned with, and whole studies that must stay within them."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sca_search.config.costs import TERNARY_SIZE
from sca_search.config.study import GoalSpec
from sca_search.export.packed.trit_code import encode_trits
from sca_search.runs.trials import trial_frame
from sca_search.study.budgets import Budgets, columns_of, packed_layer_bytes, size_limit, sparsity_limit
from sca_search.ternary.allocation import LayerShape, Limit
from tests.support.command import TINY, TINY_BUDGETS, Outcome, sca_search

TWO = (LayerShape("a", (100, 10)), LayerShape("b", (50, 60)))
# 1 ms of what is not ternary, 4 ms and 6 ms of the layers without zeros.
MILLISECONDS = Limit("latency", "ms", math.inf, 1.0, lambda name, density: {"a": 4.0, "b": 6.0}[name] * density)
BUDGETS = Budgets(TWO, {"latency_ms": MILLISECONDS, "ternary_bytes": size_limit(TWO, TERNARY_SIZE, 0.0)})


def seen(*trials: tuple[float, float, float]) -> pd.DataFrame:
    """Complete trials of (accuracy, foretold, measured) milliseconds."""
    return trial_frame(
        {
            "trial": number,
            "state": "complete",
            "sparsity": 0.5,
            "metric": accuracy,
            "predicted_latency_ms": foretold,
            "latency_ms": taken,
        }
        for number, (accuracy, foretold, taken) in enumerate(trials)
    )


@pytest.mark.e2e
@settings(deadline=None)  # a busy machine is no fault
@given(st.integers(0, 2**32 - 1), st.integers(10, 20_000), st.floats(0.0, 1.0))
def test_packed_bytes_are_at_most_the_prediction_and_close_to_it(seed: int, weights: int, sparsity: float) -> None:
    random = np.random.default_rng(seed)
    trits = random.choice(np.array([-1, 1], np.int8), weights)
    trits[random.random(weights) < sparsity] = 0
    density = float((trits != 0).mean())
    taken, foretold = len(encode_trits(trits)), packed_layer_bytes(weights, density)
    assert taken <= foretold * 1.01 + 8
    if density <= 2 / 3:
        assert taken >= foretold * 0.97 - 24


@given(st.floats(0, 1), st.floats(0, 1))
def test_packed_bytes_grow_with_the_density(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert packed_layer_bytes(1000, low) <= packed_layer_bytes(1000, high)


def test_packed_bytes_worked_out_by_hand() -> None:
    # At a half: one bit for where the non-zeros are, half a bit for signs; of 8,000 weights 1,500 bytes, a 128th more
    # for the code, and 16 bytes.
    assert packed_layer_bytes(8000, 0.5) == pytest.approx(1500 * (1 + 1 / 128) + 16)


def test_prediction_is_the_sum_over_layers() -> None:
    predicted = BUDGETS.predicted({"a": 0.5, "b": 0.9})
    assert predicted["predicted_latency_ms"] == pytest.approx(1 + 2 + 0.6)
    assert predicted["predicted_ternary_bytes"] == pytest.approx(
        packed_layer_bytes(1000, 0.5) + packed_layer_bytes(3000, 0.1)
    )


def test_limits_are_slightly_below_the_budget_and_corrected_by_measurements() -> None:
    goal = GoalSpec(max_latency_ms=5.0)
    assert [limit.most for limit in BUDGETS.limits(goal, seen())] == pytest.approx([4.9])
    # Measured / predicted is 1.2, 1.1 and 1.5: the median is 1.2.
    wrong = seen((0.9, 5.0, 6.0), (0.9, 5.0, 5.5), (0.9, 4.0, 6.0))
    assert [limit.most for limit in BUDGETS.limits(goal, wrong)] == pytest.approx([4.9 / 1.2])
    # Never below what is possible: floors are 0.004 ms and 0.002 ms.
    tight = BUDGETS.limits(GoalSpec(max_latency_ms=1.007), seen())
    assert [limit.most for limit in tight] == pytest.approx([1.006])


def test_sparsity_is_a_limit_among_others() -> None:
    limits = BUDGETS.limits(GoalSpec(max_latency_ms=5.0, target_sparsity=0.9), seen())
    assert [limit.most for limit in limits] == pytest.approx([4.9, 400.0])
    assert sparsity_limit(TWO, 0.9).amount({"a": 0.1, "b": 0.1}) == pytest.approx(400.0)


def test_fastest_is_planned_between_passed_and_failed() -> None:
    goal = GoalSpec(min_accuracy=0.95, prefer="fastest")
    (first,) = BUDGETS.limits(goal, seen())
    assert first.most == pytest.approx(math.sqrt(1.006 * 11.0))
    (then,) = BUDGETS.limits(goal, seen((0.96, 4.0, 4.0), (0.9, 2.0, 2.0)))
    assert then.most == pytest.approx(math.sqrt(2.0 * 4.0))
    # Measured times are 1.5 times the predicted ones; the limit applies to predictions.
    (slow,) = BUDGETS.limits(goal, seen((0.96, 4.0, 6.0), (0.9, 2.0, 3.0)))
    assert slow.most == pytest.approx(math.sqrt(3.0 * 6.0) / 1.5)


def test_sparsest_within_a_budget_is_planned_no_further_than_the_floors() -> None:
    # 200 of 4,000 weights must stay; a network that passed at 0.9 asks for 1 - √(0.1 · 0.002) = 0.986.
    layers = (LayerShape("a", (100, 10), 100), LayerShape("b", (50, 60), 100))
    budgets = Budgets(layers, {"latency_ms": MILLISECONDS})
    passed = trial_frame([{"trial": 0, "state": "complete", "sparsity": 0.9, "metric": 0.99}])
    _, sparsity = budgets.limits(GoalSpec(min_accuracy=0.95, max_latency_ms=9.0), passed)
    assert sparsity.most == pytest.approx(200.0)


def test_budgets_that_hold_without_zeros_are_listed() -> None:
    assert BUDGETS.met_without_zeros(GoalSpec(max_latency_ms=11.5)) == ("latency",)
    assert BUDGETS.met_without_zeros(GoalSpec(max_latency_ms=10.5)) == ()


@pytest.mark.parametrize(
    ("goal", "columns"),
    [
        (GoalSpec(target_sparsity=0.5), set()),
        (GoalSpec(min_accuracy=0.9), set()),
        (GoalSpec(max_latency_ms=1.0), {"latency_ms"}),
        (GoalSpec(max_ternary_kb=1.0, max_kb=2.0), {"ternary_bytes", "file_bytes"}),
        (GoalSpec(min_accuracy=0.9, prefer="fastest", max_kb=1.0), {"latency_ms", "file_bytes"}),
    ],
)
def test_only_costs_of_the_goal_are_measured(goal: GoalSpec, columns: set[str]) -> None:
    assert columns_of(goal) == columns


@pytest.mark.e2e
def test_study_stays_within_its_bytes(
    tiny_budget_run: tuple[Path, str], run: Callable[..., Outcome], tmp_path: Path
) -> None:
    study, _ = tiny_budget_run
    summary = json.loads((study / "summary.json").read_text())
    chosen = summary["chosen"]
    assert chosen["ternary_bytes"] <= 1024
    assert chosen["file_bytes"] <= 11.4 * 1024
    trials = pd.read_csv(study / "trials.csv")
    assert trials["predicted_ternary_bytes"].iloc[0] <= 1024 * 1.0001  # later trials use the measured ratio
    used = np.maximum(trials["ternary_bytes"] / 1024, trials["file_bytes"] / (11.4 * 1024))
    assert used.between(0.95, 1.02).all()
    # Counted again on an export's own files.
    exported = run("export", str(study), "--format", "packed", "--out", "model")
    assert exported.returncode == 0, exported.stderr
    (file,) = (tmp_path / "model").glob("*.safetensors")
    assert file.stat().st_size <= 11.4 * 1024


@pytest.mark.e2e
def test_study_that_was_stopped_keeps_the_splits_of_its_candidates(
    tiny_budget_run: tuple[Path, str], run: Callable[..., Outcome], tmp_path: Path
) -> None:
    shutil.copytree(tiny_budget_run[0], tmp_path / "runs" / "small")
    before = pd.read_csv(tmp_path / "runs/small/trials.csv")
    done = run(*TINY, *TINY_BUDGETS, "--trials", "4", "--resume")
    assert done.returncode == 0, done.stderr
    after = pd.read_csv(tmp_path / "runs/small/trials.csv")
    assert len(after) == 4
    assert after["planned_sparsity"].head(len(before)).tolist() == before["planned_sparsity"].tolist()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--max-kb", "0"], "--max-kb must be above 0.0, got 0.0"),
        (["--max-latency-ms", "-1"], "--max-latency-ms must be above 0.0, got -1.0"),
        (
            ["--max-ternary-kb", "0.01"],
            "a ternary size of 10.24 bytes cannot be met: with every ternary layer at",
        ),
        (["--max-kb", "2"], "a file size of 2048 bytes cannot be met: with every ternary layer at"),
        (["--max-kb", "1", "--front"], "must not have both front, which has no limit, and max_kb"),
        (["--prefer", "fastest"], "must name min_accuracy where it has prefer"),
    ],
)
def test_impossible_budget_is_rejected_before_anything_is_written(
    run: Callable[..., Outcome], tmp_path: Path, flags: list[str], said: str
) -> None:
    done = run(*TINY, *flags)
    assert done.returncode == 2, done.stdout
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()


@pytest.mark.e2e
def test_budget_that_needs_no_zeros_says_so(run: Callable[..., Outcome]) -> None:
    short = ("--trials", "1", "--refits", "0", "--epochs", "1", "--dense-epochs", "1")
    done = run(*short, "--max-ternary-kb", "9", "--no-grid", "--name", "roomy")
    assert done.returncode == 0, done.stderr
    assert "Even without zeros the network meets its budget: ternary size." in done.stdout


@pytest.fixture(scope="module")
def latencies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibration of the embedded default's network."""
    folder = tmp_path_factory.mktemp("latency")
    done = sca_search("calibrate", "--seconds", "1", "--save", "table.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "table.json"


def middle_ms(table: Path) -> float:
    """Half-way between the fastest and the slowest variant that was timed."""
    variants = json.loads(table.read_text())["variants"]
    times = [variant["low_us"] for variant in variants]
    return (min(times) + max(times)) / 2000


@pytest.mark.e2e
def test_study_for_another_device_stays_within_its_milliseconds_by_the_table(latencies: Path, tmp_path: Path) -> None:
    budget = middle_ms(latencies)
    flags = (*TINY, "--max-latency-ms", f"{budget}", "--latency-table", str(latencies), "--no-grid", "--name", "device")
    done = sca_search(*flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs/device/summary.json").read_text())
    assert summary["chosen"]["latency_ms"] <= budget
    record = json.loads((tmp_path / "runs/device/candidates/000/candidate.json").read_text())
    layers = [layer["latency_ms"] for layer in record["layers"].values()]
    assert 0 < sum(layers) < record["latency_ms"]  # the rest is not ternary
    assert "latency_spread_ms" not in summary["chosen"]
    assert "predicted by the latency table" in " ".join(done.stdout.split())
    trials = pd.read_csv(tmp_path / "runs/device/trials.csv")
    # Trials use the budget up but for the margin of 2 %; counts are whole, and layers may drop to their floors.
    assert trials["latency_ms"].between(0.93 * budget, budget).all()
    assert trials["predicted_latency_ms"].to_numpy() == pytest.approx(trials["latency_ms"].to_numpy(), rel=0.02)


@pytest.mark.nightly
def test_study_is_timed_where_the_budget_is_this_machines(latencies: Path, tmp_path: Path) -> None:
    budget = middle_ms(latencies)
    done = sca_search(*TINY, "--max-latency-ms", f"{budget}", "--name", "here", cwd=tmp_path)
    trials = pd.read_csv(tmp_path / "runs/here/trials.csv")
    assert (trials[["latency_ms", "latency_spread_ms", "predicted_latency_ms"]] > 0).all(axis=None)
    chosen = json.loads((tmp_path / "runs/here/summary.json").read_text())["chosen"]
    # A busy machine may leave nothing within the budget; then the command says so.
    assert done.returncode == (0 if chosen else 1), done.stderr
    assert chosen is None or chosen["latency_ms"] <= budget
    assert chosen is not None or "No trial meets the goal" in done.stderr


@pytest.mark.e2e
def test_table_of_another_network_is_refused_before_anything_is_written(
    latencies: Path, run: Callable[..., Outcome], tmp_path: Path
) -> None:
    flags = ("--max-latency-ms", "1", "--model", "lenet-medium", "--latency-table", str(latencies))
    done = run(*TINY, *flags)
    assert done.returncode == 2
    assert "the latency table must be of this study's network" in " ".join(done.stderr.split())
    assert not (tmp_path / "runs").exists()


def test_without_a_compiler_a_budget_of_milliseconds_is_refused(
    run: Callable[..., Outcome], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("sca_search.export.c.compiler.zig_compiler", lambda: None)
    done = run(*TINY, "--max-latency-ms", "1")
    assert done.returncode == 2
    assert "[cross]" in done.stderr
    assert not (tmp_path / "runs").exists()
