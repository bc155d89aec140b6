"""The command line: help, dry run, and every invalid a user can make: one sentence, exit code 2, nothing written."""

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sca_search.runs.goal import GRID
from tests.support.command import TINY, Outcome, sca_search


def assert_rejected(outcome: Outcome, *sentences: str) -> None:
    assert outcome.returncode == 2
    assert "Traceback" not in outcome.stderr
    lines = outcome.stderr.strip().splitlines()
    assert len(lines) == len(sentences), outcome.stderr
    for sentence in sentences:
        assert any(sentence in line for line in lines), outcome.stderr
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("1.5", "--target-sparsity must be below 1.0, got 1.5"),
        ("1", "--target-sparsity must be below 1.0, got 1.0"),
        ("nan", "--target-sparsity must be a finite number, got nan"),
        ("-0.1", "--target-sparsity must be at least 0.0, got -0.1"),
    ],
)
def test_target_out_of_range_is_rejected(run, given: str, sentence: str) -> None:
    assert_rejected(run("--target-sparsity", given), sentence)


def test_unknown_data_set_offers_the_nearest(run) -> None:
    assert_rejected(run("--data", "minst"), "did you mean 'mnist'?")


def test_unknown_network_offers_the_nearest(run) -> None:
    assert_rejected(run("--model", "lenet-smal"), "did you mean 'lenet-small'?")


def test_unknown_key_in_a_study_file_offers_the_nearest(run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("[search]\ntrails = 3\n")
    assert_rejected(run("a.toml"), "a.toml: unknown key 'search.trails'")


def test_three_errors_are_shown_at_once(run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('[search]\ntrials = 0\nform = "round"\n[train]\nepochs = "many"\n')
    assert_rejected(
        run("a.toml"),
        "a.toml: search.trials must be at least 1, got 0",
        "a.toml: search.form must be 'decoupled' or 'paper', got 'round'",
        "a.toml: train.epochs must be an integer, got 'many'",
    )


def test_missing_study_file_is_rejected(run) -> None:
    assert_rejected(run("none.toml"), "none.toml: there is no such study file")


def test_folder_without_images_is_rejected(run, tmp_path: Path) -> None:
    (tmp_path / "pictures" / "cats").mkdir(parents=True)
    assert_rejected(run("--data", "folder:pictures"), "pictures")


def test_npz_without_its_keys_is_rejected(run, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 8, 8), np.uint8))
    assert_rejected(run("--data", "npz:a.npz"), "train_images")


