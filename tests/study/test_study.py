"""Whole studies, run by the real command."""

import json
import os
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
from datetime import datetime
from itertools import combinations
from pathlib import Path

import numpy as np
import optuna
import pandas as pd
import pytest

from sca_search.data import load_data
from sca_search.ternary.allocation import LayerCost, LayerShape, allocate, least_loss_weighting
from tests.support.command import TINY, sca_search

FIGURES = ["trial", "state", "planned_sparsity", "sparsity", "metric", "loss", "adjusted_fraction"]


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """A safetensors file by its published layout, without the library: length, JSON header, bytes."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    types = {"I8": np.int8, "F32": np.float32, "I64": np.int64}
    tensors = {}
    for name, about in header.items():
        if name != "__metadata__":
            first, last = about["data_offsets"]
            flat = np.frombuffer(raw[8 + length + first : 8 + length + last], types[about["dtype"]])
            tensors[name] = flat.reshape(about["shape"])
    return tensors


def counted_sparsity(path: Path) -> float:
    trits = [tensor for tensor in read_tensors(path).values() if tensor.dtype == np.int8]
    assert all(set(np.unique(tensor)) <= {-1, 0, 1} for tensor in trits)
    return sum(int((tensor == 0).sum()) for tensor in trits) / sum(tensor.size for tensor in trits)


def front_figures(run: Path) -> pd.DataFrame:
    return pd.read_csv(run / "trials.csv")[FIGURES]


def test_study_leaves_its_tables_summary_page_and_model(tiny_run: tuple[Path, str]) -> None:
    run, _ = tiny_run
    trials, front = pd.read_csv(run / "trials.csv"), pd.read_csv(run / "front.csv")
    summary = json.loads((run / "summary.json").read_text())
    assert list(trials["trial"]) == [0, 1, 2]
    searched = {f"param.{prefix}.{layer}" for prefix in ("strength", "rise", "density") for layer in ("conv2", "fc1")}
    assert searched | {"param.strength", "param.rise", "param.gradient"} <= set(trials.columns)
    assert set(front["trial"]) <= set(trials["trial"])
    assert summary["chosen"]["trial"] in set(trials["trial"])
    assert {"sparsity", "metric", "test_metric", "layers"} <= summary["chosen"].keys()
    page = (run / "dashboard.html").read_text()
    assert "Finished: 3 trials" in page
    assert "plotly.js v" in page
    assert not list(run.rglob(".*.safetensors"))


def test_trials_tell_their_worker_start_and_bytes(tiny_run: tuple[Path, str]) -> None:
    trials = pd.read_csv(tiny_run[0] / "trials.csv")
    assert list(trials["worker"]) == [1, 1, 1]
    starts = [datetime.fromisoformat(started).timestamp() for started in trials["started"]]
    ends = [start + seconds for start, seconds in zip(starts, trials["seconds"], strict=True)]
    assert all(start >= end - 0.002 for start, end in zip(starts[1:], ends[:-1], strict=True))  # one after the other
    assert 0 < time.time() - starts[0] < 3600
    records = [
        json.loads((tiny_run[0] / "candidates" / f"{number:03d}" / "candidate.json").read_text()) for number in range(3)
    ]
    assert list(trials["ternary_bytes"]) == [record["ternary_bytes"] for record in records]


def test_closed_form_is_written_for_the_warm_start(tiny_run: tuple[Path, str]) -> None:
    """α(s) = 2 tanh²(Q_s), Q_s half-way between the magnitudes on both sides of the s-quantile, restated in numpy."""
    told = json.loads((tiny_run[0] / "closed-form.json").read_text())
    weight = read_tensors(tiny_run[0] / "dense.safetensors")["fc1.weight"].astype(np.float64)
    magnitudes = np.sort(np.abs(weight).ravel()) * told["spread"] / np.sqrt((weight**2).mean())
    for sparsity, alpha in zip(told["sparsity"], told["alpha"]["fc1"], strict=True):
        zeros = int(np.floor(sparsity * magnitudes.size + 0.5))
        border = 0.0 if zeros == 0 else (magnitudes[zeros - 1] + magnitudes[zeros]) / 2
        assert alpha == pytest.approx(2 * np.tanh(border) ** 2, rel=1e-4, abs=1e-9)


def test_chosen_model_has_the_target_sparsity_counted_in_its_bytes(tiny_run: tuple[Path, str]) -> None:
    run, _ = tiny_run
    summary = json.loads((run / "summary.json").read_text())
    counted = counted_sparsity(run / "chosen.safetensors")
    assert counted == pytest.approx(0.5, abs=0.001)
    assert summary["chosen"]["sparsity"] == counted


def test_saved_trits_give_the_accuracy_that_the_study_claims(tiny_run: tuple[Path, str]) -> None:
    """An independent numpy forward pass of the file on the validation split."""
    run, _ = tiny_run
    summary = json.loads((run / "summary.json").read_text())
    val = load_data("digits", data_dir=None, seed=0).val
    logits = numpy_lenet(read_tensors(run / "chosen.safetensors"), val.images.numpy())
    accuracy = float((logits.argmax(1) == val.labels.numpy()).mean())
    assert accuracy == pytest.approx(summary["chosen"]["metric"], abs=1.5 / len(val))


def numpy_lenet(weights: dict[str, np.ndarray], images: np.ndarray) -> np.ndarray:
    def conv(x: np.ndarray, kernel: np.ndarray) -> np.ndarray:
        padded = np.pad(x, ((0, 0), (0, 0), (2, 2), (2, 2)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[2:], axis=(2, 3))
        return np.einsum("nchwij,ocij->nohw", windows, kernel, optimize=True)

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        shape = (1, -1) + (1,) * (x.ndim - 2)
        mean, var, gain, shift = (
            weights[f"{name}.{part}"].reshape(shape) for part in ("running_mean", "running_var", "weight", "bias")
        )
        return np.maximum((x - mean) / np.sqrt(var + 1e-5) * gain + shift, 0)

    def pool(x: np.ndarray) -> np.ndarray:
        n, c, h, w = x.shape
        return x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))

    x = pool(norm(conv(images, weights["conv1.weight"]), "bn1"))
    x = pool(norm(conv(x, weights["conv2.weight"].astype(np.float32)), "bn2"))
    x = norm(x.reshape(len(x), -1) @ weights["fc1.weight"].astype(np.float32).T, "bn3")
    return x @ weights["fc2.weight"].T + weights["fc2.bias"]


def test_screen_names_the_run_its_page_and_the_model(tiny_run: tuple[Path, str]) -> None:
    _, screen = tiny_run
    last = screen.strip().splitlines()[-4:]
    assert re.fullmatch(r"Run: +runs/tiny", last[0])
    assert re.fullmatch(r"Dashboard: +runs/tiny/dashboard.html", last[1])
    assert re.fullmatch(r"Model: +runs/tiny/chosen.safetensors", last[2])
    assert re.fullmatch(r"To use it: +sca-search export runs/tiny", last[3])
    assert "→ chosen" in screen


def test_study_is_an_ordinary_optuna_study(tiny_run: tuple[Path, str]) -> None:
    run, _ = tiny_run
    study = optuna.load_study(study_name="sca-search", storage=f"sqlite:///{run / 'study.db'}")
    assert [direction.name for direction in study.directions] == ["MAXIMIZE", "MAXIMIZE"]
    assert {trial.state.name for trial in study.trials} == {"COMPLETE"}
    assert {"spread", "rise", "strength", "rise.fc1", "density.fc1"} <= study.trials[0].params.keys()


def test_trials_tell_of_their_rungs(tiny_run: tuple[Path, str]) -> None:
    """Two epochs: half of them is a rung, a quarter is none."""
    trials = pd.read_csv(tiny_run[0] / "trials.csv")
    assert [name for name in trials.columns if name.startswith("rung.")] == ["rung.1"]
    assert (trials["rung.1"] > 0).all()
    summary = json.loads((tiny_run[0] / "summary.json").read_text())
    assert (summary["trials"], summary["failed"], summary["paused"]) == (3, 0, 0)
    assert summary["rungs"] == {}  # three are too few to say how well it foretold


def test_history_records_soft_rounded_and_gap_each_epoch(tiny_run: tuple[Path, str]) -> None:
    run, _ = tiny_run
    history = pd.read_csv(run / "candidates" / "000" / "history.csv")
    assert list(history["phase"]) == ["ternary"] * 2 + ["frozen"] * 5
    assert np.allclose(history["gap"], history["soft_metric"] - history["rounded_metric"])


@pytest.mark.e2e
def test_same_seed_gives_the_same_front_twice(tiny_run: tuple[Path, str], run, tmp_path: Path) -> None:
    done = run("--target-sparsity", "0.5", "--name", "again", *TINY)
    assert done.returncode == 0, done.stderr
    pd.testing.assert_frame_equal(front_figures(tmp_path / "runs" / "again"), front_figures(tiny_run[0]))


def test_show_prints_a_finished_study_without_torch(tiny_run: tuple[Path, str]) -> None:
    run, _ = tiny_run
    code = (
        "import sys; from sca_search.cli.app import app; app(['show', sys.argv[1]], standalone_mode=False);"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(run)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "→ chosen" in done.stdout


@pytest.mark.e2e
def test_resume_adds_trials_and_keeps_the_finished_ones(run, tmp_path: Path) -> None:
    few = ("--target-sparsity", "0.5", "--name", "more", "--refits", "0", "--epochs", "1", "--dense-epochs", "2")
    assert run(*few, "--trials", "1").returncode == 0
    before = front_figures(tmp_path / "runs" / "more")
    again = run(*few, "--trials", "3", "--resume")
    assert again.returncode == 0, again.stderr
    assert "2 trials to run, 1 finished before" in again.stdout
    after = front_figures(tmp_path / "runs" / "more")
    pd.testing.assert_frame_equal(after[:1], before)
    assert len(after) == 3


MODEL_2 = "candidates/002/model.safetensors"
LOSSES = {
    "candidates/000/model.safetensors is missing": lambda run: shutil.rmtree(run / "candidates/000"),
    "candidates/001/candidate.json is missing": lambda run: (run / "candidates/001/candidate.json").unlink(),
    "candidates/002/model.safetensors is damaged": lambda run: os.truncate(run / MODEL_2, 999),
}


@pytest.mark.e2e
def test_resume_trains_again_what_was_lost_and_show_names_it(tiny_run: tuple[Path, str], run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_run[0], tmp_path / "runs" / "tiny"))
    before = {path: read_tensors(path / "model.safetensors") for path in sorted(copy.glob("candidates/*"))}
    table = pd.read_csv(copy / "trials.csv").set_index("candidate").sort_index()
    for lose in LOSSES.values():
        lose(copy)
    shown = run("show", "runs/tiny")
    assert shown.returncode == 0
    for trial, damage in enumerate(LOSSES):
        assert f"trial {trial}: runs/tiny/{damage}; --resume trains it again" in shown.stdout
    resumed = run("--target-sparsity", "0.5", "--name", "tiny", *TINY, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    for damage in LOSSES:
        assert f"runs/tiny/{damage}; the candidate is trained again" in " ".join(
            (resumed.stdout + resumed.stderr).split()
        )
    for folder, tensors in before.items():
        again = read_tensors(folder / "model.safetensors")
        assert all((again[name] == values).all() for name, values in tensors.items())
    after = pd.read_csv(copy / "trials.csv").set_index("candidate").sort_index()
    assert after.index.tolist() == [0, 1, 2]
    assert after["state"].tolist() == ["complete"] * 3
    assert after["metric"].tolist() == table["metric"].tolist()
    document = json.loads(run("show", "runs/tiny", "--json").stdout)
    assert document["damaged"] == {}


@pytest.mark.e2e
def test_resume_trains_a_refit_again_whose_model_was_cut_off(tiny_run: tuple[Path, str], run, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(tiny_run[0], tmp_path / "runs" / "tiny"))
    (model,) = copy.glob("candidates/*/refit-1/model.safetensors")
    before = read_tensors(model)
    os.truncate(model, model.stat().st_size - 1)
    resumed = run("--target-sparsity", "0.5", "--name", "tiny", *TINY, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    after = read_tensors(model)
    assert all((after[name] == values).all() for name, values in before.items())


@pytest.mark.e2e
@pytest.mark.parametrize("target", ["0", "0.1", "0.37", "0.9", "0.99"])
def test_target_is_met_in_the_file(target: str, run, tmp_path: Path) -> None:
    short = ("--trials", "1", "--refits", "0", "--epochs", "2", "--dense-epochs", "2", "--name", "one")
    done = run("--target-sparsity", target, *short)
    assert done.returncode == 0, done.stderr
    assert counted_sparsity(tmp_path / "runs" / "one" / "chosen.safetensors") == pytest.approx(float(target), abs=0.001)


def started(arguments: tuple[str, ...], cwd: Path, until: str) -> subprocess.Popen[str]:
    """The command in the background, once it has printed a word."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "sca_search", *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "200", "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if until in line:
            time.sleep(0.5)  # into the next trial
            return process
    raise AssertionError(process.communicate()[1])


