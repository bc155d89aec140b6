"""A user without a home folder, as in containers that run as a user ID without an account."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

UNKNOWN_USER = 54321
_AS_USER = ("setpriv", f"--reuid={UNKNOWN_USER}", f"--regid={UNKNOWN_USER}", "--clear-groups")
PRINT_CACHE = "from sca_search.system.machine import cache_folder; print(cache_folder()); print(cache_folder())"

pytestmark = [
    pytest.mark.needs("setpriv"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user"),
]


def as_unknown_user(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """A command of a user without an account and without HOME; its temporary files are in `folder`."""
    kept = {name: value for name, value in os.environ.items() if name not in {"HOME", "XDG_CACHE_HOME"}}
    environment = kept | {"TMPDIR": str(folder), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "200"}
    return subprocess.run(
        [*_AS_USER, sys.executable, *command],
        env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def shared_folder() -> Iterator[Path]:
    """A folder that every user can reach and write to, which pytest's own are not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        yield Path(folder)


def test_the_cache_is_a_private_temporary_folder_and_the_user_is_told_once(shared_folder: Path) -> None:
    done = as_unknown_user(shared_folder, "-c", PRINT_CACHE)
    cache = shared_folder / f"sca-search-{UNKNOWN_USER}"
    assert done.stdout == f"{cache}\n{cache}\n"
    assert done.stderr == (
        f"this user has no home folder: files are cached in {cache}; XDG_CACHE_HOME sets another folder\n"
    )
    assert (cache.stat().st_uid, cache.stat().st_mode & 0o777) == (UNKNOWN_USER, 0o700)
    assert as_unknown_user(shared_folder, "-c", PRINT_CACHE).stdout == done.stdout  # kept for the next command


@pytest.mark.parametrize("kind", ["another user's folder", "a folder that others can write to", "a link"])
def test_a_folder_that_another_user_has_put_there_is_not_used(kind: str, shared_folder: Path) -> None:
    cache, own = shared_folder / f"sca-search-{UNKNOWN_USER}", shared_folder / "own"
    (own if kind == "a link" else cache).mkdir(mode=0o700)
    if kind == "a link":
        os.chown(own, UNKNOWN_USER, UNKNOWN_USER)
        cache.symlink_to(own)
    elif kind == "a folder that others can write to":
        os.chown(cache, UNKNOWN_USER, UNKNOWN_USER)
        cache.chmod(0o777)
    used = Path(as_unknown_user(shared_folder, "-c", PRINT_CACHE).stdout.splitlines()[0])
    assert used != cache
    assert (used.stat().st_uid, used.stat().st_mode & 0o777) == (UNKNOWN_USER, 0o700)


@pytest.mark.parametrize(
    "arguments",
    [("--data", "npz:~/a.npz"), ("--model", "~/net.py:make"), ("--data-dir", "~/data"), ("--out", "~/runs")],
)
def test_a_path_in_a_home_folder_that_does_not_exist_gives_one_sentence(
    arguments: tuple[str, str], shared_folder: Path
) -> None:
    done = as_unknown_user(shared_folder, "-m", "sca_search", "--dry-run", *arguments)
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.splitlines()
    assert "~/" in line
    assert "home" in line


@pytest.mark.needs("gcc")
def test_calibrate_runs_without_a_home_folder(shared_folder: Path) -> None:
    done = as_unknown_user(shared_folder, "-m", "sca_search", "calibrate", "--seconds", "1", "--json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no home folder") == 1
    cached = (shared_folder / f"sca-search-{UNKNOWN_USER}").iterdir()
    assert [path.name[:8] for path in cached] == ["latency-"]
