"""Worker processes: threads and devices per worker, and workers that crash or hang."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd
import pytest

from sca_search.config.load import resolve
from sca_search.errors import SpecError, StorageError
from sca_search.runs.folder import RunFolder
from sca_search.study.events import Note, ignore
from sca_search.study.heartbeat import OWNER, owner_name
from sca_search.study.queue import fill_queue, open_study
from sca_search.study.session import needs_processes, prepare_worker
from sca_search.study.space import Space
from sca_search.study.workers import _FINISH, LocalWorkers, _Ready, _Worker, device_of, resident_bytes
from sca_search.system.signals import NEVER
from sca_search.ternary.allocation import LayerShape
from sca_search.training.fit import make_trainer
from tests.support.command import sca_search


@pytest.mark.parametrize(
    ("number", "count", "visible", "device"),
    [
        (1, 0, None, None),
        (1, 1, None, None),
        (1, 2, None, "0"),
        (2, 2, None, "1"),
        (3, 2, None, "0"),
        (2, 2, "5,7", "7"),
        (3, 2, "GPU-a,GPU-b", "GPU-a"),
    ],
)
def test_devices_are_given_in_turns(number: int, count: int, visible: str | None, device: str | None) -> None:
    assert device_of(number, count, visible) == device


@pytest.mark.parametrize(
    ("flags", "needed"),
    [({}, False), ({"workers": 2}, True), ({"trial_time": "10m"}, True), ({"trial_memory_gb": 2.0}, True)],
)
def test_trials_that_may_have_to_be_ended_run_in_processes(flags: dict[str, object], needed: bool) -> None:
    assert needs_processes(resolve(None, flags)) is needed


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"trial_time": "0s"}, "--trial-time must be above 0"),
        ({"trial_time": "soon"}, "--trial-time must be a number of seconds or a time like 90s"),
        ({"trial_memory_gb": -1.0}, "--trial-memory-gb must be above 0"),
        ({"trial_memory_gb": float("nan")}, "--trial-memory-gb"),
    ],
)
def test_limits_that_are_none_are_refused(flags: dict[str, object], sentence: str) -> None:
    with pytest.raises(SpecError) as caught:
        resolve(None, flags)
    assert sentence in str(caught.value)


def test_resident_memory_is_that_of_the_process() -> None:
    mine = resident_bytes(os.getpid())
    assert mine is not None
    status = Path("/proc/self/status").read_text()
    (kilobytes,) = [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")]
    assert mine == pytest.approx(1024 * kilobytes, rel=0.1)
    assert resident_bytes(2**30) is None


OWN = """
import multiprocessing
import os
import threading

from torch.nn import functional


def loss(outputs, targets):
    hearts = [thread for thread in threading.enumerate() if thread.name.startswith("heartbeat of trial")]
    if hearts and multiprocessing.parent_process() is not None:
        os.kill(os.getpid(), 9)
    return functional.cross_entropy(outputs, targets)
"""


SHORT = (
    "--trials",
    "1",
    "--refits",
    "0",
    "--epochs",
    "1",
    "--dense-epochs",
    "1",
    "--threads",
    "1",
    "--allocation",
    "0",
)


@pytest.mark.e2e
def test_a_candidate_that_crashes_its_workers_fails(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    done = sca_search(*SHORT, "--name", "deadly", "--loss", "own.py:loss", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    trials = pd.read_csv(tmp_path / "runs" / "deadly" / "trials.csv")
    assert list(trials["state"]) == ["failed"]
    assert trials["reason"][0] == "its worker crashed 3 times (out of memory?)"
    assert done.stdout.count("crashed; starting another") == 3


HANGS = """
import multiprocessing
import time

from torch.nn import functional


def loss(outputs, targets):
    if multiprocessing.parent_process() is not None:
        open("hangs", "w").close()
        time.sleep(3600)
    return functional.cross_entropy(outputs, targets)
"""


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_a_stop_does_not_wait_for_a_worker_that_hangs(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(HANGS)
    command = [sys.executable, "-m", "sca_search", "--name", "stuck", "--loss", "own.py:loss", "--workers", "2"]
    process = subprocess.Popen([*command, *SHORT], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    while not (tmp_path / "hangs").exists():
        assert process.poll() is None
        time.sleep(0.1)
    process.terminate()
    told, _ = process.communicate(timeout=120)
    assert process.returncode == 143, told.decode()


FAILS = """
import multiprocessing
import threading

from torch import nn


class OwnError(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
            nn.Flatten(), nn.Linear(128, 10)
        )

    def forward(self, images):
        hearts = [thread for thread in threading.enumerate() if thread.name.startswith("heartbeat of trial")]
        outputs = self.body(images)
        if hearts and multiprocessing.parent_process() is not None and outputs.requires_grad:
            outputs.register_hook(eval("lambda _: (None for _ in ()).throw(error)", FAULT))
        return outputs


