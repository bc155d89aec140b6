import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

from sca_search.errors import InputError, StorageError
from sca_search.system.files import atomic_path, expand_home, write_json_atomic, write_text_atomic

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


def test_home_folder_that_does_not_exist_is_not_expanded(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert expand_home("~/x") == tmp_path / "x"
    with pytest.raises(InputError, match=r"^~nobody-here/x: must be a path without ~, because there is no such home"):
        expand_home("~nobody-here/x")
