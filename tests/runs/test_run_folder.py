"""Run folders: their names, what is never overwritten, what may go on, and one worker at a time."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

from sca_search.config.load import resolve
from sca_search.config.storage_url import Shared
from sca_search.config.study import StudySpec
from sca_search.errors import InputError, RunError, StorageError
from sca_search.runs.folder import RunFolder, joined_run, new_run, resumed_run
from sca_search.study.storage import local_address

BASE = "digits-lenet-small-s0.5"

TRY_TO_LOCK = """
import sys
from pathlib import Path
from sca_search.errors import RunError
from sca_search.runs.folder import RunFolder

try:
    with RunFolder(Path(sys.argv[1])).locked():
        print("locked", end="")
except RunError as error:
    print(error, end="")
"""
HOLD_THE_LOCK = """
import sys
from pathlib import Path
from sca_search.runs.folder import RunFolder

with RunFolder(Path(sys.argv[1])).locked():
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def spec_of(tmp_path):
    """A spec with its runs in a folder of the test's own."""

    def make(**flags) -> StudySpec:
        return resolve(None, {"out": tmp_path / "runs", **flags})

    return make


def other_process(program, path):
    return subprocess.Popen(
        [sys.executable, "-c", program, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )


def message(caught):
    return str(caught.value)


# A new run


def test_unnamed_runs_are_numbered(spec_of, tmp_path):
    names = [new_run(spec_of()).path.relative_to(tmp_path).as_posix() for _ in range(3)]
    assert names == [f"runs/{BASE}", f"runs/{BASE}-2", f"runs/{BASE}-3"]
    assert new_run(spec_of(target_sparsity=0.9)).path.name == "digits-lenet-small-s0.9"


def test_an_unnamed_run_steps_over_whatever_has_its_name(spec_of, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / BASE).write_text("a file of the user's")
    assert new_run(spec_of()).path.name == f"{BASE}-2"
    assert (tmp_path / "runs" / BASE).read_text() == "a file of the user's"


def test_a_new_run_holds_its_spec(spec_of):
    spec = spec_of(name="mine", target_sparsity=0.75, trials=3)
    run = new_run(spec)
    assert run.path == spec.out / "mine"
    assert run.spec() == spec
    assert sorted(entry.name for entry in run.path.iterdir()) == ["about.json", "study.toml"]


def test_a_named_run_may_use_an_empty_folder(spec_of, tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    assert new_run(spec_of(name="mine")).spec_file.is_file()


def test_a_named_run_is_not_overwritten(spec_of):
    run = new_run(spec_of(name="mine"))
    before = run.spec_file.read_bytes()
    with pytest.raises(RunError) as caught:
        new_run(spec_of(name="mine", trials=99))
    assert message(caught).startswith(f"{run.path}: holds this study already; ")
    assert "--resume" in message(caught)
    with pytest.raises(RunError) as caught:
        new_run(spec_of(name="mine", seed=5))
    assert message(caught).startswith(f"{run.path}: holds another study; ")
    assert "--name" in message(caught)
    assert run.spec_file.read_bytes() == before


def test_a_folder_of_other_files_is_not_taken(spec_of, tmp_path):
    folder = tmp_path / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "holiday.jpg").write_text("photo")
    with pytest.raises(RunError, match="holds files that are not a study"):
        new_run(spec_of(name="mine"))
    assert [entry.name for entry in folder.iterdir()] == ["holiday.jpg"]


def test_a_file_of_that_name_is_not_taken(spec_of, tmp_path):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").write_text("a file of the user's")
    with pytest.raises((RunError, StorageError)) as caught:
        new_run(spec_of(name="mine"))
    assert message(caught).startswith(f"{tmp_path / 'runs' / 'mine'}: ")
    assert (tmp_path / "runs" / "mine").read_text() == "a file of the user's"


@pytest.mark.parametrize("name", [None, "mine"])
def test_an_out_folder_that_cannot_be_made_is_the_machines_fault(spec_of, tmp_path, name):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StorageError, match="the run folder cannot be created: Not a directory"):
        new_run(spec_of(out=tmp_path / "taken", name=name))


# Killed while the folder was created

ABOUT, ADDRESS = '{"format": 2}', '{"storage": "postgresql://me@db/studies"}'
KILLED_AT = [
    {".about.4194305-0a1b2c3d.json": '{"fo'},
    {"about.json": ABOUT},
    {"about.json": ABOUT, ".study.4194305-0a1b2c3d.toml": "[goal]"},
    {"about.json": ABOUT, "shared.json": ADDRESS},
    {"shared.json": ADDRESS},
]  # no process has that number: it is beyond the largest


def left(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content)


@pytest.mark.parametrize("files", KILLED_AT)
def test_a_folder_whose_creation_was_killed_is_used_and_cleaned(spec_of, tmp_path, files):
    left(tmp_path / "runs" / "mine", files)
    run = new_run(spec_of(name="mine"))
    assert run.spec() == spec_of(name="mine")
    assert sorted(entry.name for entry in run.path.iterdir()) == ["about.json", "study.toml"]
    assert resumed_run(spec_of(name="mine")) == run


@pytest.mark.parametrize("files", KILLED_AT)
def test_a_shared_folder_whose_creation_was_killed_is_joined(spec_of, tmp_path, files):
    left(tmp_path / "runs" / "mine", files)
    run = joined_run(spec_of(name="mine"), Shared("postgresql://me@db/studies"))
    assert run.spec() == spec_of(name="mine")
    assert run.shared_file.is_file()


@pytest.mark.parametrize("name", [None, "mine"])
@pytest.mark.parametrize("files", KILLED_AT)
def test_there_is_nothing_to_resume_where_creation_was_killed(spec_of, tmp_path, files, name):
    left(tmp_path / "runs" / (name or BASE), files)
    assert resumed_run(spec_of(name=name)) is None


@pytest.mark.parametrize("files", [{"about.json": '{"title": "mine"}'}, {"about.json": ABOUT, ".hidden": ""}])
def test_files_of_the_same_name_that_are_not_ours_are_not_taken(spec_of, tmp_path, files):
    left(tmp_path / "runs" / "mine", files)
    with pytest.raises(RunError, match="holds files that are not a study"):
        new_run(spec_of(name="mine"))
    assert {entry.name: entry.read_text() for entry in (tmp_path / "runs" / "mine").iterdir()} == files


# Going on


def test_resume_picks_the_newest_unnamed_run(spec_of):
    for _ in range(3):
        newest = new_run(spec_of())
    assert resumed_run(spec_of()) == newest
    assert newest.path.name == f"{BASE}-3"


def test_resume_counts_beyond_nine(spec_of):
    for _ in range(11):
        newest = new_run(spec_of())
    assert newest.path.name == f"{BASE}-11"
    assert resumed_run(spec_of()) == newest


def test_resume_finds_the_newest_where_earlier_runs_were_removed(spec_of):
    first, second = new_run(spec_of()), new_run(spec_of())
    shutil.rmtree(first.path)
    assert resumed_run(spec_of()) == second


def test_resume_picks_the_newest_that_the_same_command_made(spec_of):
    ours = new_run(spec_of(seed=0))
    new_run(spec_of(seed=1))  # the same data, network and target, so the same base name
    assert resumed_run(spec_of(seed=0)) == ours


def test_resume_takes_the_run_named(spec_of):
    mine = new_run(spec_of(name="mine"))
    new_run(spec_of(name="other"))
    assert resumed_run(spec_of(name="mine")) == mine


def test_resume_allows_what_may_change_and_leaves_the_file_to_whoever_holds_the_lock(spec_of):
    first = spec_of(name="mine", trials=5)
    run = new_run(first)
    again = spec_of(name="mine", trials=40, workers=3, threads=1, time_budget="1h", refits=0)
    assert resumed_run(again) == run
    assert run.spec() == first


def test_resume_refuses_another_study_and_names_the_keys(spec_of):
    run = new_run(spec_of(name="mine"))
    before = run.spec_file.read_bytes()
    with pytest.raises(RunError) as caught:
        resumed_run(spec_of(name="mine", seed=3, epochs=2, trials=99))
    assert message(caught).startswith(f"{run.path}: holds another study, it differs in seed, train.epochs;")
    assert "trials" not in message(caught)
    assert run.spec_file.read_bytes() == before


def test_resume_refuses_another_study_under_an_unnamed_run(spec_of):
    run = new_run(spec_of())
    with pytest.raises(RunError) as caught:
        resumed_run(spec_of(form="paper"))
    assert message(caught).startswith(f"{run.path}: holds another study, it differs in search.form;")


@pytest.mark.parametrize("name", [None, "mine"])
def test_resume_without_a_run_says_so_and_makes_nothing(spec_of, tmp_path, name):
    with pytest.raises(RunError) as caught:
        resumed_run(spec_of(name=name))
    assert message(caught) == f"{tmp_path / 'runs' / (name or BASE)}: there is no run to resume"
    assert not (tmp_path / "runs").exists()


def test_resume_of_a_folder_without_a_study_says_so(spec_of, tmp_path):
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    with pytest.raises(RunError) as caught:
        resumed_run(spec_of(name="mine"))
    assert message(caught) == f"{tmp_path / 'runs' / 'mine'}: is not a run folder, it has no study.toml"


def test_resume_of_a_broken_study_is_the_users_matter(spec_of):
    run = new_run(spec_of(name="mine"))
    run.spec_file.write_text("seed = ")
    with pytest.raises(InputError, match="is not valid TOML"):
        resumed_run(spec_of(name="mine"))


# One worker at a time


def test_a_second_lock_is_refused(tmp_path):
    run = RunFolder(tmp_path)
    with run.locked():
        with pytest.raises(RunError) as caught, run.locked():
            pass
        assert message(caught) == f"{tmp_path}: is in use by another process"
    with run.locked():
        pass  # free again


def test_a_foreign_lock_counts(tmp_path):
    with (
        FileLock(tmp_path / ".lock"),
        pytest.raises(RunError, match="is in use by another process"),
        RunFolder(tmp_path).locked(),
    ):
        pass


def test_another_process_is_shut_out_and_let_in_again(tmp_path):
    with RunFolder(tmp_path).locked():
        told, _ = other_process(TRY_TO_LOCK, tmp_path).communicate(timeout=60)
        assert told == f"{tmp_path}: is in use by another process"
    told, _ = other_process(TRY_TO_LOCK, tmp_path).communicate(timeout=60)
    assert told == "locked"


def test_a_killed_process_leaves_no_lock(tmp_path):
    holder = other_process(HOLD_THE_LOCK, tmp_path)
    try:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(RunError, match="is in use by another process"), RunFolder(tmp_path).locked():
            pass
    finally:
        holder.kill()
        holder.communicate()
    with RunFolder(tmp_path).locked():
        pass


def test_an_error_while_locked_comes_through_and_frees_the_lock(tmp_path):
    run = RunFolder(tmp_path)
    with pytest.raises(KeyError, match="lost"), run.locked():
        raise KeyError("lost")
    with run.locked():
        pass


def test_another_locks_timeout_is_not_taken_for_ours(tmp_path):
    with pytest.raises(Timeout), RunFolder(tmp_path).locked():
        raise Timeout("elsewhere.lock")


# Paths


def test_paths_lie_in_the_run():
    run = RunFolder(Path("runs/x"))
    assert run.spec_file == Path("runs/x/study.toml")
    assert run.candidate(7) == Path("runs/x/candidates/007")
    assert run.candidate(1234) == Path("runs/x/candidates/1234")
    assert run.candidate(7, refit=2) == Path("runs/x/candidates/007/refit-2")
    assert local_address(run) == f"sqlite:///{Path('runs/x/study.db').resolve()}"
