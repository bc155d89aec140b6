"""A run folder that an earlier version wrote still opens; one of a later version is refused.

tests/run-folder-1 was made by sca-search 0.1.0 with the command in its about.json. The page, the chosen model and the
locks were then left out: they are made anew. Never make it again: it stands for what users have.
"""

import json
import shutil
from pathlib import Path

import pytest

from sca_search.errors import RunError
from sca_search.export.state_dict import counted_sparsity
from sca_search.runs.folder import RunFolder
from sca_search.runs.provenance import note_command
from sca_search.runs.run_format import FORMAT

KEPT = Path(__file__).parents[1] / "support" / "run-folder-1"
# The command that made it.
STUDY = ("--target-sparsity", "0.5", "--name", "run-folder-1", "--refits", "0", "--epochs", "2", "--dense-epochs", "6")
STUDY += ("--threads", "1", "--train-limit", "100", "--batch", "10")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy where the command line's default looks for it."""
    return shutil.copytree(KEPT, tmp_path / "runs" / "run-folder-1")


def with_about(run: Path, about: object) -> Path:
    (run / "about.json").write_text(json.dumps(about), encoding="utf-8")
    return run


def test_the_kept_folder_is_small_and_tells_nothing_of_where_it_was_made() -> None:
    files = [path for path in KEPT.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    for path in files:
        content = path.read_bytes()
        assert not any(place in content for place in (b"/home", b"/tmp", b"/root", b"/opt", b"/work", b"/usr")), path
    assert json.loads((KEPT / "about.json").read_text())["format"] == 1


def test_an_old_run_is_shown(run, old: Path) -> None:
    shown = run("show", str(old), "--json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert document["states"] == {"complete": 2}
    assert document["chosen"] == json.loads((KEPT / "summary.json").read_text())["chosen"]["trial"]


def test_an_old_run_has_a_page(run, old: Path) -> None:
    made = run("dashboard", str(old), "--no-open")
    assert made.returncode == 0, made.stderr
    assert "run-folder-1" in (old / "dashboard.html").read_text(encoding="utf-8")


@pytest.mark.e2e
def test_an_old_run_is_exported_and_verified(run, old: Path) -> None:
    exported = run("export", str(old), "--trial", "1", "--format", "packed", "--out", "model", "--json")
    assert exported.returncode == 0, exported.stderr
    verified = run("verify", "model", "--json")
    assert (verified.returncode, json.loads(verified.stdout)["holds"]) == (0, True), verified.stderr


def test_an_old_run_goes_on(run, old: Path) -> None:
    before = (old / "candidates" / "001" / "model.safetensors").read_bytes()
    resumed = run(*STUDY, "--trials", "3", "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["states"] == {"complete": 3}
    assert (old / "candidates" / "001" / "model.safetensors").read_bytes() == before
    record = json.loads((old / "candidates" / "002" / "candidate.json").read_text())
    assert counted_sparsity(old / "candidates" / "002" / "model.safetensors") == record["sparsity"]
    about = json.loads((old / "about.json").read_text())
    assert (about["format"], len(about["commands"])) == (FORMAT, 2)


@pytest.mark.parametrize(
    "command",
    [("show",), ("export",), ("dashboard", "--no-open"), ("rerun",), ("features",)],
    ids=lambda words: words[0],
)
def test_a_run_of_a_later_version_is_refused_in_one_sentence(run, old: Path, command: tuple[str, ...]) -> None:
    with_about(old, {"format": FORMAT + 1})
    name, *flags = command
    refused = run(name, str(old), *flags)
    assert refused.returncode == 2
    sentence = f"{old}: was written by a newer sca-search, as a run folder of format 2; this one reads up to 1"
    assert sentence in refused.stderr.splitlines()
    assert not (old / "dashboard.html").exists()


def test_a_run_of_a_later_version_does_not_go_on(run, old: Path) -> None:
    with_about(old, {"format": FORMAT + 1})
    before = (old / "study.toml").read_bytes()
    refused = run(*STUDY, "--trials", "3", "--resume")
    assert (refused.returncode, "newer sca-search" in refused.stderr) == (2, True)
    assert (old / "study.toml").read_bytes() == before


def test_a_run_without_a_number_is_of_the_first_format(old: Path) -> None:
    assert RunFolder(with_about(old, {"commands": []})).spec().name == "run-folder-1"
    (old / "about.json").unlink()
    assert RunFolder(old).spec().name == "run-folder-1"


@pytest.mark.parametrize("given", [0, -1, "1", 1.0, True, None, [], 10**400], ids=range(8))
def test_a_format_that_is_no_number_of_ours_is_refused(old: Path, given: object) -> None:
    with pytest.raises(RunError) as caught:
        RunFolder(with_about(old, {"format": given})).spec()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("content", ["[]", "1", '{"commands": 5}', '{"commands": {"a": 1}}'])
def test_commands_are_noted_where_the_old_ones_are_damaged(tmp_path: Path, content: str) -> None:
    run = RunFolder(tmp_path)
    run.about_file.write_text(content, encoding="utf-8")
    note_command(run, ["--front"], 3)
    about = json.loads(run.about_file.read_text())
    assert [each["command"] for each in about["commands"]] == ["sca-search --front"]
    assert (about["format"], about["threads"]) == (1, 3)
