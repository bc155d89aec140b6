"""Cost per trial of a long study apart from training: ask, tell, and writing files.

    python -m benchmarks.long_study
    python -m benchmarks.long_study --postgres
    python -m benchmarks.long_study --storage postgresql://user@host/database

The storage of a study is filled with realistic trials (parameters from the search space of a real network, the
attributes that the objective stores, a tenth of them paused, some failed). Then more trials are run as the objective
does it, without the training. One storage grows from size to size; both samplers are timed at each size. Finally a new
storage has the same number of trials, most of them still in the queue.
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

import optuna
from optuna.trial import TrialState

from benchmarks.report import RESULTS, provenance, table, write_section
from benchmarks.synthetic_trials import distributions_of, finished, planned, store, synthetic, waiting
from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder
from sca_search.runs.trials import trial_frame
from sca_search.study.optuna_internals import WaitingTrialCache
from sca_search.study.queue import rows
from sca_search.study.results import write_tables
from sca_search.study.sampler import INNER, PlannedSampler
from sca_search.study.setup import build_context, make_task
from sca_search.study.space import Space
from sca_search.study.storage import local_address
from tests.support.postgres import running_server

# The parts that have a time limit, and the files written after each trial.
TIMED = ("ask", "values", "tell")
WRITTEN = ("rows", "tables")
# Limit in seconds by number of stored trials: 5 % of a trial of one minute, and a stricter one.
LIMITS = {1_000: 0.05 * 60.0, 10_000: 2.0}

Seconds = dict[str, float]
Shown = dict[tuple[int, int, str], list[Seconds]]
"""Seconds of each part per trial, by number of stored trials, number of waiting trials, and sampler."""


@dataclass(frozen=True)
class Bench:
    """One growing study."""

    run: RunFolder
    space: Space
    study: optuna.Study

    @property
    def spec(self) -> StudySpec:
        return self.space.spec


def made(folder: Path, spec: StudySpec, storage: str | None) -> Bench:
    run = RunFolder(folder)
    context = build_context(run, spec, make_task(spec))
    return Bench(run, context.space, new_study(storage or local_address(run)))


def new_study(storage: str) -> optuna.Study:
    return optuna.create_study(
        study_name=f"long-study-{time.time_ns()}",
        storage=WaitingTrialCache(storage),
        directions=["maximize", "maximize"],
    )


# Timing -----------------------------------------------------------------------------------------------------------


class Stopwatch:
    """Wall-clock and CPU seconds by name; they differ if the machine is busy."""

    def __init__(self) -> None:
        self.seconds: Seconds = {}

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        began, used = time.perf_counter(), time.process_time()
        yield
        self.seconds |= {name: time.perf_counter() - began, cpu_key(name): time.process_time() - used}


def cpu_key(name: str) -> str:
    """The key of the CPU seconds of a part."""
    return f"{name} (CPU)"


def one_trial(bench: Bench) -> Seconds:
    """Everything around one training: in the worker before and after it, then in the process that writes files."""
    study, space, watch = bench.study, bench.space, Stopwatch()
    number = len(study.get_trials(deepcopy=False))
    if not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
        study.enqueue_trial({}, user_attrs={"candidate": number, "planned_sparsity": planned(space, number)})
    with watch("ask"):
        trial = study.ask()
    with watch("values"):
        candidate = space.sample(trial, float(trial.user_attrs["planned_sparsity"]), seed=number)
    with watch("tell"):
        for name, value in (finished(0.1) | {"worker": 1, "epochs": 25}).items():
            trial.set_user_attr(name, value)
        study.tell(trial, (0.98, candidate.sparsity))
    write(bench, watch)
    return watch.seconds


def write(bench: Bench, watch: Stopwatch) -> None:
    with watch("rows"):
        table_rows = rows(bench.study)
    with watch("tables"):
        write_tables(bench.run, bench.spec, trial_frame(table_rows))


def measured(bench: Bench, sizes: list[int], samplers: list[str], trials: int) -> Shown:
    found: Shown = {}
    for size in sizes:
        stored = range(len(bench.study.get_trials(deepcopy=False)), size)
        store(bench.study, [synthetic(bench.space, candidate) for candidate in stored])
        for name in samplers:
            found[size, 0, name] = some_trials(bench, name, trials)
    return found


def with_queue(bench: Bench, size: int, finished: int, samplers: list[str], trials: int) -> Shown:
    """A study with `size` trials, of which the first `finished` are complete."""
    store(bench.study, [synthetic(bench.space, candidate) for candidate in range(finished)])
    store(bench.study, [waiting(bench.space, candidate) for candidate in range(finished, size)])
    return {(size, size - finished, name): some_trials(bench, name, trials) for name in samplers}


def some_trials(bench: Bench, sampler: str, trials: int) -> list[Seconds]:
    bench.study.sampler = PlannedSampler(bench.spec.seed, bench.space.first_guess(), INNER[sampler])
    one_trial(bench)  # warm-up: imports, and the storage's cache of finished trials
    seconds = [one_trial(bench) for _ in range(trials)]
    print(sampler, {part: span(seconds, (part,)) for part in (*TIMED, *WRITTEN)}, file=sys.stderr, flush=True)
    return seconds


# Report -----------------------------------------------------------------------------------------------------------


def span(trials: list[Seconds], parts: tuple[str, ...]) -> str:
    """Minimum and maximum of the sum of some parts."""
    sums = [math.fsum(trial[part] for part in parts) for trial in trials]
    return f"{min(sums):.3f} to {max(sums):.3f}"


def verdicts(found: Shown) -> list[str]:
    """The slowest trial of each size that has a limit."""
    lines = []
    for (size, queued, name), trials in found.items():
        if size in LIMITS:
            worst = max(math.fsum(trial[part] for part in TIMED) for trial in trials)
            used = max(math.fsum(trial[cpu_key(part)] for part in TIMED) for trial in trials)
            is_met = "met" if worst < LIMITS[size] else "not met"
            of_these = f", {queued:,} of them in the queue" if queued else ""
            seconds = f"at most {worst:.2f} s ({used:.2f} s CPU time)"
            lines.append(f"- {size:,} trials{of_these}, {name}: {seconds}, limit {LIMITS[size]:g} s: {is_met}.")
    return lines


def text_of(found: Shown, about: str) -> str:
    used = tuple(cpu_key(part) for part in TIMED)
    columns = {part: (part,) for part in TIMED} | {"total": TIMED, "CPU time": used}
    columns |= {part: (part,) for part in WRITTEN}
    headings = ["stored trials", "in the queue", "sampler", *columns]
    lines = [
        [f"{size:,}", f"{queued:,}", name, *(span(trials, parts) for parts in columns.values())]
        for (size, queued, name), trials in found.items()
    ]
    return "\n\n".join(
        [f"Seconds per trial, minimum to maximum of {about}.", table(headings, lines), "\n".join(verdicts(found))]
    )


def main() -> None:
    arguments = _arguments()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not arguments.postgres:
        return report(arguments, arguments.storage)
    with running_server() as server:
        return report(arguments, server.new_database())


def report(arguments: argparse.Namespace, storage: str | None) -> None:
    """Measures a study in a database, or in a SQLite file, and writes its section."""
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
        f"load average about {load:.0f}, including this process"
    )
    origin = provenance().replace(arguments.storage or "\0", "URL")  # the URL may contain a password
    text = f"## Cost of a long study: {database}\n\n{text_of(found, about)}\n\n{origin}"
    print(text)
    write_section(RESULTS, f"long study on {database}", text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 1_000, 10_000])
    parser.add_argument("--samplers", nargs="+", choices=list(INNER), default=["tpe", "gp"])
    parser.add_argument("--trials", type=int, default=5, help="timed trials per size")
    parser.add_argument(
        "--queued", type=int, default=9_000, help="waiting trials in the last part, of the largest size; 0 skips it"
    )
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--form", default="paper")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--storage", help="database URL; default: a SQLite file")
    where.add_argument("--postgres", action="store_true", help="start a PostgreSQL server on this machine")
    return parser.parse_args()


if __name__ == "__main__":
    main()
