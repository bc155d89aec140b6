"""What several test files share: a study small enough to run for real in seconds."""

import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import hypothesis
import pytest
import torch
from filelock import FileLock

# The command's screen is as wide as its process is told when it is imported; sentences should not be folded.
os.environ["COLUMNS"] = "200"
from sca_search.cli.app import main
from tests.support.command import TINY, Outcome, sca_search

# Two test processes on two cores must not fight over them.
torch.set_num_threads(1)

# How long an example takes says something of the machine alone.
hypothesis.settings.register_profile("steady", deadline=None)
hypothesis.settings.load_profile("steady")


TIERS = ("e2e", "nightly")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns each test to its tier: its own mark, else its folder, else what its fixtures need.

    Files with many tests of the slower tiers start first: started last, one of them would occupy a single process for
    minutes.
    """
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            folder = item.path.relative_to(Path(__file__).parent).parts[0]
            needs_database = "server" in getattr(item, "fixturenames", ())
            if (
                tier := folder
                if folder in TIERS
                else "e2e"
                if needs_database or item.get_closest_marker("slow")
                else ""
            ):
                item.add_marker(tier)
    slow = Counter(item.path for item in items if any(item.get_closest_marker(tier) for tier in TIERS))
    items.sort(key=lambda item: -slow[item.path])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """CI installs every tool, so a skipped test is a failure there."""
    report = yield
    if report.skipped and os.environ.get("SCA_SEARCH_NO_SKIPS"):
        report.outcome = "failed"
        report.longrepr = f"skipped: {report.longrepr}"
    return report


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
