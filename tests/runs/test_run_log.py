"""The log in a run folder."""

import re
import warnings
from pathlib import Path

import pytest

from sca_search.errors import StorageError
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import log_end, logged, logger
from sca_search.system.console import configure_output
from tests.support.command import TINY, sca_search

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4} (DEBUG|INFO|WARNING|ERROR) \S")


def lines_of(folder: Path) -> list[str]:
    return (folder / "log.txt").read_text().splitlines()


def test_every_line_has_its_time_and_level(tmp_path: Path) -> None:
    with logged(RunFolder(tmp_path)):
        logger.info("one")
        logger.debug("two")
    assert [bool(LINE.match(line)) for line in lines_of(tmp_path)] == [True, True]
    assert [line.split(" ", 1)[1] for line in lines_of(tmp_path)] == ["INFO one", "DEBUG two"]


def test_log_goes_on_and_nothing_is_written_outside(tmp_path: Path) -> None:
    for word in ("first", "second"):
        with logged(RunFolder(tmp_path), "worker 1: "):
            logger.info(word)
        logger.info("outside")
    assert [line.split(" ", 1)[1] for line in lines_of(tmp_path)] == ["INFO worker 1: first", "INFO worker 1: second"]


def test_error_is_logged_with_its_traceback_and_goes_on(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), logged(RunFolder(tmp_path)):
        _ = 1 / 0
    text = (tmp_path / "log.txt").read_text()
    assert "ERROR ended by ZeroDivisionError: division by zero" in text
    assert "Traceback (most recent call last):" in text


def test_warning_is_logged_and_shown(tmp_path: Path) -> None:
    with warnings.catch_warnings(record=True) as shown, logged(RunFolder(tmp_path)):
        warnings.simplefilter("always")
        warnings.warn("mind the gap", UserWarning, stacklevel=1)
    assert [str(each.message) for each in shown] == ["mind the gap"]
    assert "WARNING UserWarning: mind the gap" in (tmp_path / "log.txt").read_text()


def test_folder_that_is_gone_is_one_sentence(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageError, match=r"log\.txt cannot be written: No such file"),
        logged(RunFolder(tmp_path / "a")),
    ):
        pass


def test_ends_of_trials_say_what_became_of_them(tmp_path: Path) -> None:
    with logged(RunFolder(tmp_path)):
        log_end({"trial": 3, "state": "complete", "metric": 0.5, "sparsity": 0.25, "seconds": 1.25})
        log_end({"trial": 6, "state": "complete", "metric": 0.5, "sparsity": 0.25, "seconds": None})
        log_end({"trial": 4, "state": "failed", "reason": "the loss became nan in epoch 2"})
        log_end({"trial": 5, "state": "paused", "reason": ""})
    assert [line.split(" ", 1)[1] for line in lines_of(tmp_path)] == [
        "INFO trial 3 ended: metric 0.5 at sparsity 25.000%, 1.2 s",
        "INFO trial 6 ended: metric 0.5 at sparsity 25.000%",
        "WARNING trial 4 ended: failed, the loss became nan in epoch 2",
        "WARNING trial 5 ended: paused",
    ]


def test_study_logs_its_start_every_trial_and_its_end(tiny_run: tuple[Path, str]) -> None:
    lines = lines_of(tiny_run[0])
    assert all(LINE.match(line) for line in lines)
    assert "\x1b" not in "".join(lines)
    words = [line.split(" ", 2)[2] for line in lines if " DEBUG " not in line]
    assert words[0].startswith("sca-search ")
    assert words[1] == "3 trials to run, 0 finished before"
    for trial in range(3):
        assert words[2 + 2 * trial].startswith(f"trial {trial} starts, planned sparsity")
        assert words[3 + 2 * trial].startswith(f"trial {trial} ended: metric")
    assert words[8].startswith("ended: trial ")
    # 4 dense epochs; 2 layers; 3 trials and 1 refit of 2 + 5
    assert sum(" DEBUG " in line for line in lines) == 4 + 2 + 4 * 7


def test_verbose_shows_the_log_and_usually_nobody_sees_it(capsys: pytest.CaptureFixture[str]) -> None:
    configure_output(verbose=True)
    logger.info("seen")
    configure_output()
    logger.warning("not seen")
    assert re.fullmatch(r"\d\d:\d\d:\d\d seen\n", capsys.readouterr().err)


@pytest.mark.e2e
def test_resumed_study_with_workers_goes_on_with_its_log(tmp_path: Path) -> None:
    first = sca_search("--name", "a", *TINY, "-v", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    assert "trial 2 ended" in first.stderr
    before = lines_of(tmp_path / "runs" / "a")
    again = sca_search("--name", "a", *TINY, "--trials", "5", "--workers", "2", "--resume", "-q", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    after = lines_of(tmp_path / "runs" / "a")
    assert after[: len(before)] == before
    assert sum(" starts, " in line for line in after) == 5


@pytest.mark.e2e
def test_failed_trial_is_logged_with_its_traceback(tmp_path: Path) -> None:
    """A learning rate that no network survives."""
    study = "[search.space]\nlearning_rate = 1e30\nlatent_learning_rate = 1e30\n"
    (tmp_path / "a.toml").write_text(study)
    done = sca_search("a.toml", "--name", "a", *TINY, "--trials", "1", cwd=tmp_path)
    text = (tmp_path / "runs" / "a" / "log.txt").read_text()
    assert done.returncode == 1, done.stderr
    assert "WARNING trial 0 failed" in text
    assert "DivergenceError" in text
    assert "WARNING trial 0 ended: failed" in text
