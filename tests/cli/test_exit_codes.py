"""Exit codes and the one sentence of an error, in words and as JSON."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from sca_search.cli.options import EXIT_CODES, exit_code_of
from sca_search.errors import SpecError, StorageError
from sca_search.system.console import configure_output
from tests.support.command import TINY, sca_search

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def usual_manner():
    yield
    configure_output()


def raising(error: BaseException):
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError("a.toml: is wrong"), 2),
        (StorageError("a cannot be written"), 2),
        (OSError(errno.ENOSPC, "No space left on device", "a"), 2),
        (typer.BadParameter("no"), 2),
        (ZeroDivisionError("internal"), 70),
        (OSError(errno.ECONNRESET, "Connection reset"), 70),
        (KeyboardInterrupt(), 130),
        (typer.Abort(), 130),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141),
    ],
)
def test_error_has_its_exit_code(error: BaseException, code: int) -> None:
    assert exit_code_of(raising(error)) == code


@pytest.mark.parametrize(("returned", "code"), [(None, 0), (0, 0), (1, 1), (130, 130)])
def test_command_that_ends_by_itself_has_the_code_it_gives(returned: int | None, code: int) -> None:
    assert exit_code_of(lambda: returned) == code


def test_only_a_fault_of_ours_shows_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of(raising(SpecError("a.toml: is wrong")))
    assert capsys.readouterr().err == "a.toml: is wrong\n"
    exit_code_of(raising(ZeroDivisionError("internal")))
    assert "Traceback" in capsys.readouterr().err


def invalid() -> None:
    try:
        {}["missing"]
    except KeyError as error:
        raise SpecError("a.py: cannot be imported") from error


def test_verbose_shows_the_cause_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    exit_code_of(invalid)
    assert capsys.readouterr().err == "a.py: cannot be imported\n"
    configure_output(verbose=True)
    exit_code_of(invalid)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert "KeyError: 'missing'" in lines
    assert lines[-1] == "a.py: cannot be imported"


@pytest.mark.parametrize(
    ("error", "document"),
    [
        (SpecError("a: is wrong\nb: is wrong"), {"error": "a: is wrong\nb: is wrong", "exit_code": 2}),
        (ZeroDivisionError("x"), {"error": "internal error: ZeroDivisionError('x')", "exit_code": 70}),
        (KeyboardInterrupt(), {"error": "interrupted", "exit_code": 130}),
    ],
)
def test_error_is_the_one_document_of_a_script(
    error: BaseException, document: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    configure_output(json=True)
    exit_code_of(raising(error))
    assert json.loads(capsys.readouterr().out) == document


def test_unknown_flag_is_rejected_in_one_sentence_with_the_near_ones(run) -> None:
    outcome = run("--trails", "3")
    assert outcome.returncode == 2
    assert outcome.stdout == ""
    (line,) = outcome.stderr.splitlines()
    assert "--trails" in line
    assert "--trials" in line


def test_unknown_flag_is_an_error_document_for_a_script(run) -> None:
    outcome = run("show", "--json", "--trails")
    assert outcome.returncode == 2
    document = json.loads(outcome.stdout)
    assert document["exit_code"] == 2
    assert "--trails" in document["error"]


def test_flag_for_a_number_rejects_a_word(run) -> None:
    outcome = run("--trials", "many")
    assert outcome.returncode == 2
    (line,) = outcome.stderr.splitlines()
    assert "--trials" in line
    assert "integer" in line


def test_help_and_documentation_list_every_exit_code(run) -> None:
    shown = " ".join(run("--help").stdout.split())
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning.replace('`', '')}" in shown
        assert f"| {code} | {meaning} |" in page


def test_reader_that_leaves_early_is_no_failure_of_the_goal(tiny_run: tuple[Path, str]) -> None:
    show = [sys.executable, "-m", "sca_search", "show", str(tiny_run[0])]
    with subprocess.Popen(show, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as done:
        assert done.stdout is not None
        assert done.stderr is not None
        done.stdout.close()
        output = done.stderr.read()
    assert done.returncode == 141
    assert output == ""


@pytest.mark.e2e
def test_unmet_goal_ends_with_one_and_says_so_to_a_script(tmp_path: Path) -> None:
    """No network of 2 + 4 epochs has every answer right and a single weight in 500."""
    done = sca_search("--min-accuracy", "1.0", "--json", *TINY, "--trials", "1", "--epochs", "1", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert (document["met"], document["stopped"], document["chosen"]) == (False, False, None)
    assert document["reason"].startswith("No trial meets the goal")
    assert document["reason"] in done.stderr