@pytest.mark.e2e
@pytest.mark.parametrize(("how", "workers"), [(signal.SIGINT, "1"), (signal.SIGKILL, "2")])
def test_stopped_study_goes_on_without_loss_or_repetition(how: signal.Signals, workers: str, tmp_path: Path) -> None:
    command = (
        *("--target-sparsity", "0.5", "--name", "cut", "--trials", "4", "--refits", "0"),
        *("--epochs", "8", "--dense-epochs", "2", "--workers", workers, "--threads", "1"),
    )
    process = started(command, tmp_path, until="[1/4]")
    if how == signal.SIGINT:
        os.killpg(process.pid, how)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 130, errors
        assert "--resume" in errors
        assert (tmp_path / "runs" / "cut" / "chosen.safetensors").exists()
    else:
        process.kill()
        process.communicate()
    run = tmp_path / "runs" / "cut"
    finished = front_figures(run).query("state == 'complete'")
    assert len(finished) >= 1
    time.sleep(1 if workers == "1" else 3)  # orphaned workers notice that their parent is gone
    again = sca_search(*command, "--resume", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    trials = pd.read_csv(run / "trials.csv")
    assert sorted(trials["candidate"]) == [0, 1, 2, 3]
    assert set(trials["state"]) == {"complete"}
    kept = trials.set_index("trial").loc[finished["trial"], "metric"]
    assert list(kept) == list(finished["metric"])


@pytest.mark.e2e
def test_two_workers_run_each_planned_trial_once(tmp_path: Path) -> None:
    done = sca_search(
        "--target-sparsity", "0.9", "--name", "two", "--workers", "2", *TINY[2:], "--trials", "4", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    trials = pd.read_csv(tmp_path / "runs" / "two" / "trials.csv")
    assert sorted(trials["candidate"]) == [0, 1, 2, 3]
    assert list(trials.sort_values("candidate")["planned_sparsity"]) == [0.9, 0.97, 0.9, 0.99]


@pytest.mark.e2e
def test_diverged_trial_is_reported_and_the_study_goes_on(run, tmp_path: Path) -> None:
    """The first twenty are drawn around the lower end of the ranges, the others anywhere: there the loss overflows."""
    rates = "".join(f"{name} = [0.01, 1e30]\n" for name in ("learning_rate", "frozen_learning_rate"))
    (tmp_path / "wild.toml").write_text(f"[search]\nsampler = 'random'\n[search.space]\n{rates}")
    done = run("wild.toml", "--name", "wild", *TINY[4:], "--trials", "26", "--refits", "0", "--allocation", "0")
    assert done.returncode == 0, done.stderr
    trials = pd.read_csv(tmp_path / "runs" / "wild" / "trials.csv")
    failed = trials[trials["state"] == "failed"]
    assert len(failed) >= 1
    assert failed["reason"].str.startswith("diverged: ").all()
    assert failed["reason"].str.contains("the loss became").any()
    assert set(trials.loc[trials["trial"] < 2, "state"]) == {"complete"}


@pytest.mark.e2e
def test_time_budget_starts_no_trial_that_would_not_fit(run, tmp_path: Path) -> None:
    done = run("--time-budget", "0.1s", "--name", "brief", *TINY)
    assert done.returncode == 0, done.stderr
    states = pd.read_csv(tmp_path / "runs" / "brief" / "trials.csv")["state"]
    assert list(states) == ["complete", "waiting", "waiting"]


@pytest.mark.e2e
def test_searched_allocation_keeps_the_overall_sparsity_and_starts_from_the_layers_sensitivity(
    run, tmp_path: Path
) -> None:
    short = ("--trials", "6", "--refits", "0", "--epochs", "1", "--dense-epochs", "2", "--name", "split")
    done = run("--target-sparsity", "0.9", "--allocation", "4", *short)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "split"
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("candidates/*/candidate.json"))]
    weights = {"conv2": 12_800, "fc1": 8_192}
    for record in records:
        allocation, planned = record["candidate"]["allocation"], record["candidate"]["sparsity"]
        assert sum(weights[name] * allocation[name] for name in weights) / 20_992 == pytest.approx(planned, abs=1e-9)
        assert record["sparsity"] == pytest.approx(planned, abs=0.001)
    costs = [LayerCost(**cost) for cost in json.loads((folder / "sensitivity.json").read_text())]
    layers = [LayerShape("conv2", (32, 16, 5, 5)), LayerShape("fc1", (64, 128))]
    first = records[0]["candidate"]["allocation"]
    assert first == pytest.approx(allocate(layers, least_loss_weighting(costs, layers, 0.9), 0.9))
    assert {cost.layer for cost in costs} == set(weights)
    # All but the first two are sampled: λ and α have schedules of their own in each.
    guessed, *sampled = (records[number]["candidate"] for number in (0, 2, 3, 4, 5))
    for one, other in combinations([guessed, *sampled], 2):
        assert one["strength"] != other["strength"]
        assert one["alpha"] != other["alpha"]
    assert all(each["layer_strength"].keys() == each["layer_alpha"].keys() == set(weights) for each in sampled)


SHORT = ("--refits", "0", "--epochs", "1", "--dense-epochs", "3", "--name", "goal")


@pytest.mark.e2e
def test_goal_of_an_accuracy_gives_the_sparsest_that_has_it(run, tmp_path: Path) -> None:
    done = run("--min-accuracy", "0.5", "--trials", "3", *SHORT)
    assert done.returncode == 0, done.stderr
    trials = pd.read_csv(tmp_path / "runs" / "goal" / "trials.csv")
    chosen = json.loads((tmp_path / "runs" / "goal" / "summary.json").read_text())["chosen"]
    assert trials["planned_sparsity"][0] == 0.9
    assert chosen["sparsity"] == pytest.approx(trials.loc[trials["metric"] >= 0.5, "sparsity"].max())


@pytest.mark.e2e
def test_goal_that_nothing_reaches_says_what_the_best_is(run) -> None:
    done = run("--min-accuracy", "1.0", "--trials", "1", *SHORT, "--train-limit", "100")
    assert done.returncode == 1
    assert "No trial meets the goal" in done.stderr
    assert "the most accurate, trial 0" in done.stderr
