"""What a study costs between its trainings when it is long: ask, the prior's fit, tell, and what is written then.

    python -m benchmarks.long_study
    python -m benchmarks.long_study --postgres
    python -m benchmarks.long_study --storage postgresql://user@host/database

A study's storage is filled with trials that look like real ones (values of the real space of a real network, what the
objective leaves at a trial, a tenth of them paused, some failed), and then some more are asked for and told as the
objective does it, without the training. One storage grows from size to size; both samplers are asked at each. At last
it is made anew with as many trials, of which most are still in the queue.
"""

import argparse
import contextlib
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import optuna
from optuna.trial import TrialState

from benchmarks.report import RESULTS, provenance, table, write_section
from benchmarks.synthetic_trials import distributions_of, finished, planned, store, synthetic, waiting
from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder
from sca_search.runs.trials import trial_frame
from sca_search.study.objective import Listener, Objective, make_objective
from sca_search.study.outcome import write_tables
from sca_search.study.queue import observations, rows
from sca_search.study.quiet_queue import QuietQueue
from sca_search.study.sampler import INNER, PlannedSampler
from sca_search.study.setup import make_space, make_task, warm_start
from sca_search.study.space import Space
from sca_search.study.storage import local_address
from sca_search.ternary.prior_file import write_prior
from sca_search.training.task import Task
from tests.support.postgres import running_server

# What must be quick, and what is written beside it.
ASKED = ("ask", "values", "prior's fit", "tell")
WRITTEN = ("rows", "tables", "prior file")
# Seconds at so many stored trials: 5 % of a trial of one minute, and a limit of its own.
LIMITS = {1_000: 0.05 * 60.0, 10_000: 2.0}

Seconds = dict[str, float]
Shown = dict[tuple[int, int, str], list[Seconds]]
"""What each part of some trials took, by stored trials, how many of these wait, and sampler."""


@dataclass(frozen=True)
class Bench:
    """One study that grows."""

    run: RunFolder
    space: Space
    task: Task
    objective: Objective
    study: optuna.Study

    @property
    def spec(self) -> StudySpec:
        return self.space.spec


def made(folder: Path, spec: StudySpec, storage: str | None) -> Bench:
    run, task = RunFolder(folder), make_task(spec)
    start = warm_start(run, spec, task)
    space = make_space(run, spec, task, start)
    objective = make_objective(run, space, task, start, Listener())
    return Bench(run, space, task, objective, new_study(storage or local_address(run)))


def new_study(storage: str) -> optuna.Study:
    return optuna.create_study(
        study_name=f"long-study-{time.time_ns()}", storage=QuietQueue(storage), directions=["maximize", "maximize"]
    )


# What is timed -------------------------------------------------------------------------------------------------------


class Watch:
    """Seconds by name, and of the processor: on a machine that others use, a part waits for its turn."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began, used = time.perf_counter(), time.process_time()
        yield
        self.seconds |= {name: time.perf_counter() - began, processor(name): time.process_time() - used}


def processor(name: str) -> str:
    """Under which the processor's seconds of a part are kept."""
    return f"{name} (processor)"


def one_trial(bench: Bench) -> Seconds:
    """What happens around one training: in the worker before and after it, then in the process that writes."""
    study, space, watch = bench.study, bench.space, Watch()
    number = len(study.get_trials(deepcopy=False))
    if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        study.enqueue_trial({}, user_attrs={"candidate": number, "planned_sparsity": planned(space, number)})
    with watch("ask"):
        trial = study.ask()
    with watch("values"):
        candidate = space.sample(trial, float(trial.user_attrs["planned_sparsity"]), seed=number)
    with watch("prior's fit"):
        trial.set_user_attr("asked", bench.objective.asked(study, candidate))
    left = finished(space, 0.1, trial.params, trial.user_attrs["asked"], np.random.default_rng(number))
    with watch("tell"):
        for name, value in (left | {"worker": 1, "epochs": 25}).items():
            trial.set_user_attr(name, value)
        study.tell(trial, (0.98, candidate.sparsity))
    write(bench, watch)
    return watch.seconds


def write(bench: Bench, watch: Watch) -> None:
    with watch("rows"):
        told = rows(bench.study)
    with watch("tables"):
        write_tables(bench.run, bench.spec, trial_frame(told))
    with watch("prior file"):
        seen = observations(bench.study)
        write_prior(bench.run.prior_file, bench.spec.search.form, bench.task.layer_shapes, seen)


def measured(bench: Bench, sizes: list[int], samplers: list[str], trials: int) -> Shown:
    found: Shown = {}
    for size in sizes:
        stored = range(len(bench.study.get_trials(deepcopy=False)), size)
        store(bench.study, [synthetic(bench.space, candidate) for candidate in stored])
        for name in samplers:
            found[size, 0, name] = some_trials(bench, name, trials)
    return found


