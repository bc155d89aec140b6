"""Shell completion, called as shells call it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from sca_search.config.names import DATA, MODELS
from sca_search.data import DATA_NAMES
from sca_search.models import MODELS as KNOWN_MODELS

# The console script, under its own name: completion goes by it.
PROGRAM = f"""#!{sys.executable}
import sys
sys.argv[0] = "sca-search"
from sca_search.cli.app import main
try:
    main()
finally:
    heavy = {{"torch", "optuna", "plotly", "sklearn", "pandas"}} & set(sys.modules)
    if heavy:
        print("HEAVY", heavy)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, two runs, a folder that is none, and a study file."""
    folder = tmp_path_factory.mktemp("shell")
    for run in ("digits-one", "digits-two"):
        (folder / "runs" / run).mkdir(parents=True)
        (folder / "runs" / run / "study.toml").touch()
    (folder / "runs" / "photos").mkdir()
    (folder / "studies").mkdir()
    (folder / "studies" / "mine.toml").touch()
    (folder / "shown.toml").touch()
    program = folder / "bin" / "sca-search"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    program.chmod(0o755)
    return folder


def environment(place: Path, **more: str) -> dict[str, str]:
    return os.environ | {"PATH": f"{place / 'bin'}:{os.environ['PATH']}"} | more


def completed(place: Path, *words: str) -> list[str]:
    """What bash is offered for the last word."""
    variables = {
        "_SCA_SEARCH_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["sca-search", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        ["sca-search"], cwd=place, env=environment(place, **variables), capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_names_are_those_that_networks_and_data_know() -> None:
    assert set(MODELS) == set(KNOWN_MODELS)
    # A user's own function has no name to offer.
    known = {name.partition(":")[0] for name in DATA_NAMES if not name.endswith(":function")}
    assert {name.partition(":")[0] for name in DATA} == known


def test_first_word_may_be_a_command_or_a_study_file(place: Path) -> None:
    offered = completed(place, "sh")
    assert offered == ["show", "shown.toml"]
    assert {"run", "init", "export", "verify", "dashboard", "studies/mine.toml"} <= set(completed(place, ""))


def test_after_a_command_there_is_no_other(place: Path) -> None:
    assert completed(place, "run", "sh") == ["shown.toml"]


def test_flags_of_the_command_that_is_meant_by_default(place: Path) -> None:
    assert completed(place, "--target") == ["--target-sparsity"]
    assert completed(place, "export", "--fo") == ["--format", "--force"]


def test_values_of_networks_and_data(place: Path) -> None:
    assert completed(place, "--model", "vgg") == ["vgg-s", "vgg-variate"]
    assert completed(place, "init", "--data", "cifar") == ["cifar10", "cifar100"]
    assert completed(place, "--metric", "macro") == ["macro-f1"]
    assert completed(place, "--groups", "") == ["layer", "stage", "all"]


def test_tables_of_the_paper(place: Path) -> None:
    assert completed(place, "rep") == ["reproduce"]
    assert completed(place, "rer") == ["rerun"]
    assert completed(place, "reproduce", "") == ["1", "2", "3", "4", "5", "6", "7"]


def test_run_folders_are_those_that_hold_a_study(place: Path) -> None:
    expected = ["runs/digits-one", "runs/digits-two"]
    assert completed(place, "show", "") == expected
    assert completed(place, "export", "runs/dig") == expected
    assert completed(place, "-q", "dashboard", "runs/digits-o") == ["runs/digits-one"]
    assert completed(place, "show", "nowhere/") == []


def test_zsh_and_fish_are_offered_the_same(place: Path) -> None:
    words = {"_TYPER_COMPLETE_ARGS": "sca-search --model resnet"}
    fish = words | {"_SCA_SEARCH_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    zsh = words | {"_SCA_SEARCH_COMPLETE": "complete_zsh"}
    for variables in (fish, zsh):
        output = subprocess.check_output(["sca-search"], cwd=place, env=environment(place, **variables), text=True)
        assert "resnet18" in output
        assert "resnet20" in output
        assert "alexnet" not in output


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_for_each_shell_is_shown(place: Path, shell: str) -> None:
    known = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # else it is that of the shell around
    script = subprocess.check_output(
        ["sca-search", "--show-completion", shell], cwd=place, env=environment(place, **known), text=True
    )
    assert f"complete_{shell}" in script
    assert "_SCA_SEARCH_COMPLETE" in script


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completes_with_the_script_that_is_shown(place: Path) -> None:
    """As it would at the prompt: the script is read, and its function called with the words typed so far."""
    session = """
        eval "$(_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION=1 sca-search --show-completion bash)"
        COMP_WORDS=(sca-search show runs/digits-t) COMP_CWORD=2
        $(complete -p sca-search | sed 's/.*-F \\([^ ]*\\).*/\\1/') sca-search
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    output = subprocess.check_output(["bash", "--norc", "-c", session], cwd=place, env=environment(place), text=True)
    assert output.split() == ["runs/digits-two"]


@pytest.mark.parametrize("word", ["--help", "--version"])
def test_help_and_version_answer_without_what_is_heavy(place: Path, word: str) -> None:
    output = subprocess.check_output(["sca-search", word], cwd=place, env=environment(place), text=True)
    assert "sca-search" in output
    assert "HEAVY" not in output  # nor in what is completed above, where every word is compared
