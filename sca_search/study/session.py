"""The search of the command line and the Python API: from a resolved study to its results.

`run_search` prepares the run folder. `run_study` runs the missing parts: warm start, trials, tables, refits, test,
summary.
"""

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import torch

from sca_search.config.names import format_metric
from sca_search.config.recipe import describe_scaling
from sca_search.config.storage_url import Shared
from sca_search.config.study import StudySpec
from sca_search.errors import StorageError, TakenError
from sca_search.runs.candidates import MODEL, damage_of
from sca_search.runs.choice import Choice
from sca_search.runs.folder import RunFolder, new_run, resumed_run
from sca_search.runs.goal import chosen_trial, described
from sca_search.runs.log import ProgressFile, logged, logger, note_command
from sca_search.runs.trials import trial_frame
from sca_search.study import events
from sca_search.study.artifacts import FILES, artifact_store, do_once, files_in
from sca_search.study.budgets import CostSetup, prepare_costs
from sca_search.study.events import Throttle
from sca_search.study.heartbeat import owner_name
from sca_search.study.objective import Clock, Objective, work
from sca_search.study.queue import complete_trials, fill_queue, join, open_study, queue_another, requeue_damaged, rows
from sca_search.study.ray_workers import RayWorkers
from sca_search.study.results import refit, summarize, write_tables
from sca_search.study.setup import (
    StudyContext,
    build_context,
    context_files,
    inputs_of,
    make_task,
    read_context,
    threads_of,
)
from sca_search.study.storage import storage_errors
from sca_search.study.workers import LocalWorkers
from sca_search.system.files import remove_leftovers, write_text_atomic
from sca_search.system.machine import __version__
from sca_search.system.signals import NEVER, StopToken, StopWhen, stop_on_interrupt
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import BY_NAME, Source, Task

# The tables of ten thousand trials take about a second to write, so they may lag behind the trials.
_FRACTION_FOR_TABLES = 0.05
# Trials beyond the requested number, if none of these was measured to be within the budgets.
_MOST_EXTRA_TRIALS = 3


@dataclass(frozen=True)
class Finished:
    """How a study ended."""

    run: RunFolder
    summary: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False
    is_joined: bool = False  # another command writes tables and summary
    exit_code: int = 0  # of the command, if it was stopped


