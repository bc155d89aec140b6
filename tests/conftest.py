"""What the tests share: the tiers, the check of skips and of CPU time, and studies and exports that are made once."""

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

# The width of the terminal is read when the command is imported; no sentence should be wrapped.
os.environ["COLUMNS"] = "200"
from sca_search.cli.app import main
from tests.support.command import TINY, TINY_BUDGETS, Outcome, sca_search
from tests.support.cpu_time import CpuTimes
from tests.support.tools import missing_tool

# Two test processes share two cores.
torch.set_num_threads(1)

# The duration of an example depends on the load of the machine.
hypothesis.settings.register_profile("no deadline", deadline=None)
hypothesis.settings.load_profile("no deadline")

TIERS = ("e2e", "nightly")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(CpuTimes(TIERS))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Assigns each test to its tier: its own mark, else its folder, else e2e if it uses a tool or PostgreSQL.

    A single case of an e2e test may be nightly: it runs in that tier only. Files with many tests of the slower tiers
    start first: started last, one of them would occupy a single process for minutes.
    """
    for item in items:
        if not any(item.get_closest_marker(tier) for tier in TIERS):
            folder = item.path.relative_to(Path(__file__).parent).parts[0]
            needs_more = item.get_closest_marker("needs") or "server" in getattr(item, "fixturenames", ())
            if tier := folder if folder in TIERS else "e2e" if needs_more else "":
                item.add_marker(tier)
        if item.get_closest_marker("nightly"):
            item.own_markers = [mark for mark in item.own_markers if mark.name != "e2e"]
    slow = Counter(item.path for item in items if any(item.get_closest_marker(tier) for tier in TIERS))
    items.sort(key=lambda item: -slow[item.path])


def pytest_runtest_setup(item: pytest.Item) -> None:
    for tool in [tool for mark in item.iter_markers("needs") for tool in mark.args]:
        if reason := missing_tool(tool):
            pytest.skip(reason)


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
    """The command in this process, in an empty folder: a new process takes seconds for its imports."""
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
    """Compiled models do not go into the user's cache."""
    usual = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    # The compiler of the extra [cross] builds a C library for each target, once: that takes a minute.
    os.environ.setdefault("ZIG_GLOBAL_CACHE_DIR", str(usual / "zig"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A copy of a folder that one of the test processes makes; tests may change their process's copy."""
    own = factory.getbasetemp()
    made = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / f"made-{name}"
    with FileLock(f"{made}.lock"):
        if not (made / "complete").is_file():
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            make(made)
            (made / "complete").touch()
    copy = factory.mktemp(name)
    return Path(shutil.copytree(made, copy, dirs_exist_ok=True))


def command_once(factory: pytest.TempPathFactory, name: str, *arguments: str) -> tuple[Path, str]:
    """The folder in which a command ran once for all test processes, and what it printed."""

    def make(folder: Path) -> None:
        done = sca_search(*arguments, cwd=folder)
        assert done.returncode == 0, done.stderr
        (folder / "printed").write_text(done.stdout)

    folder = once(factory, name, make)
    return folder, (folder / "printed").read_text()


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished study of three short trials: its folder, and what the command printed."""
    folder, printed = command_once(tmp_path_factory, "tiny", "--target-sparsity", "0.5", "--name", "tiny", *TINY)
    return folder / "runs" / "tiny", printed


@pytest.fixture(scope="session")
def tiny_export(tiny_run: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The chosen trial of that study in all formats: the export folder, and what the command printed."""
    folder, printed = command_once(tmp_path_factory, "tiny-export", "export", str(tiny_run[0]), "--out", "out")
    return folder / "out", printed


@pytest.fixture(scope="session")
def tiny_budget_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished study of three short trials with two size budgets: its folder, and what the command printed."""
    folder, printed = command_once(tmp_path_factory, "tiny-budget", *TINY, *TINY_BUDGETS)
    return folder / "runs" / "small", printed
