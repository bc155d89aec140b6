"""`sca-search init`: what it rejects, what it writes, and that its file is a study that runs."""

import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.config.toml_text import commented_toml
from tests.support.command import sca_search

FAST = ("--data", "digits", "--train-limit", "200", "--threads", "1")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ((), "--time is missing: the time that the run may take, like 20m"),
        (("--time", "soon"), "--time must be a number of seconds or a time like 90s, 10m or 2h, got 'soon'"),
        (("--time", "0s"), "--time must be above 0.0, got 0.0"),
        (("--time", "9m", "--target-sparsity", "2"), "--target-sparsity must be below 1.0, got 2.0"),
        (("--time", "9m", "--front", "--max-kb", "2"), "must not have both front"),
        (("--time", "9m", "--model", "lenet-smal"), "did you mean 'lenet-small'?"),
        (("--time", "9m", "--data", "minst"), "did you mean 'mnist'?"),
        (("--time", "9m", "--out", "gone/a.toml"), "gone/a.toml: must be in a folder that exists"),
        (("--time", "9m", "--out", "."), "--out must be a file"),
    ],
)
def test_invalid_input_is_one_sentence_and_nothing_is_written(
    run, tmp_path: Path, given: tuple[str, ...], sentence: str
) -> None:
    outcome = run("init", "-q", *given)
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert sentence in line
    assert list(tmp_path.iterdir()) == []


def test_existing_file_is_not_replaced(run, tmp_path: Path) -> None:
    (tmp_path / "study.toml").write_text("precious")
    outcome = run("init", "--time", "9m")
    assert outcome.returncode == 2
    assert "study.toml: exists already; choose another --out, or --force to replace it" in outcome.stderr
    assert (tmp_path / "study.toml").read_text() == "precious"


def test_text_reads_back_as_the_spec_and_every_line_is_commented() -> None:
    spec = resolve(None, {"max_kb": 2.5, "data": "npz:a b.npz", "skip": "fc*,conv2", "epochs": 7, "name": "mine"})
    text = commented_toml(spec, {"train.batch"}, {"train.epochs": "9 s per epoch"}, "One.\nTwo.")
    assert StudySpec.model_validate(tomllib.loads(text)) == spec
    lines = [line for line in text.splitlines() if "=" in line]
    assert all("  # " in line for line in lines)
    assert text.startswith("# One.\n# Two.\n")
    assert "epochs = 7                        # Ternary training epochs per trial; 9 s per epoch" in lines
    assert "batch = 64                        # Batch size" in lines
    assert 'name = "mine"                     # Name of the run folder' in lines
    assert not any(line.startswith("seed") for line in lines)


@pytest.mark.e2e
def test_written_study_is_planned_commented_and_runs(tmp_path: Path) -> None:
    flags = (
        "--time",
        "90s",
        "--target-sparsity",
        "0.7",
        "--out",
        "mine.toml",
        "--json",
        "--refits",
        "1",
        "--name",
        "a",
    )
    done = sca_search("init", *FAST, *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    assert document["file"] == "mine.toml"
    assert document["seconds_requested"] == 90
    assert document["seconds_expected"] == pytest.approx(sum(document["parts"].values()))
    assert document["seconds_expected"] <= 90
    assert all(seconds >= 0 for seconds in document["pace"].values())
    spec = resolve(tmp_path / "mine.toml", {})
    assert spec.model_dump(mode="json") == document["study"]
    assert (spec.goal.target_sparsity, spec.data.train_limit, spec.search.refits) == (0.7, 200, 1)
    assert spec.search.time_budget is not None
    text = (tmp_path / "mine.toml").read_text()
    assert "safety net" in text
    assert all("  # " in line for line in text.splitlines() if " = " in line and not line.startswith("#"))
    shorter = ("--trials", "1", "--refits", "0", "--epochs", "1", "--dense-epochs", "1")
    ran = sca_search("mine.toml", *shorter, "-q", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"Chosen: trial 0, sparsity {round(0.7 * 20_992) / 20_992:.3%}, ")
    assert ran.stderr == ""
    again = sca_search("init", *FAST, "--time", "1s", "--out", "mine.toml", "--force", cwd=tmp_path)
    assert again.returncode == 2
    assert "--time must be at least" in again.stderr
    assert (tmp_path / "mine.toml").read_text() == text


@pytest.mark.nightly
def test_terminal_is_prompted_for_missing_settings(tmp_path: Path) -> None:
    """Data, network, goal and time, each answered at a real terminal; the last with a time that is too short."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "sca_search", "init", "--train-limit", "100"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    os.write(ours, b"digits\nlenet-small\n0.8\n1s\n")
    _, stderr = process.communicate(timeout=200)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 2
    for question in (
        "Data set (digits, mnist",
        "Network (lenet-small",
        "Target sparsity",
        "Time that the run may take",
    ):
        assert question in stderr
    assert "--time must be at least" in stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_interrupt_stops_the_measurement_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sca_search", "init", "--time", "9m"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    while "loading torch" not in process.stdout.readline():
        pass
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=200)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []
