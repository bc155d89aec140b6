import contextlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from sca_search.config.references import expand_home
from sca_search.errors import InputError, StorageError
from sca_search.system.files import (
    atomic_path,
    is_temporary,
    new_folder,
    remove_leftovers,
    staged_files,
    write_json_atomic,
    write_text_atomic,
)

# Files of this process may not grow beyond 1000 bytes: a disk that is full, without filling one.
SMALL_DISK = """
import resource, signal, sys
import numpy, safetensors.numpy
from sca_search.errors import StorageError
from sca_search.system.files import atomic_path, write_text_atomic

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    {write}
except StorageError as error:
    print(error, end="")
"""
KILLED_REPLACEMENT = """
import os, sys
from pathlib import Path
from sca_search.system.files import new_folder

renamed, rename = [], Path.rename

def killed(path, target):
    if len(renamed) == {killed_at}:
        os._exit(7)
    renamed.append(path)
    return rename(path, target)

Path.rename = killed
with new_folder(Path(sys.argv[1])) as new:
    (new / "c").mkdir()
    for name in ("a", "b", "c/d"):
        (new / name).write_text("new")
"""
WRITE_TEXT = "write_text_atomic(sys.argv[1], 'x' * 5000)"
WRITE_TENSORS = "\n    ".join(
    [
        "with atomic_path(sys.argv[1]) as temporary:",
        "    safetensors.numpy.save_file({'weight': numpy.zeros(5000)}, temporary)",
    ]
)


def names_in(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_write_text_replaces_the_file(tmp_path):
    path = tmp_path / "note.txt"
    path.write_text("old and longer")
    write_text_atomic(path, "λ\r\n")
    assert path.read_bytes() == b"\xce\xbb\r\n"
    assert names_in(tmp_path) == ["note.txt"]


def test_write_text_escapes_what_is_not_unicode(tmp_path):
    write_text_atomic(tmp_path / "note.txt", "a\udcffb")
    assert (tmp_path / "note.txt").read_text() == "a\\udcffb"


def test_write_json_can_be_read_back(tmp_path):
    value = {"name": "α", "rates": [0.1, 1e-300], "chosen": None}
    write_json_atomic(tmp_path / "spec.json", value)
    assert json.loads((tmp_path / "spec.json").read_text()) == value


def test_write_json_rejects_nan_and_leaves_the_old_file(tmp_path):
    (tmp_path / "spec.json").write_text("{}")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json_atomic(tmp_path / "spec.json", float("nan"))
    assert (tmp_path / "spec.json").read_text() == "{}"


def test_atomic_path_shows_nothing_before_the_end(tmp_path):
    path = tmp_path / "weights.safetensors"
    with atomic_path(path) as temporary:
        safetensors.numpy.save_file({"weight": np.arange(3)}, temporary)
        assert not path.exists()
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".safetensors"
    assert safetensors.numpy.load_file(path)["weight"].tolist() == [0, 1, 2]
    assert names_in(tmp_path) == ["weights.safetensors"]


@pytest.mark.parametrize("error", [KeyError("lost"), KeyboardInterrupt()])
def test_atomic_path_removes_the_temporary_file_on_any_failure(tmp_path, error):
    with pytest.raises(type(error)), atomic_path(tmp_path / "a.txt") as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise error
    assert names_in(tmp_path) == []


def test_write_text_names_a_missing_folder(tmp_path):
    path = tmp_path / "gone" / "a.txt"
    with pytest.raises(StorageError) as caught:
        write_text_atomic(path, "text")
    assert str(caught.value) == f"{path} cannot be written: No such file or directory"


def test_write_text_does_not_replace_a_folder(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(StorageError, match="cannot be written: Is a directory"):
        write_text_atomic(tmp_path / "a", "text")
    assert names_in(tmp_path) == ["a"]


@pytest.mark.skipif(sys.platform == "win32", reason="RLIMIT_FSIZE is POSIX")
@pytest.mark.parametrize("write", [WRITE_TEXT, WRITE_TENSORS], ids=["text", "safetensors"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(tmp_path, write):
    path = tmp_path / "kept.txt"
    path.write_text("old")
    run = subprocess.run(
        [sys.executable, "-c", SMALL_DISK.format(write=write), str(path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert run.stderr == ""
    assert run.stdout == f"{path} cannot be written: File too large"
    assert path.read_text() == "old"
    assert names_in(tmp_path) == ["kept.txt"]


def test_leftovers_of_killed_processes_are_removed_and_nothing_else(tmp_path):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    leftovers = [f".a.{killed.pid}-0a1b2c3d.json", f"deep/.b.{killed.pid}-0a1b2c3d", f".c.x.{killed.pid}-0a1b2c3d.toml"]
    others = [f".d.{os.getpid()}-0a1b2c3d.json", ".lock", ".mine.1-2.txt", f"e.{killed.pid}-0a1b2c3d.json"]
    for name in [*leftovers, *others]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    folder = tmp_path / f".f.{killed.pid}-0a1b2c3d"
    folder.mkdir()
    (folder / "half").write_text("")
    remove_leftovers(tmp_path)
    assert names_in(tmp_path) == sorted(["deep", *others])
    assert names_in(tmp_path / "deep") == []


def test_staged_files_are_moved_while_it_is_allowed_and_the_last_one_last(tmp_path):
    folder, seen = tmp_path / "a", []
    folder.mkdir()
    for name in ("end", "other", "b"):
        (folder / name).write_text("old")

    @contextlib.contextmanager
    def publishing():
        seen.append(sorted(path.read_text() for path in folder.glob("[a-z]*")))
        yield
        seen.append({path.name: path.read_text() for path in folder.glob("[a-z]*")})

    with staged_files(folder, "end", publishing()) as staging:
        for name in ("end", "b", "z"):
            (staging / name).write_text("new")
    assert seen == [["old"] * 3, {"b": "new", "end": "new", "other": "old", "z": "new"}]
    assert names_in(folder) == ["b", "end", "other", "z"]


def test_staged_files_are_discarded_where_it_is_not_allowed(tmp_path):
    @contextlib.contextmanager
    def forbidden():
        raise PermissionError
        yield

    (tmp_path / "end").write_text("old")
    with pytest.raises(PermissionError), staged_files(tmp_path, "end", forbidden()) as staging:
        (staging / "end").write_text("new")
    assert names_in(tmp_path) == ["end"]
    assert (tmp_path / "end").read_text() == "old"


def test_a_folder_without_its_last_file_is_left_where_moving_fails(tmp_path):
    """Not a mixture that counts as complete."""
    (tmp_path / "end").write_text("old")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "full").write_text("")

    def write():
        with staged_files(tmp_path, "end", contextlib.nullcontext()) as staging:
            (staging / "b").write_text("new")
            (staging / "end").write_text("new")

    with pytest.raises(StorageError):
        write()
    assert names_in(tmp_path) == ["b"]


@pytest.mark.parametrize("there", [False, True])
def test_a_new_folder_removes_what_an_earlier_one_left(tmp_path, there):
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    folder = tmp_path / "a[1]"
    if there:
        folder.mkdir()
    left = (folder if there else tmp_path) / f".a[1].{killed.pid}-0a1b2c3d"
    left.mkdir()
    with new_folder(folder) as new:
        (new / "file").write_text("")
    assert names_in(tmp_path) == ["a[1]"]
    assert names_in(folder) == ["file"]


def test_a_killed_replacement_of_a_folder_leaves_each_common_file_old_or_new(tmp_path):
    """It is killed at each rename in turn: the process ends without another word."""
    for killed_at in range(3):
        folder = tmp_path / str(killed_at)
        (folder / "c").mkdir(parents=True)
        for name in ("a", "b", "c/d", "old"):
            (folder / name).write_text("old")
        program = KILLED_REPLACEMENT.replace("{killed_at}", str(killed_at))
        # A process that stands in the folder moves the files one by one.
        killed = subprocess.run([sys.executable, "-c", program, str(folder)], check=False, cwd=folder)
        assert killed.returncode == 7
        assert {"a", "b"} <= set(names_in(folder))
        with new_folder(folder) as new:
            (new / "a").write_text("newer")
        assert names_in(folder) == ["a"]


def test_what_is_being_written_has_a_temporary_name(tmp_path):
    with atomic_path(tmp_path / "a.json") as file, new_folder(tmp_path / "b") as folder:
        assert is_temporary(file)
        assert is_temporary(folder)
    assert not any(map(is_temporary, tmp_path.iterdir()))


def test_home_folder_that_does_not_exist_is_not_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_home("~/x") == tmp_path / "x"
    with pytest.raises(InputError, match=r"^~nobody-here/x: must be a path without ~, because there is no such home"):
        expand_home("~nobody-here/x")
