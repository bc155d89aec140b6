"""Tasks that are no classification of images: trained, chosen, exported and shown in their own metric."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import sca_search
from sca_search.config.candidate import Candidate, Ramp, Tracked
from sca_search.data import DataSet, LazySplit, TeacherSplit, from_objects
from sca_search.models.layers import choose_layers, weight_layers
from sca_search.ternary.methods.base import strength_unit
from sca_search.ternary.methods.sca import regularizer
from sca_search.ternary.parametrize import latents, parametrize_layers
from sca_search.training.losses import loss_of
from sca_search.training.metrics import metric_of
from sca_search.training.sensitivity import measure_sensitivity
from sca_search.training.task import Task
from sca_search.training.train import CandidateTraining, train_candidate, train_dense
from tests.support.browser import opened
from tests.support.command import TINY, Outcome

Run = Callable[..., Outcome]


def signals(kind: str, count: int = 240) -> DataSet:
    """Time series (2, 16); what is asked is where in each channel its mass lies."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(count, 2, 16, generator=generator)
    halves = inputs[:, :, :8].mean(2)
    targets = {
        "classes": (halves[:, 0] > 0).long(),
        "multi-label": (halves > 0).long(),
        "regression": 500.0 + 40.0 * halves,
    }[kind]
    parts = [TensorDataset(inputs[rows], targets[rows]) for rows in (slice(160), slice(160, 200), slice(200, None))]
    return from_objects("signals", tuple(parts), seed=0)


def task_of(data: DataSet) -> Task:
    def make_model() -> nn.Module:
        return nn.Sequential(
            nn.Conv1d(2, 8, 3, padding=1, bias=False),
            nn.BatchNorm1d(8),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(8 * 16, 24, bias=False),
            nn.BatchNorm1d(24),
            nn.ReLU(),
            nn.Linear(24, data.num_classes),
        )

    choices = choose_layers(weight_layers(make_model(), data.input_shape), keep_first=True, keep_last=True)
    return Task(data, make_model, tuple(choices), batch=32, loss=loss_of(None, data), metric=metric_of(None, data))


CANDIDATE = Candidate(
    sparsity=0.5,
    alpha=Tracked(),
    strength=Ramp(first=1.0, last=20.0),
    learning_rate=0.01,
    latent_learning_rate=0.05,
    frozen_learning_rate=0.005,
    epochs=4,
    frozen_epochs=2,
    seed=1,
    distillation=0.5,
)


@pytest.mark.parametrize("kind", ["classes", "multi-label", "regression"])
def test_a_time_series_of_each_kind_is_learned_and_ends_at_its_sparsity(kind: str) -> None:
    task = task_of(signals(kind))
    start = train_dense(task, epochs=12, learning_rate=0.01, seed=0)
    assert start.score.accuracy > 0.75
    trained = train_candidate(CANDIDATE, task, start)
    assert trained.score.accuracy > 0.6
    assert sum(count.zeros for count in trained.counts.values()) == 8 * 16 * 24 // 2
    assert (trained.score.error is None) == (kind == "classes")
    assert all(np.isfinite(cost.loss) for cost in measure_sensitivity(task, start))
    test = task.score(trained.model, task.data.read_test().batches(64))
    assert test.accuracy > 0.5


def test_the_unit_of_strength_is_of_the_tasks_own_loss() -> None:
    """Ten times the loss pulls ten times as hard."""
    data = signals("regression")
    task = task_of(data)
    inputs, targets = next(iter(data.train.batches(32)))
    units = []
    for factor in (1.0, 10.0):
        torch.manual_seed(0)
        model = task.make_model()
        parametrize_layers(model, dict.fromkeys(task.ternary_layers, 0.5))
        for weight in latents(model).values():
            assert weight.requires_grad

        def scaled(outputs: torch.Tensor, wanted: torch.Tensor, by: float = factor) -> torch.Tensor:
            return by * task.loss(outputs, wanted)

        thetas = list(latents(model).values())
        units.append(strength_unit(model.train(), (inputs, targets), scaled, partial(regularizer, model), thetas))
    assert units[0] > 0
    assert units[1] == pytest.approx(10 * units[0], rel=1e-4)


