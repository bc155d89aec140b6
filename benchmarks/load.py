"""Many workers and thousands of short trials against one PostgreSQL server; writes the table of RESULTS.md.

    python -m benchmarks.load --workers 16 --trials 2000

Queue, storage, heartbeats, sampling and prior are those of a real study; only the training is a short sleep. Some
workers are killed during the run and replaced.
"""

import argparse
import multiprocessing
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.trial import FrozenTrial, TrialState

from benchmarks import report
from sca_search.config.load import resolve
from sca_search.config.storage_url import Shared, storage_address
from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder
from sca_search.study.events import Emit, ignore
from sca_search.study.heartbeat import sending_heartbeats
from sca_search.study.objective import work
from sca_search.study.queue import fill_queue, is_superseded, open_study
from sca_search.study.space import Space
from sca_search.system.signals import NEVER, StopToken
from sca_search.ternary.allocation import LayerShape
from tests.support.postgres import running_server

LAYERS = (LayerShape("conv2", (32, 16, 5, 5)), LayerShape("fc1", (64, 128)))
TRAINING_SECONDS = 0.05
HEARTBEAT = 5.0


def main() -> None:
    arguments = _arguments()
    with running_server() as server, tempfile.TemporaryDirectory(prefix="sca-search-load-") as folder:
        run = RunFolder(Path(folder) / "load", Shared(storage_address(server.new_database())))
        run.path.mkdir()
        study = open_study(run, _space(arguments.trials))
        fill_queue(study, _space(arguments.trials), is_alone=False)
        began = time.monotonic()
        killed = _run(run, arguments)
        seconds = time.monotonic() - began
        text = _text(study, arguments, killed, seconds)
    print(text)
    report.write_section(report.RESULTS, "load", text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--trials", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20, help="workers killed during the run")
    return parser.parse_args()


def _spec(trials: int) -> StudySpec:
    spec = resolve(None, {"target_sparsity": 0.9, "trials": trials})
    return spec.model_copy(update={"search": spec.search.model_copy(update={"heartbeat": HEARTBEAT})})


def _space(trials: int) -> Space:
    return Space(_spec(trials), LAYERS)


@dataclass(frozen=True)
class StandIn:
    """An objective that samples like the real one but trains nothing."""

    run: RunFolder
    space: Space
    seconds: float = TRAINING_SECONDS
    emit: Emit = ignore
    stop: StopToken = NEVER
    on_beat: Callable[[], None] = field(default=lambda: None)

    @property
    def spec(self) -> StudySpec:
        return self.space.spec

    @property
    def context(self) -> "StandIn":
        """Only its run is needed."""
        return self

    def drop_checkpoint(self, _trial: FrozenTrial) -> None:
        """Nothing to do: there is no checkpoint."""

    def __call__(self, trial: optuna.Trial) -> tuple[float, float]:
        assert not is_superseded(trial.study, trial)
        with sending_heartbeats(trial, HEARTBEAT, self.on_beat):
            sparsity = float(trial.user_attrs["planned_sparsity"])
            candidate = self.space.sample(trial, sparsity, seed=trial.number)
            time.sleep(self.seconds)
            trial.set_user_attr("loss", random.random())
            return candidate.learning_rate, sparsity


def _worker(run: RunFolder, trials: int) -> None:
    torch.set_num_threads(1)
    space = _space(trials)
    objective: Any = StandIn(run, space)
    work(open_study(run, space), objective, is_alone=False)


def _run(run: RunFolder, arguments: argparse.Namespace) -> int:
    """Runs all workers to the end; the number of killed ones."""
    context = multiprocessing.get_context("spawn")
    chance, killed = random.Random(0), 0

    def started() -> Any:
        process = context.Process(target=_worker, args=(run, arguments.trials))
        process.start()
        return process

    workers = [started() for _ in range(arguments.workers)]
    while any(worker.is_alive() for worker in workers):
        time.sleep(chance.uniform(3.0, 9.0))
        victim = chance.randrange(len(workers))
        if killed < arguments.kills and workers[victim].is_alive():
            workers[victim].kill()
            workers[victim].join()
            workers[victim] = started()
            killed += 1
    assert all(worker.exitcode == 0 for worker in workers)
    return killed


def _text(study: optuna.Study, arguments: argparse.Namespace, killed: int, seconds: float) -> str:
    trials = study.get_trials(deepcopy=False)
    complete = [trial.user_attrs["candidate"] for trial in trials if trial.state == TrialState.COMPLETE]
    lost = arguments.trials - len(set(complete))
    stuck = sum(not trial.state.is_finished() for trial in trials)
    lengths = [trial.duration.total_seconds() for trial in trials if trial.duration and trial.values]
    rows = [
        ["workers (one process each)", str(arguments.workers)],
        ["workers killed during the run", str(killed)],
        ["candidates", f"{arguments.trials:,}"],
        ["lost", str(lost)],
        ["counted twice", str(len(complete) - len(set(complete)))],
        ["stuck (waiting or running at the end)", str(stuck)],
        ["seconds in total", f"{seconds:.0f}"],
        ["trials per second", f"{len(complete) / seconds:.1f}"],
        [f"seconds per trial, {TRAINING_SECONDS:g} of them training: median", f"{statistics.median(lengths):.2f}"],
    ]
    return f"## Load\n\n{report.table(['PostgreSQL on this machine', ''], rows)}\n\n{report.provenance()}"


if __name__ == "__main__":
    main()
