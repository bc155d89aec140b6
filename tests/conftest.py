"""What several test files share: a study small enough to run for real in seconds."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import hypothesis
import pytest
import torch
from filelock import FileLock

# The command's screen is as wide as its process is told when it is imported; sentences should not be folded.
os.environ["COLUMNS"] = "200"
from sca_search.cli import main

# Two test processes on two cores must not fight over them.
torch.set_num_threads(1)

# How long an example takes says something of the machine alone.
hypothesis.settings.register_profile("steady", deadline=None)
hypothesis.settings.load_profile("steady")

TINY = ("--trials", "3", "--refits", "1", "--epochs", "2", "--dense-epochs", "4", "--threads", "1")


def sca_search(*arguments: str, cwd: Path, **options: object) -> subprocess.CompletedProcess[str]:
    """The real command in a process of its own, wide enough that no sentence is folded."""
    return subprocess.run(
        [sys.executable, "-m", "sca_search", *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env=os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"},
        **options,
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many slow tests come first: begun last, one of them would keep a single process busy for minutes."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


@dataclass(frozen=True)
class Outcome:
    """What a command left on the screen, and its exit code."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Outcome]:
    """The command in this process, in an empty folder: a process of its own pays seconds for its imports."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["sca-search", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return Outcome(ended.value.code, captured.out, captured.err)

    return call


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled models do not go into the cache of whoever runs the tests."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # The compiler of the extra [cross] builds a C library for each target, once: that takes a minute.
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(usual / "zig"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished study of three short trials: its folder, and what the command printed. Trained by one of the processes
    that run the tests; each has a copy, which its tests may change."""
    own = tmp_path_factory.getbasetemp()
    trained = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "tiny-trained"
    with FileLock(f"{trained}.lock"):
        if not (trained / "printed").is_file():
            trained.mkdir()
            done = sca_search("--target-sparsity", "0.5", "--name", "tiny", *TINY, cwd=trained)
            assert done.returncode == 0, done.stderr
            (trained / "printed").write_text(done.stdout)
    folder = tmp_path_factory.mktemp("tiny") / "runs"
    shutil.copytree(trained / "runs", folder)
    return folder / "tiny", (trained / "printed").read_text()
