"""Folders that are replaced as a whole: a process may be killed at any point."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sca_search.system.files import new_folder

OLD = {"export.json": "old", "model.c": "old", "c/check.c": "old"}
NEW = {"export.json": "new", "model.h": "new", "c/main.c": "new"}

# A child is killed before the line of `system/files.py` or `shutil` that is the first to be executed, the next one
# before the second, and so on, until a child ends by itself. Prints the content of the folder after each.
KILLS = """
import itertools, json, os, shutil, signal, sys
from pathlib import Path
from sca_search.system import files

top, place, old, new = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])
target = top / "out"

def fill(folder, content):
    for name, text in content.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

def found(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}

def killed_before(line):
    def trace(frame, event, argument):
        nonlocal line
        if frame.f_code.co_filename not in (files.__file__, shutil.__file__):
            return None
        line -= event == "line"
        if line == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    return trace

results = []
for line in itertools.count(1):
    shutil.rmtree(top, ignore_errors=True)
    target.mkdir(parents=True)
    fill(target, old)
    if (child := os.fork()) == 0:
        os.chdir(target if place == "inside" else "/")
        sys.settrace(killed_before(line))
        with files.new_folder(target) as folder:
            fill(folder, new)
        sys.settrace(None)
        os._exit(0)
    ended = os.waitpid(child, 0)[1]
    results.append({"ended": ended, "target": found(target), "all": found(top)})
    if ended == 0:
        break
print(json.dumps(results))
"""


def killed_at_each_point(top: Path, place: str) -> list[dict]:
    arguments = [str(top), place, json.dumps(OLD), json.dumps(NEW)]
    done = subprocess.run([sys.executable, "-c", KILLS, *arguments], capture_output=True, text=True, check=True)
    results = json.loads(done.stdout)
    assert [result["ended"] for result in results] == [9] * (len(results) - 1) + [0]
    assert len(results) > 20
    return results


def test_a_folder_has_its_old_or_its_new_content_wherever_the_process_is_killed(tmp_path: Path) -> None:
    results = killed_at_each_point(tmp_path / "top", "outside")
    contents = [result["target"] for result in results]
    assert all(content in (OLD, NEW) for content in contents)
    assert (contents[0], contents[-1]) == (OLD, NEW)
    assert results[-1]["all"].keys() == {f"out/{name}" for name in NEW}  # nothing else is left


def test_both_contents_exist_if_a_process_that_stands_in_the_folder_is_killed_while_it_is_replaced(
    tmp_path: Path,
) -> None:
    """Its folder cannot be exchanged: the process would stand in the one that is removed."""
    results = killed_at_each_point(tmp_path / "top", "inside")
    for result in results:
        kept = [text for name, text in result["all"].items()]
        assert kept.count("old") == len(OLD) or kept.count("new") == len(NEW)
    assert results[-1]["all"] == {f"out/{name}": text for name, text in NEW.items()}


@pytest.mark.parametrize("place", ["exchanged", "in place"])
def test_a_replaced_folder_keeps_its_mode(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "out").mkdir(mode=0o750)
    (tmp_path / "out" / "file").write_text("old")
    monkeypatch.chdir(tmp_path / "out" if place == "in place" else tmp_path)
    node = (tmp_path / "out").stat().st_ino
    with new_folder(tmp_path / "out") as folder:
        (folder / "file").write_text("new")
    found = (tmp_path / "out").stat()
    assert found.st_mode & 0o777 == 0o750
    assert (found.st_ino == node) == (place == "in place")
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "file"]


@pytest.mark.needs("strace")
def test_content_is_synced_before_its_folder_is_renamed_and_the_name_after(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from sca_search.system.files import new_folder, write_text_atomic
with new_folder(Path(sys.argv[1])) as folder:
    write_text_atomic(folder / "file", "text")
"""
    (tmp_path / "out").mkdir()
    calls = tmp_path / "calls"
    traced = ("strace", "-f", "-y", "-o", str(calls), "-e", "trace=fsync,rename,renameat2")
    subprocess.run([*traced, sys.executable, "-c", script, str(tmp_path / "out")], check=True)
    made = re.findall(r'(fsync|rename|renameat2)\(.*?["<](/[^">]*)[">](?:, RENAME_EXCHANGE)?\) ', calls.read_text())
    names = [(call, re.sub(r"\d+-\w{8}", "N", path.rpartition("/")[2])) for call, path in made]
    assert names == [
        ("fsync", ".file.N"),
        ("rename", "file"),
        ("fsync", ".out.N"),
        ("fsync", ".out.N"),
        ("renameat2", ".out.N"),
        ("fsync", tmp_path.name),
    ]
