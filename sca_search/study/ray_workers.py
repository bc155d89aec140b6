"""Workers on a Ray cluster: each is a Ray task that joins the study through its database, as another machine does.

Ray runs a task where its CPUs and GPUs are free, restarts it when its node or process dies, and lists it in its
dashboard. The state of the study is in the database: a trial that was lost is requeued by heartbeats.
"""

import contextlib
import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial

from sca_search.config.study import StudySpec
from sca_search.errors import SpecError, StorageError
from sca_search.runs.folder import RunFolder
from sca_search.study.events import Emit
from sca_search.study.queue import trial_ended
from sca_search.system.signals import StopToken
from sca_search.training.fit import StopRequestedError

# Of one worker: more often than nodes disappear during a study, but a worker that always crashes ends it.
_MAX_RESTARTS = 100
_POLL_SECONDS = 1.0
_CONNECT_SECONDS = 10.0
_STOP_SECONDS = 20.0


@dataclass
class RayWorkers:
    """Starts the workers of a study as Ray tasks, and waits for them."""

    run: RunFolder
    spec: StudySpec
    study: optuna.Study
    emit: Emit
    stop: StopToken
    threads: int  # per worker
    join: Callable[[], None]  # trains trials of the study until none is left
    _reported: set[int] = field(default_factory=set)

    def work(self) -> None:
        """Run the queued trials on the cluster that this process is connected to."""
        import ray  # noqa: PLC0415 - an extra

        self._reported |= {trial.number for trial in self._ended()}
        needs = {"num_cpus": self.threads, "num_gpus": self._gpus(ray), "max_retries": _MAX_RESTARTS}
        worker = ray.remote(_in_folder)
        tasks = [
            worker.options(name=f"{self.run.study_name}, worker {number}", **needs).remote(self.join, Path.cwd())
            for number in range(1, 1 + self.spec.search.workers)
        ]
        try:
            self._wait(ray, tasks)
        finally:
            _cancel(ray, tasks)
        if self.stop.is_set():
            raise StopRequestedError

    def _gpus(self, ray: Any) -> int:
        """A trial is trained on one device."""
        may_use = (self.spec.trainer or {}).get("accelerator", "auto") != "cpu"
        return int(may_use and ray.cluster_resources().get("GPU", 0) >= 1)

    def _wait(self, ray: Any, tasks: list[Any]) -> None:
        while tasks and not self.stop.is_set():
            ended, tasks = ray.wait(tasks, timeout=_POLL_SECONDS)
            for trial in self._ended():
                if trial.number not in self._reported:
                    self._reported.add(trial.number)
                    self.emit(trial_ended(self.study, trial.number))
            with _worker_errors(ray):
                ray.get(ended)

    def _ended(self) -> list[FrozenTrial]:
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()]


def _in_folder(join: Callable[[], None], folder: Path) -> None:
    """A worker's task, in the working directory of the command if this node has it: paths may be relative."""
    with contextlib.suppress(OSError):
        os.chdir(folder)
    join()


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connect this process to a Ray cluster; a local one is started and ended."""
    try:
        if address not in {"auto", "local"} and "://" not in address:
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()  # Ray itself tries for many minutes
        import ray  # noqa: PLC0415 - an extra

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of future versions of Ray
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except ImportError as error:
        raise SpecError("--ray needs the package ray: pip install 'sca-search[ray]'") from error
    except (OSError, RuntimeError, ValueError) as error:
        rule = "--ray must be the address of a running Ray cluster, HOST:PORT, auto, or local"
        raise SpecError(f"{rule}; got {address!r}: {' '.join(str(error).split())[:200]}") from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _worker_errors(ray: Any) -> Iterator[None]:
    """Raise the error of a worker as if it were raised here."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.RayError as error:
        raise StorageError(f"--ray: a worker cannot run: {' '.join(str(error).split())[:300]}") from error


def _cancel(ray: Any, tasks: list[Any]) -> None:
    """End the workers that still run: as by Ctrl-C, so that they requeue their trials, and by force if they hang."""
    for force, seconds in ((False, _STOP_SECONDS), (True, 0.0)):
        for task in tasks:
            ray.cancel(task, force=force)
        if tasks:
            _, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=seconds)