def with_queue(bench: Bench, size: int, finished: int, samplers: list[str], trials: int) -> Shown:
    """A study of so many trials, the first of which are finished."""
    store(bench.study, [synthetic(bench.space, candidate) for candidate in range(finished)])
    store(bench.study, [waiting(bench.space, candidate) for candidate in range(finished, size)])
    return {(size, size - finished, name): some_trials(bench, name, trials) for name in samplers}


def some_trials(bench: Bench, sampler: str, trials: int) -> list[Seconds]:
    bench.study.sampler = PlannedSampler(bench.spec.seed, bench.space.first_guess(), INNER[sampler])
    one_trial(bench)  # warms up: imports, and the storage's cache of finished trials
    taken = [one_trial(bench) for _ in range(trials)]
    print(sampler, {part: span(taken, (part,)) for part in (*ASKED, *WRITTEN)}, file=sys.stderr, flush=True)
    return taken


# What is told --------------------------------------------------------------------------------------------------------


def span(trials: list[Seconds], parts: tuple[str, ...]) -> str:
    """Best and worst of the sum of some parts."""
    sums = [math.fsum(trial[part] for part in parts) for trial in trials]
    return f"{min(sums):.3f} to {max(sums):.3f}"


def verdicts(found: Shown) -> list[str]:
    """The worst trial of each size that has a limit, beside it."""
    told = []
    for (size, queued, name), trials in found.items():
        if size in LIMITS:
            worst = max(math.fsum(trial[part] for part in ASKED) for trial in trials)
            used = max(math.fsum(trial[processor(part)] for part in ASKED) for trial in trials)
            is_met = "met" if worst < LIMITS[size] else "not met"
            of_these = f", {queued:,} of them in the queue" if queued else ""
            seconds = f"{worst:.2f} s at worst ({used:.2f} s of the processor)"
            told.append(f"- {size:,} trials{of_these}, {name}: {seconds}, below {LIMITS[size]:g} s: {is_met}.")
    return told


def text_of(found: Shown, about: str) -> str:
    used = tuple(processor(part) for part in ASKED)
    columns = {part: (part,) for part in ASKED} | {"together": ASKED, "of the processor": used}
    columns |= {part: (part,) for part in WRITTEN}
    headings = ["stored trials", "in the queue", "sampler", *columns]
    lines = [
        [f"{size:,}", f"{queued:,}", name, *(span(trials, parts) for parts in columns.values())]
        for (size, queued, name), trials in found.items()
    ]
    return "\n\n".join(
        [f"Seconds a trial, best to worst of {about}.", table(headings, lines), "\n".join(verdicts(found))]
    )


def main() -> None:
    arguments = _arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not arguments.postgres:
        return report(arguments, arguments.storage)
    with running_server() as server:
        return report(arguments, server.new_database())


def report(arguments: argparse.Namespace, storage: str | None) -> None:
    """In a database, or in a SQLite file."""
    settings = {"model": arguments.model, "form": arguments.form, "front": True}
    spec = resolve(None, settings | {"dense_epochs": 1, "train_limit": 100})
    with tempfile.TemporaryDirectory() as folder:
        bench = made(Path(folder), spec, storage)
        found = measured(bench, arguments.sizes, arguments.samplers, arguments.trials)
        if arguments.queued:
            again = replace(bench, study=new_study(storage or local_address(bench.run)))
            size = max(arguments.sizes)
            found |= with_queue(again, size, size - arguments.queued, arguments.samplers, arguments.trials)
    load = os.getloadavg()[1]
    database = "SQLite" if storage is None else "PostgreSQL"
    layers, values = len(bench.space.layers), len(distributions_of(bench.space))
    about = (
        f"{arguments.trials}; {arguments.model}, {layers} ternary layers, {values} searched values, {database}; "
        f"about {load:.0f} processes wanted to run in the last minutes, ours among them"
    )
    origin = provenance().replace(arguments.storage or "\0", "URL")  # which may hold a password
    text = f"## Cost of a long study: {database}\n\n{text_of(found, about)}\n\n{origin}"
    print(text)
    write_section(RESULTS, f"long study on {database}", text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--samplers", nargs="+", choices=list(INNER), default=["tpe", "gp"])
    parser.add_argument("--trials", type=int, default=5, help="timed at each size")
    parser.add_argument("--queued", type=int, default=9_000, help="of the largest size, once more; 0: not again")
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--form", default="paper")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--storage", help="a database's URL; a SQLite file otherwise")
    where.add_argument("--postgres", action="store_true", help="a PostgreSQL server of its own, on this machine")
    return parser.parse_args()


if __name__ == "__main__":
    main()