class Noisy(Dataset[tuple[torch.Tensor, int]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
        return torch.full((2, 16), row % 2 - 0.5) + torch.randn(2, 16), row % 2


def test_a_teacher_is_asked_again_where_training_inputs_change() -> None:
    held = TensorDataset(torch.randn(20, 2, 16), torch.arange(20) % 2)
    task = task_of(from_objects("noisy", (Noisy(), held, held), seed=0))
    assert isinstance(task.data.train, LazySplit)
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    training = CandidateTraining(CANDIDATE, task, start)
    assert isinstance(training.train_split, TeacherSplit)
    inputs, _, answers = next(iter(training.train_split.batches(16)))
    with torch.no_grad():
        assert torch.equal(answers, task.model_with(start.state).eval()(inputs))


def saved_digits(folder: Path, targets: np.ndarray, **more: object) -> str:
    images = (load_digits().images * 15).astype(np.uint8)
    np.savez(
        folder / "set.npz",
        train_images=images[:500],
        train_labels=targets[:500],
        test_images=images[1500:],
        test_labels=targets[1500:],
        **more,
    )
    return f"npz:{folder / 'set.npz'}"


@pytest.mark.e2e
def test_a_regression_is_searched_shown_and_exported_in_its_units(run: Run, tmp_path: Path) -> None:
    images = load_digits().images
    ink = images.mean((1, 2)) * 100 + 5000
    name = saved_digits(tmp_path, ink, output_names=np.array(["ink"]))
    done = run("--data", name, "--name", "ink", *TINY)
    assert done.returncode == 0, done.stderr
    assert "validation r2" in done.stdout
    assert "Test r2 0." in done.stdout
    assert "accuracy" not in done.stdout
    summary = json.loads(Path("runs/ink/summary.json").read_text())
    assert (summary["metric_name"], summary["task"]) == ("r2", "regression")
    trials = pd.read_csv("runs/ink/trials.csv")
    assert (trials["metric_error"] > 0).all()
    shown = run("show", "runs/ink")
    assert " r2 " in shown.stdout
    exported = run("export", "runs/ink", "--out", "out", "--seconds", "1", "--format", "packed,c,torch")
    assert exported.returncode == 0, exported.stderr
    assert "everything agrees" in exported.stdout
    card = Path("out/MODEL.md").read_text()
    for words in ("1×8×8 to 1 values", "## r2", "a number for each of `ink`, in the units of the data set"):
        assert words in card
    assert "same classes" not in card
    model = sca_search.load("out/model.safetensors")
    answers = model(torch.from_numpy((images[1500:] * 15).astype(np.uint8) / 255.0).float()[:, None])[:, 0].numpy()
    wanted = ink[1500:]
    r2 = 1 - ((answers - wanted) ** 2).sum() / ((wanted - wanted.mean()) ** 2).sum()
    assert r2 == pytest.approx(summary["chosen"]["test_metric"], abs=1e-3)
    assert run("verify", "out", "--seconds", "1").returncode == 0
    with opened(Path("runs/ink/dashboard.html")) as page:
        told = page.inner_text("body")
        assert "validation r2" in told
        assert "accuracy" not in told.lower()


@pytest.mark.e2e
def test_labels_are_searched_and_shown_by_their_metric(run: Run, tmp_path: Path) -> None:
    digits = load_digits().target
    labels = np.stack([digits % 2 == 0, digits > 4, digits == 7], 1).astype(np.int64)
    name = saved_digits(tmp_path, labels, output_names=np.array(["even", "large", "seven"]))
    done = run("--data", name, "--name", "labels", "--min-accuracy", "0.2", *TINY)
    assert done.returncode == 0, done.stderr
    assert "validation macro-f1" in done.stdout
    assert json.loads(Path("runs/labels/summary.json").read_text())["goal"] == (
        "highest sparsity at 20.00% macro-f1 or more"
    )
    exported = run("export", "runs/labels", "--out", "out", "--seconds", "1", "--format", "packed")
    assert exported.returncode == 0, exported.stderr
    assert "a logit for each of the labels `even`, `large`, `seven`: above 0" in Path("out/MODEL.md").read_text()


OWN = """
import torch
calls = 0
def late(outputs, targets):
    global calls
    calls += 1
    if calls > LIMIT:
        raise RuntimeError("no more")
    return (outputs.argmax(1) == targets).float().mean()
"""


def test_a_metric_that_fails_in_the_middle_fails_its_trial_with_the_reason(run: Run, tmp_path: Path) -> None:
    """One call before, 5 for the dense network (4 epochs and its score): none is left for the trials."""
    (tmp_path / "own.py").write_text(OWN.replace("LIMIT", "6"))
    done = run("--metric", "own.py:late", "--allocation", "0", "--name", "late", *TINY)
    trials = pd.read_csv("runs/late/trials.csv")
    assert (trials["state"] == "failed").all()
    assert trials["reason"][0] == "the metric late failed with RuntimeError: no more (own.py, line 8)"
    assert done.returncode == 1
    assert "No trial finished" in done.stderr


NET = """
import torch

class Net(torch.nn.Sequential):
    calls = 0
    def forward(self, inputs):
        Net.calls += torch.is_grad_enabled() is TRAINING
        if Net.calls > LIMIT:
            exit(0)
        return super().forward(inputs)

def net(num_classes):
    return Net(torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 32),
               torch.nn.BatchNorm1d(32), torch.nn.Linear(32, num_classes))
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("training", "limit"), [(True, 100), (False, 40)])
def test_a_network_that_ends_the_process_fails_its_trial_with_the_reason(
    run: Run, tmp_path: Path, training: bool, limit: int
) -> None:
    """4 dense epochs take 4 times 17 steps; exit(0) in a trial would say that all is done."""
    (tmp_path / "own.py").write_text(NET.replace("TRAINING", str(training)).replace("LIMIT", str(limit)))
    done = run("--model", "own.py:net", "--allocation", "0", "--name", "late", *TINY)
    reasons = pd.read_csv("runs/late/trials.csv")["reason"].dropna()
    assert set(reasons) == {"the network failed with SystemExit: 0 (own.py, line 9)"}
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--metric", "acuracy"), "--metric must be one of .*; did you mean 'accuracy'?"),
        (("--loss", "crossentropy"), "--loss must be one of .*; did you mean 'cross-entropy'?"),
        (("--metric", "r2"), "the metric r2 is not for targets that are classes"),
        (("--loss", "mse"), "the loss mse is not for targets that are classes"),
        (("--metric", "own.py:gone"), "own.py has no 'gone'"),
        (("--metric", "nothing.at_all:f"), "the metric: there is no module 'nothing.at_all'"),
        (("--min-accuracy", "1.5"), "--min-accuracy must be at most 1, got 1.5"),
        (("--min-accuracy", "1.5", "--metric", "r2"), "--min-accuracy must be at most 1, got 1.5"),
        (("--min-accuracy", "-1"), "--min-accuracy must be above 0, got -1"),
        (
            ("--data", "own.py:late"),
            "the function must be callable without arguments, or with seed or data_dir, it requires 'outputs'",
        ),
        (("--data-columns", "a,b"), "only hf-disk:PATH has named columns"),
        (("--augment", "crop-flop"), "--augment must be one of none, crop-flip, .*; did you mean 'crop-flip'?"),
        (("--augment", "scale-aspect"), "'digits': augmentation 'scale-aspect' is for image files"),
        (
            ("--skip-unreadable",),
            "'digits': unreadable files can be skipped in tiny-imagenet, imagenet and folder:PATH only",
        ),
    ],
)
def test_what_cannot_be_searched_is_rejected_before_anything_is_written(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    (tmp_path / "own.py").write_text(OWN.replace("LIMIT", "0"))
    done = run(*arguments)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert message.rpartition(" .*; ")[2] in done.stderr
    assert not Path("runs").exists()