def run_search(
    spec: StudySpec,
    command: Sequence[str],
    listeners: Sequence[events.StudyListener] = (),
    source: Source = BY_NAME,
    *,
    resume: bool = False,
    shared: Shared | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> Finished:
    """Run a study in a new or an existing run folder, which records the command.

    Mistakes of the user are raised before anything is written. Ctrl-C and SIGTERM stop the study and requeue the
    running trial.
    """
    task = make_task(spec, source)
    # Weights that do not fit are rejected before anything is written.
    inputs = inputs_of(spec, task, needs_weights=not resume)
    known = None
    if shared:
        known = join(spec, shared, inputs)
    elif resume:
        known = resumed_run(spec, training_is_whole=task.data.training_is_whole)
    costs = prepare_costs(spec, task, known.latency_file if known else None, say)
    run = known or new_run(spec)
    note_command(run, command, threads_of(spec, task), inputs)
    with stop_on_interrupt() as stop:
        return replace(run_study(run, spec, task, listeners, stop, costs), exit_code=stop.exit_code)


def run_study(
    run: RunFolder,
    spec: StudySpec,
    task: Task,
    listeners: Sequence[events.StudyListener] = (),
    stop: StopToken = NEVER,
    costs: CostSetup | None = None,
) -> Finished:
    """Run the missing parts of a study. After a stop, the tables hold the trials so far.

    A shared study whose run folder is in use by another process is joined instead.
    """
    try:
        with run.locked(), storage_errors(run):
            if run.shared is None:  # other machines may be writing their files
                remove_leftovers(run.path)
            return _lead(run, spec, task, listeners, stop, costs)
    except StorageError as error:
        return _stopped_by(error, run, events.emitter(listeners), stop)
    except TakenError:
        if run.shared is None:
            raise
    events.emitter(listeners)(events.Note(f"{run.path}: run folder is in use by another process; joining as a worker"))
    return join_study(run, spec, task, listeners, stop)


def _stopped_by(error: StorageError, run: RunFolder, emit: events.Emit, stop: StopToken) -> Finished:
    """A user who stops a study does not wait for a database or a disk; otherwise the error is raised."""
    if not stop.is_set():
        raise error
    emit(events.Note(str(error)))
    return Finished(run, stopped=True)


def _lead(
    run: RunFolder,
    spec: StudySpec,
    task: Task,
    listeners: Sequence[events.StudyListener],
    stop: StopToken,
    costs: CostSetup | None,
) -> Finished:
    began = time.monotonic()
    torch.set_num_threads(threads_of(spec, task))
    with logged(run), contextlib.closing(ProgressFile(run.progress_file)) as progress:
        goal = described(spec.goal) if spec.recipe is None else describe_scaling(spec)
        logger.info("sca-search %s, %d threads: %s", __version__, torch.get_num_threads(), goal)
        write_text_atomic(run.spec_file, spec.to_toml())  # a resumed study may have more trials
        active: list[events.StudyListener] = [events.LogListener(), events.ProgressListener(progress), *listeners]
        emit = events.emitter(active)
        emit(events.StudyStarted(run, spec, task.metric.name, _notes(spec, task, costs)))
        summary: dict[str, Any] = {}
        tables, stopped = None, False
        try:
            build = build_context if run.shared is None else _shared_context
            context = build(run, spec, task, costs, emit, stop)
            study = open_study(run, context.space, stop.is_set)
            _replace_damaged(run, study, emit)
            tables = _Tables(context, study)
            active.insert(0, tables)  # before the page, which reads them
            for run_trials in _rounds(context, study, emit, stop):
                run_trials()
            run_refits(context, study, emit, stop)
        except StopRequestedError:
            stopped = True
        if tables is not None:
            seconds, (frame, choice) = time.monotonic() - began, tables.write()
            summary = summarize(tables.context, frame, choice, seconds, StopWhen(lambda: stopped or stop.is_set()))
            # After a stop the chosen network is not tested.
            stopped = stopped or (summary["chosen"] is not None and "test_metric" not in summary["chosen"])
        emit(events.StudyEnded())
        logger.info(_last_line(summary, stopped))
        return Finished(run, summary, stopped)


def _replace_damaged(run: RunFolder, study: optuna.Study, emit: events.Emit) -> None:
    """Have completed candidates whose files are missing or damaged trained again, or downloaded if there is a store."""
    if artifact_store(run) is None:
        for damage in requeue_damaged(study, run):
            emit(events.Note(f"{damage}; the candidate is trained again"))
        return
    for trial in complete_trials(study):
        folder = run.candidate(trial.user_attrs["candidate"])
        if damage_of(folder) is not None:
            (folder / MODEL).unlink(missing_ok=True)


def join_study(
    run: RunFolder, spec: StudySpec, task: Task, listeners: Sequence[events.StudyListener] = (), stop: StopToken = NEVER
) -> Finished:
    """Train trials of a shared study until none is left; another command writes the tables and the summary."""
    torch.set_num_threads(threads_of(spec, task))
    emit = events.emitter([events.LogListener(), *listeners])
    stopped = False
    try:
        with storage_errors(run), logged(run, f"{owner_name()}: "):
            logger.info("sca-search %s joins %s", __version__, run.study_name)
            emit(events.StudyStarted(run, spec, task.metric.name))
            try:
                context = _shared_context(run, spec, task, None, emit, stop)
                study = open_study(run, context.space, stop.is_set)
                for run_trials in _rounds(context, study, emit, stop):
                    run_trials()
            except StopRequestedError:
                logger.info("stopped by the user")
                stopped = True
    except StorageError as error:
        stopped = _stopped_by(error, run, emit, stop).stopped
    emit(events.StudyEnded())
    return Finished(run, stopped=stopped, is_joined=True)


def join_alone(run: RunFolder, spec: StudySpec, threads: int) -> None:
    """Train trials of a shared study in this process, with a run folder of its own unless all share one."""
    assert run.shared is not None
    with contextlib.ExitStack() as ended, stop_on_interrupt() as stop:
        out = run.path.parent
        if run.shared.artifacts is not None:
            out = Path(ended.enter_context(tempfile.TemporaryDirectory(prefix="sca-search-")))
        search = spec.search.model_copy(update={"workers": 1, "threads": threads})
        own = spec.model_copy(update={"out": out, "name": run.study_name, "search": search})
        task = make_task(own, check_test=False)
        joined = join(own, replace(run.shared, ray=None), inputs_of(own, task))
        join_study(joined, own, task, (), stop)


def _notes(spec: StudySpec, task: Task, costs: CostSetup | None) -> tuple[str, ...]:
    """Notes for the user on data, recipe and budgets, before the study runs."""
    data = [f"{task.data.name}: {note}" for note in task.data.notes]
    recipe = [] if spec.recipe is None else [describe_scaling(spec)]
    met = costs.met_without_zeros if costs else ()
    return (*data, *recipe, *(f"Even without zeros the network meets its budget: {budget}." for budget in met))


def _shared_context(
    run: RunFolder, spec: StudySpec, task: Task, costs: CostSetup | None, emit: events.Emit, stop: StopToken
) -> StudyContext:
    """The context of a study: one of the machines that share it builds it, the others wait for its files."""
    built: list[StudyContext] = []

    def build() -> None:
        built.append(build_context(run, spec, task, costs, emit, stop))

    files = partial(context_files, run)
    is_own = do_once(run, "dense warm start", build, files, stop.is_set, emit)
    return built[0] if is_own else read_context(run, spec, task)


class _Tables:
    """Keeps the tables of trials up to date while the study runs."""

    def __init__(self, context: StudyContext, study: optuna.Study) -> None:
        self.context, self._study = context, study
        self._throttle = Throttle(_FRACTION_FOR_TABLES)

    def on_event(self, event: events.Event) -> None:
        if isinstance(event, events.TrialEnded):
            self._throttle.run_if_due(self.write)

    def write(self) -> tuple[pd.DataFrame, Choice | None]:
        """The trials so far, and the chosen one."""
        fetch_candidates(self.context.run, self._study)
        frame = trial_frame(rows(self._study))
        return frame, write_tables(self.context.run, self.context.spec, frame)


def needs_processes(spec: StudySpec) -> bool:
    """Whether trials run in worker processes: several at once, or with limits that may require to kill one."""
    search = spec.search
    return search.workers > 1 or search.trial_time is not None or search.trial_memory_gb is not None


def prepare_worker(
    run: RunFolder, spec: StudySpec, emit: events.Emit, stop: StopToken, number: int
) -> Callable[[Callable[[], bool]], None]:
    """Read the study in a worker process; returns what runs its trials."""
    task = make_task(spec, check_test=False)  # the process that started this one has checked the test split
    torch.set_num_threads(threads_of(spec, task))
    context = read_context(run, spec, task)
    study = open_study(run, context.space, stop.is_set)
    return partial(work, study, Objective(context, emit, stop, number), is_alone=False)


def _rounds(
    context: StudyContext, study: optuna.Study, emit: events.Emit, stop: StopToken
) -> Iterator[Callable[[], None]]:
    """Functions that run the queued trials: one for the requested trials, then one per extra trial."""
    run, spec = context.run, context.spec
    is_alone = run.shared is None
    with storage_errors(run):
        waiting = fill_queue(study, context.space, is_alone=is_alone)
    emit(events.TrialsQueued(waiting, len(rows(study)) - waiting))
    clock = Clock(spec.search.time_budget, spec.search.refits)

    def timed(event: events.Event) -> None:
        clock.on_event(event)
        emit(event)

    def run_queued(may_begin: Callable[[], bool]) -> Callable[[], None]:
        if run.shared is not None and run.shared.ray is not None:
            threads = threads_of(spec, context.task)
            return RayWorkers(run, spec, study, timed, stop, threads, partial(join_alone, run, spec, threads)).work
        if needs_processes(spec):
            prepare = partial(prepare_worker, run, spec)
            return LocalWorkers(run, spec, study, timed, stop, may_begin, prepare).work
        return partial(work, study, Objective(context, timed, stop), may_begin, is_alone=is_alone)

    if waiting or not is_alone:
        yield run_queued(clock.trial_fits)
    for _ in range(_MOST_EXTRA_TRIALS if spec.goal.budgets else 0):
        frame = trial_frame(rows(study))
        if chosen_trial(frame, spec.goal, context.task.metric.name) is not None or not clock.trial_fits():
            return
        # The cost prediction may be off: queue another trial, planned with the measured ratio.
        with storage_errors(run):
            queue_another(study, context.space)
        emit(events.TrialsQueued(1, len(rows(study)) - 1))
        yield run_queued(lambda: True)


def run_refits(context: StudyContext, study: optuna.Study, emit: events.Emit, stop: StopToken) -> None:
    """Train the chosen candidate again with other seeds. A refit that fails is reported and left out."""
    run, spec = context.run, context.spec
    frame = trial_frame(rows(study))
    choice = chosen_trial(frame, spec.goal, context.task.metric.name)
    if choice is None:
        return
    fetch_candidates(run, study)
    number = int(frame.loc[frame["trial"] == choice.trial, "candidate"].iloc[0])
    for index in range(1, spec.search.refits + 1):
        train = partial(refit, context, number, index, emit, stop)
        if run.shared is None:
            train()
        else:
            files = partial(files_in, run.candidate(number, index))
            do_once(run, f"refit {index} of candidate {number}", train, files, stop.is_set, emit)


def fetch_candidates(run: RunFolder, study: optuna.Study) -> None:
    """Download what other machines have trained, if they do not share the run folder."""
    if (store := artifact_store(run)) is not None:
        for trial in complete_trials(study):
            store.download(trial.user_attrs.get(FILES, {}))


def _last_line(summary: dict[str, Any], stopped: bool) -> str:
    if stopped:
        return "stopped by the user"
    chosen = summary["chosen"]
    if not chosen:
        return "ended: no trial meets the goal"
    name = summary["metric_name"]
    return f"ended: trial {chosen['trial']} is chosen, test {name} {format_metric(name, chosen['test_metric'])}"