def test_npz_with_labels_out_of_range_is_rejected(run, tmp_path: Path) -> None:
    images, labels = np.zeros((20, 8, 8), np.uint8), np.arange(20) % 2
    np.savez(tmp_path / "a.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels + 5)
    assert_rejected(run("--data", "npz:a.npz"), "test_labels")


def test_network_without_a_ternary_layer_is_rejected(run) -> None:
    assert_rejected(run("--skip", "conv2,fc1"), "no layer to make ternary")


def test_pattern_that_matches_nothing_is_rejected(run) -> None:
    assert_rejected(run("--skip", "stem.*"), "'stem.*' matches no weight layer")


def test_used_run_folder_is_rejected(run, tmp_path: Path) -> None:
    used = tmp_path / "elsewhere" / "mine"
    used.mkdir(parents=True)
    (used / "thesis.txt").write_text("precious")
    assert_rejected(run("--out", "elsewhere", "--name", "mine"), "elsewhere/mine: holds files that are not a study")
    assert [path.name for path in used.iterdir()] == ["thesis.txt"]


def test_resume_of_another_study_is_rejected(run, tmp_path: Path) -> None:
    used = tmp_path / "elsewhere" / "mine"
    used.mkdir(parents=True)
    (used / "about.json").write_text('{"format": 2}')
    (used / "study.toml").write_text("[data]\nname = 'mnist'\n")
    outcome = run("--out", "elsewhere", "--name", "mine", "--resume")
    assert_rejected(outcome, "elsewhere/mine: holds another study, it differs in data.name")


def test_resume_of_nothing_is_rejected(run) -> None:
    assert_rejected(run("--name", "mine", "--resume"), "there is no run to resume")


def test_show_of_a_folder_that_is_no_run_is_rejected(run, tmp_path: Path) -> None:
    assert_rejected(run("show", str(tmp_path)), "is not a run folder")


@pytest.mark.e2e
@pytest.mark.parametrize("limit", [20_000, 120_000, 1_000_000])
def test_full_disk_ends_with_one_sentence_and_nothing_half_written(limit: int, tmp_path: Path) -> None:
    """20 kB stop the dense weights, 120 kB the database, 1 MB the page."""

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    done = sca_search("--name", "full", *TINY, cwd=tmp_path, preexec_fn=small_disk)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "cannot be written" in done.stderr
    run = tmp_path / "runs" / "full"
    assert not [path for path in run.rglob(".*") if path.name != ".lock"]
    assert not (run / "summary.json").exists()


def test_help_answers_without_torch_and_shows_groups_and_examples() -> None:
    code = (
        "import sys; sys.argv[1:] = ['--help']; from sca_search.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'optuna', 'plotly', 'sklearn')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("Goal", "Data and network", "Search", "--target-sparsity", "sca-search show RUN", "Examples"):
        assert word in done.stdout


def test_dry_run_shows_layers_alphas_and_epochs_and_writes_nothing(run) -> None:
    outcome = run("--dry-run", "--target-sparsity", "0.9", "--trials", "4", "--refits", "1")
    assert outcome.returncode == 0
    screen = outcome.stdout
    assert "first weight layer" in screen
    assert "normalization follows" in screen
    # 30 dense epochs, then 4 trials and 1 refit of 20 + 5
    assert "total epochs: 155" in screen
    others = [sparsity for sparsity in GRID if sparsity != 0.9]  # the target's own place on the grid is left out
    assert f"0.9 {others[0]:g} 0.9 {others[1]:g}" in screen
    assert not Path("runs").exists()


def test_dry_run_lists_the_searched_parameters(run) -> None:
    screen = run("--dry-run").stdout
    table = screen[screen.index("Searched parameters") :]
    rows = {cells[1]: cells[2:6] for line in table.splitlines() if len(cells := [*map(str.strip, line.split("│"))]) > 5}
    assert rows["strength"] == ["λ schedule", "10 to 60", "log", "40"]
    assert rows["strength.conv2"] == rows["strength.fc1"] == ["λ schedule", "-0.7 to 0.7", "linear", "0"]
    assert rows["rise.fc1"][:2] == ["α schedule", "-0.2 to 0.2"]
    assert rows["density.fc1"][:2] == ["allocation", "-1 to 1"]
    assert rows["reallocation"] == ["allocation", "adaptive, fixed", "", "adaptive"]
    assert rows["temperature"][0] == "training"
    document = json.loads(run("--dry-run", "--strength", "20", "--json").stdout)
    searched = {row.pop("parameter"): row for row in document["searched"]}
    assert searched.keys() == rows.keys()
    fixed = {"sets": "λ schedule", "range": [20, 20], "options": None, "scale": "log", "first_guess": 20}
    assert searched["strength"] == fixed
    assert searched["reallocation"]["options"] == ["adaptive", "fixed"]


def test_dry_run_of_a_recipe_has_no_searched_parameters(run, tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("recipe = {epochs = 2, alpha = 0.1, strength_lambda = 1e-3, learning_rate = 0.01}")
    outcome = run("r.toml", "--dry-run", "--json")
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["searched"] == []
    assert "Searched parameters" not in outcome.stderr


NETS = """
from torch import nn

def my_net(num_classes, input_shape):
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, num_classes)
    )
"""


@pytest.mark.e2e
def test_a_network_of_the_users_is_searched_from_its_weights_and_needs_their_file_once(run, tmp_path: Path) -> None:
    """By two processes, which import the file anew; then exported from another folder."""
    (tmp_path / "nets.py").write_text(NETS)
    namespace: dict[str, Any] = {}
    exec(NETS, namespace)
    torch.save(namespace["my_net"](10, (1, 8, 8)).state_dict(), tmp_path / "w.pt")
    few = ("--refits", "0", "--epochs", "1", "--threads", "1", "--model", "nets.py:my_net", "--weights", "w.pt")
    first = run("--trials", "2", "--workers", "2", *few)
    assert first.returncode == 0, first.stderr
    assert (tmp_path / "runs" / "digits-my-net-s0.5").is_dir()
    (tmp_path / "w.pt").unlink()
    assert run("--trials", "3", *few, "--resume").returncode == 0
    exported = run("export", "runs/digits-my-net-s0.5", "--trust", "--format", "packed", "--out", "model")
    assert exported.returncode == 0, exported.stdout + exported.stderr
    assert "everything agrees" in exported.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--model", "nets.py:my_nat"), "has no 'my_nat'; did you mean 'my_net'?"),
        (("--model", "nets.py:my_net", "--weights", "none.pt"), "none.pt: there is no such file"),
        (("--model", "nets.py:my_net", "--only", "5,4*"), "the layer pattern '4*' matches no weight layer"),
        (("--dense-epochs", "0"), "--dense-epochs must be at least 1 without model.weights, got 0"),
    ],
)
def test_an_error_about_a_users_network_is_one_sentence(run, tmp_path: Path, arguments, sentence) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    assert_rejected(run(*arguments), sentence)


def test_a_dry_run_shows_why_a_layer_stays_dense(run, tmp_path: Path) -> None:
    frozen = NETS.replace("return nn", "net = nn") + "    net[1].weight.requires_grad_(False)\n    return net\n"
    (tmp_path / "nets.py").write_text(frozen)
    shown = run("--model", "nets.py:my_net", "--dry-run")
    assert shown.returncode == 0, shown.stderr
    assert "its weight is frozen" in shown.stdout
    assert "no normalization follows: a learned output scale" in shown.stdout