# Thrown in the backward pass by no line of this file: what a line of a user's raises is told as theirs.
FAULT = {"error": OwnError("this", "that")}
"""


@pytest.mark.e2e
@pytest.mark.timeout(240)
def test_an_error_that_nobody_foresaw_ends_the_study_as_it_would_without_workers(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(FAILS)
    done = sca_search(*SHORT, "--name", "fails", "--model", "own.py:Net", "--workers", "2", cwd=tmp_path)
    assert done.returncode == 70, done.stderr
    assert "OwnError: this and that" in done.stderr
    assert "In a worker:" in done.stderr


@pytest.fixture
def workers(tmp_path: Path) -> LocalWorkers:
    """Of a study with a queue; no worker is replaced."""
    spec = resolve(None, {"target_sparsity": 0.5, "trials": 4})
    space, run = Space(spec, (LayerShape("fc", (8, 8)),)), RunFolder(tmp_path)
    study = open_study(run, space)
    fill_queue(study, space)
    workers = LocalWorkers(run, spec, study, ignore, NEVER, lambda: True, partial(prepare_worker, run, spec))
    workers._state.value = _FINISH
    return workers


@pytest.fixture
def crash(workers: LocalWorkers) -> Callable[[bool], None]:
    """Replaces a worker that crashed, with or without a trial."""

    def replace(had_trial: bool) -> None:
        process = multiprocessing.get_context("spawn").Process(target=int)
        process.start()
        process.join()
        if had_trial:
            trial = workers.study.ask()
            workers.study._storage.set_trial_system_attr(trial._trial_id, OWNER, owner_name(process.pid))
        workers._workers[1] = _Worker(process, multiprocessing.Pipe(duplex=False)[0])
        workers._replace(1, workers._workers[1], "crashed")

    return replace


def sleeping(workers: LocalWorkers, *, seconds_ago: float) -> _Worker:
    """A worker's process that sleeps, as if it had been started some time ago."""
    process = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,), daemon=True)
    process.start()
    events, _ = multiprocessing.Pipe(duplex=False)
    workers._workers[1] = _Worker(process, events, started=time.monotonic() - seconds_ago)
    return workers._workers[1]


def test_a_worker_that_is_not_ready_in_time_is_killed_and_replaced(workers: LocalWorkers) -> None:
    events: list[object] = []
    workers.emit = events.append
    workers.spec = resolve(None, {"target_sparsity": 0.5, "trial_time": "30s"})
    worker = sleeping(workers, seconds_ago=620.0)  # ten minutes, and a trial's time besides
    workers._supervise(1, workers._workers[1])
    assert worker.process.is_alive()
    worker.started -= 20.0
    workers._supervise(1, workers._workers[1])
    assert not worker.process.is_alive()
    assert events == [Note("worker 1 hung; starting another")]


def test_workers_that_hang_before_any_trial_end_the_study(workers: LocalWorkers) -> None:
    workers.spec = resolve(None, {"target_sparsity": 0.5, "trial_time": "30s"})
    for _ in range(2):
        sleeping(workers, seconds_ago=1000.0)
        workers._supervise(1, workers._workers[1])
    sleeping(workers, seconds_ago=1000.0)
    with pytest.raises(StorageError, match="3 workers in a row hung before their first trial"):
        workers._supervise(1, workers._workers[1])


@pytest.mark.parametrize(("flags", "is_ready"), [({}, False), ({"trial_time": "30s"}, True)])
def test_a_worker_that_is_ready_or_has_no_limit_is_not_killed(
    workers: LocalWorkers, flags: dict[str, object], is_ready: bool
) -> None:
    workers.spec = resolve(None, {"target_sparsity": 0.5, **flags})
    worker = sleeping(workers, seconds_ago=100_000.0)
    if is_ready:
        workers._on_message(worker, _Ready())
    workers._supervise(1, workers._workers[1])
    assert worker.process.is_alive()
    worker.process.kill()


def test_workers_that_crash_before_any_trial_end_the_study(crash: Callable[[bool], None]) -> None:
    crash(False)
    crash(False)
    with pytest.raises(StorageError, match="3 workers in a row crashed before their first trial"):
        crash(False)


@pytest.mark.e2e
def test_a_worker_that_crashes_before_it_reports_its_trial_counts_as_started(crash: Callable[[bool], None]) -> None:
    for had_trial in (False, False, True, True, True, True, False, False):
        crash(had_trial)
    with pytest.raises(StorageError, match="3 workers in a row crashed before their first trial"):
        crash(False)


# Lightning's own settings


def test_lightnings_settings_reach_its_trainer() -> None:
    trainer = make_trainer({"precision": "bf16-mixed", "gradient_clip_val": 0.5, "accelerator": "cpu"})
    assert trainer.precision == "bf16-mixed"
    assert trainer.gradient_clip_val == 0.5
    assert make_trainer({}).num_devices == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"accelerator": "gpuu"}, "[trainer]: Lightning rejects these settings: "),
        ({"precision": "3"}, "[trainer]: Lightning rejects these settings: "),
        ({"devices": 0, "accelerator": "cpu"}, "[trainer]: Lightning rejects these settings: "),
        ({"devices": 10**30, "accelerator": "cpu"}, "[trainer]: Lightning rejects these settings: "),
        ({"devices": 2, "accelerator": "cpu"}, "[trainer]: a trial must be trained in one process, got 2 by "),
    ],
)
def test_settings_that_lightning_or_a_study_cannot_have_are_one_sentence(
    settings: dict[str, object], sentence: str
) -> None:
    with pytest.raises(SpecError) as caught:
        make_trainer(settings)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_settings_that_are_the_studys_business_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[trainer]\nmax_epochs = 3\n")
    with pytest.raises(SpecError, match=r"a\.toml: trainer must have only accelerator, .*, got 'max_epochs'"):
        resolve(file, {})
