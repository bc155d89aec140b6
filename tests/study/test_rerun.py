"""A trial trained again: the same bits from the same folder, and an honest answer where they are not."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from sca_search.runs.candidates import records_of
from sca_search.runs.folder import RunFolder
from sca_search.study.rerun import Difference, changed_since, compared, training_environment

KEPT = Path(__file__).parents[1] / "support" / "run-folder"


def content_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def change_model(path: Path, name: str, value: float) -> None:
    """Another first number in a tensor of a plain model."""
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    tensors[name].view(-1)[0] = value
    save_file(tensors, path, metadata=metadata)


def change_record(made: Path, candidate: int, change: Callable[[dict[str, Any]], object]) -> None:
    path = made / "candidates" / f"{candidate:03d}" / "candidate.json"
    record = json.loads(path.read_text())
    change(record)
    path.write_text(json.dumps(record))


@pytest.fixture
def made(tiny_run: tuple[Path, str], tmp_path: Path) -> Path:
    """A run of this very machine, to be spoilt."""
    return shutil.copytree(tiny_run[0], tmp_path / "made")


def test_equal_tensors_have_no_difference_and_others_are_counted() -> None:
    then = {"a": torch.tensor([1.0, math.nan, 0.0]), "b": torch.ones(2, 2), "c": torch.tensor(3), "gone": torch.ones(4)}
    now = {"a": torch.tensor([1.0, math.nan, -0.0]), "b": torch.ones(4), "c": torch.tensor(3), "new": torch.ones(())}
    assert compared(then, then, set()) == ()
    expected = (Difference("a", 1, False), Difference("b", 4, True), Difference("gone", 4, False))
    assert compared(then, now, {"b"}) == (*expected, Difference("new", 1, False))


def test_a_trial_comes_out_the_same_and_leaves_the_run_as_it_was(run, made: Path) -> None:
    before = content_of(made)
    done = run("rerun", str(made), "--trial", "1", "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    document = json.loads(done.stdout)
    assert (document["same"], document["differences"], document["changed"]) == (True, [], {})
    assert document["accuracy_now"] == document["accuracy_then"]
    assert (document["trial"], document["refit"]) == (1, None)
    assert content_of(made) == before


def test_a_refit_comes_out_the_same(run, made: Path) -> None:
    done = run("rerun", str(made), "--refit", "1")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "refit 1, is bit-identical" in done.stdout


def test_a_trial_is_compared_with_its_own_command_and_not_with_the_newest(tiny_run: tuple[Path, str]) -> None:
    made = RunFolder(tiny_run[0])
    (record, *_) = records_of(made, 0)
    own = training_environment(made, record)
    assert own.keys() == {"machine", "threads", "versions"}
    assert changed_since(own | {"threads": torch.get_num_threads()}) == {}
    other = training_environment(made, {"training_environment": own | {"threads": 7}, "folder": record["folder"]})
    assert other["threads"] == 7
    # A run of an earlier version has it in about.json alone.
    assert training_environment(RunFolder(KEPT), {"folder": KEPT})["threads"] == 1


def test_a_difference_is_counted_and_explained(run, made: Path) -> None:
    """One trit and one bias of the kept file are changed, and so is what the run says of itself."""
    model = made / "candidates" / "000" / "model.safetensors"
    tensors = load_file(model)
    trits = next(name for name, value in tensors.items() if value.dtype == torch.int8)
    bias = next(name for name, value in tensors.items() if name.endswith("bias"))
    change_model(model, trits, 0 if tensors[trits].view(-1)[0] else 1)
    change_model(model, bias, float(tensors[bias].view(-1)[0]) + 1.0)
    change_record(made, 0, lambda record: record["training_environment"]["versions"].update(torch="1.0"))
    done = run("rerun", str(made), "--trial", "0", "--json")
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert {each["tensor"]: each["values"] for each in document["differences"]} == {trits: 1, bias: 1}
    assert (document["same"], document["trits_differing"]) == (False, 1)
    assert document["changed"] == {"torch": {"then": "1.0", "now": torch.__version__}}
    assert "differs: 2 of" in done.stderr
    assert f"torch 1.0 then, {torch.__version__} now" in done.stderr


@pytest.mark.e2e
@pytest.mark.parametrize(
    "study",
    [
        ("--method", "twn", "--front"),
        ("--method", "straight-through", "--target-sparsity", "0.5"),
        ("--form", "paper", "--target-sparsity", "0.5"),
    ],
    ids=lambda words: words[1],
)
def test_trials_of_other_methods_come_out_the_same(run, tmp_path: Path, study: tuple[str, ...]) -> None:
    short = ("--trials", "1", "--refits", "0", "--epochs", "4", "--dense-epochs", "2", "--train-limit", "200")
    made = run(*study, *short, "--name", "other")
    assert made.returncode in (0, 1), made.stderr
    done = run("rerun", "runs/other", "--trial", "0")
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.e2e
def test_the_trial_of_a_recipe_comes_out_the_same(run, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        '[recipe]\nalpha = 0.5\nstrength_lambda = 1e-4\nepochs = 2\nlearning_rate = 0.01\ninitialization = "xavier"\n'
        "[train]\nepochs = 2\n"
    )
    made = run("recipe.toml", "--name", "recipe", "--train-limit", "200")
    assert made.returncode == 0, made.stderr
    done = run("rerun", "runs/recipe", "--trial", "0")
    assert done.returncode == 0, done.stderr + done.stdout


def put(run: Path, file: str, old: str, new: str) -> None:
    path = run / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return shutil.copytree(KEPT, tmp_path / "kept")


def refusal(run, *arguments: str) -> str:
    refused = run("rerun", *arguments)
    assert refused.returncode == 2, refused.stderr
    assert "Traceback" not in refused.stderr
    return refused.stderr.splitlines()[-1]


def test_what_is_not_there_is_one_sentence(run, kept: Path) -> None:
    assert "is not a run folder" in refusal(run, "nowhere")
    assert "there is no trial 7; there are 0, 1" in refusal(run, str(kept), "--trial", "7")
    assert "there is no such refit; the trial has none" in refusal(run, str(kept), "--trial", "0", "--refit", "1")
    assert "--refit must be at least 1" in refusal(run, str(kept), "--refit", "-1")
    (kept / "trials.csv").unlink()
    assert "no trial has finished yet, there is none to be trained again" in refusal(run, str(kept))


def test_a_trial_that_is_not_complete_is_refused(run, kept: Path) -> None:
    put(kept, "trials.csv", "1,complete", "1,paused")
    assert "trial 1 must be complete to be trained again, it is paused" in refusal(run, str(kept), "--trial", "1")


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("study.toml", 'name = "digits"', 'name = "npz:gone.npz"', "gone.npz"),
        ("study.toml", 'name = "digits"', 'name = "python:data"', "is a Python object"),
        ("study.toml", 'name = "lenet-small"', 'name = "python:Net"', "is a Python object"),
        ("candidates/000/candidate.json", '"learning_rate": ', '"learning_rate": -', "learning_rate cannot be used"),
        ("candidates/000/candidate.json", '"seed": ', '"seeed": ', "candidate."),
        ("candidates/000/candidate.json", '"threads": 1', '"threads": 100000', "threads must be from 1 to 1024"),
        ("dense.json", "{", "[", "the dense network cannot be read"),
    ],
)
def test_a_folder_that_cannot_be_used_is_one_sentence(
    run, kept: Path, file: str, old: str, new: str, sentence: str
) -> None:
    put(kept, file, old, new)
    assert sentence in refusal(run, str(kept), "--trial", "0")


@pytest.mark.parametrize("file", ["dense.safetensors", "candidates/000/model.safetensors"])
def test_a_model_that_is_gone_is_one_sentence(run, kept: Path, file: str) -> None:
    (kept / file).unlink()
    assert "cannot be read" in refusal(run, str(kept), "--trial", "0")
