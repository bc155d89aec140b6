"""The sign of life of a running study, and how a run came to be."""

import json
from pathlib import Path

import pytest

from sca_search.runs.log import LEAST_PATIENCE_SECONDS, PATIENCE, CurrentTraining, ProgressFile, read_progress


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_newest_sign_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    clock = Clock()
    progress = ProgressFile(tmp_path / "progress.json", clock)
    progress.note("trial 1", 1, 20)
    clock.now += 0.5
    progress.note("trial 1", 2, 20)
    assert read_progress(tmp_path / "progress.json") == CurrentTraining("trial 1", 1, 20, 1000.0, 0.0)
    clock.now += 0.75
    progress.note("trial 1", 3, 20)
    assert read_progress(tmp_path / "progress.json") == CurrentTraining("trial 1", 3, 20, 1001.25, 0.75)
    progress.close()
    assert read_progress(tmp_path / "progress.json") is None
    progress.close()


def test_a_study_is_alive_for_some_of_its_usual_pauses() -> None:
    quick, slow = CurrentTraining("trial 1", 1, 2, 100.0, 0.1), CurrentTraining("trial 1", 1, 2, 100.0, 300.0)
    assert quick.is_alive(100.0 + LEAST_PATIENCE_SECONDS)
    assert not quick.is_alive(101.0 + LEAST_PATIENCE_SECONDS)
    assert slow.is_alive(100.0 + PATIENCE * 300.0)
    assert not slow.is_alive(101.0 + PATIENCE * 300.0)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"what": "x", "epoch": "many"}', "null"])
def test_a_damaged_sign_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "progress.json").write_text(content)
    assert read_progress(tmp_path / "progress.json") is None


def test_finished_study_leaves_no_sign_but_its_command(tiny_run: tuple[Path, str]) -> None:
    run, _ = tiny_run
    assert not (run / "progress.json").exists()
    about = json.loads((run / "about.json").read_text())
    (command,) = about["commands"]
    assert command["command"].startswith("sca-search --target-sparsity 0.5 --name tiny --trials 3")
    assert about["machine"].keys() == {"processor", "cores", "system", "python"}
    assert about["versions"]["sca-search"]
