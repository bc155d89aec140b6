"""A stored run folder opens in every command; one of another format is rejected in one sentence."""

import json
import shutil
from pathlib import Path

import pytest

from sca_search.errors import RunError
from sca_search.export.state_dict import counted_sparsity
from sca_search.runs.folder import FORMAT, RunFolder
from sca_search.runs.log import note_command
from tests.support.make_run_folder import RUN_FOLDER, STUDY


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A copy where the command line's default looks for it."""
    return shutil.copytree(RUN_FOLDER, tmp_path / "runs" / "run-folder")


def with_about(run: Path, about: object) -> Path:
    (run / "about.json").write_text(json.dumps(about), encoding="utf-8")
    return run


def test_stored_folder_is_small_and_contains_no_local_path() -> None:
    files = [path for path in RUN_FOLDER.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    for path in files:
        content = path.read_bytes()
        assert not any(place in content for place in (b"/home", b"/tmp", b"/root", b"/opt", b"/work", b"/usr")), path
    assert json.loads((RUN_FOLDER / "about.json").read_text())["format"] == FORMAT


def test_stored_run_is_shown(run, stored: Path) -> None:
    shown = run("show", str(stored), "--json")
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stdout)
    assert document["states"] == {"complete": 2}
    assert document["chosen"] == json.loads((RUN_FOLDER / "summary.json").read_text())["chosen"]["trial"]


def test_stored_run_has_a_page(run, stored: Path) -> None:
    made = run("dashboard", str(stored), "--no-open")
    assert made.returncode == 0, made.stderr
    assert "run-folder" in (stored / "dashboard.html").read_text(encoding="utf-8")


@pytest.mark.e2e
def test_stored_run_is_exported_and_verified(run, stored: Path) -> None:
    exported = run("export", str(stored), "--trial", "1", "--format", "packed", "--out", "model", "--json")
    assert exported.returncode == 0, exported.stderr
    verified = run("verify", "model", "--json")
    assert (verified.returncode, json.loads(verified.stdout)["holds"]) == (0, True), verified.stderr


def test_stored_run_is_resumed(run, stored: Path) -> None:
    before = (stored / "candidates" / "001" / "model.safetensors").read_bytes()
    resumed = run(*STUDY, "--trials", "3", "--resume", "--json")
    assert resumed.returncode == 0, resumed.stderr
    assert json.loads(resumed.stdout)["states"] == {"complete": 3}
    assert (stored / "candidates" / "001" / "model.safetensors").read_bytes() == before
    record = json.loads((stored / "candidates" / "002" / "candidate.json").read_text())
    assert counted_sparsity(stored / "candidates" / "002" / "model.safetensors") == record["sparsity"]
    about = json.loads((stored / "about.json").read_text())
    assert (about["format"], len(about["commands"])) == (FORMAT, 2)


@pytest.mark.parametrize(("number", "age"), [(FORMAT + 1, "a newer"), (FORMAT - 1, "an older")])
@pytest.mark.parametrize(
    "command",
    [("show",), ("export",), ("dashboard", "--no-open"), ("rerun",), ("features",)],
    ids=lambda words: words[0],
)
def test_run_of_another_format_is_rejected_in_one_sentence(
    run, stored: Path, command: tuple[str, ...], number: int, age: str
) -> None:
    with_about(stored, {"format": number})
    name, *flags = command
    rejected = run(name, str(stored), *flags)
    assert rejected.returncode == 2
    sentence = (
        f"{stored}: was written by {age} sca-search, as a run folder of format {number}; this version reads format "
        f"{FORMAT}"
    )
    assert sentence in rejected.stderr.splitlines()
    assert not (stored / "dashboard.html").exists()


@pytest.mark.parametrize("number", [FORMAT - 1, FORMAT + 1])
def test_run_of_another_format_is_not_resumed(run, stored: Path, number: int) -> None:
    with_about(stored, {"format": number})
    before = (stored / "study.toml").read_bytes()
    rejected = run(*STUDY, "--trials", "3", "--resume")
    assert (rejected.returncode, "er sca-search, as a run folder of format" in rejected.stderr) == (2, True)
    assert (stored / "study.toml").read_bytes() == before


def test_run_without_a_number_is_of_the_first_format(stored: Path) -> None:
    with pytest.raises(RunError, match="an older sca-search, as a run folder of format 1"):
        RunFolder(with_about(stored, {"commands": []})).spec()
    (stored / "about.json").unlink()
    with pytest.raises(RunError, match="an older sca-search, as a run folder of format 1"):
        RunFolder(stored).spec()


@pytest.mark.parametrize("number", [0, -1, "2", 2.0, True, None, [], 10**400], ids=range(8))
def test_format_that_is_not_a_number_of_ours_is_rejected(stored: Path, number: object) -> None:
    with pytest.raises(RunError) as caught:
        RunFolder(with_about(stored, {"format": number})).spec()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("content", ["[]", "1", '{"commands": 5}', '{"commands": {"a": 1}}'])
def test_commands_are_noted_where_the_old_ones_are_damaged(tmp_path: Path, content: str) -> None:
    run = RunFolder(tmp_path)
    run.about_file.write_text(content, encoding="utf-8")
    note_command(run, ["--front"], 3)
    about = json.loads(run.about_file.read_text())
    assert [each["command"] for each in about["commands"]] == ["sca-search --front"]
    assert (about["format"], about["threads"]) == (FORMAT, 3)
