"""A whole study, from its spec to the summary: warm start, trials, tables, refits, test."""

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import optuna
import torch

from sca_search.dashboard import PageWriter
from sca_search.files import write_text_atomic
from sca_search.fit import StopRequestedError
from sca_search.goal import chosen_trial, described
from sca_search.latency import Calibration
from sca_search.latency_file import write_calibration
from sca_search.objective import Clock, Listener, make_objective, work
from sca_search.outcome import refit, summarize, write_tables
from sca_search.pacing import Pace
from sca_search.prior_file import write_prior
from sca_search.progress_file import ProgressFile
from sca_search.results import trial_frame
from sca_search.run_folder import RunFolder
from sca_search.run_log import log_end, log_epoch, logged, logger
from sca_search.shortening import told
from sca_search.space import Space
from sca_search.spec import StudySpec
from sca_search.task import Epoch, Progress, Task, WarmStart
from sca_search.trials import fill_queue, has_waiting, observations, open_study, queue_another, rows, storage_errors
from sca_search.versions import __version__
from sca_search.workers import run_processes, threads_of
from sca_search.workshop import (
    make_gauge,
    make_space,
    make_task,
    prepare_budgets,
    take_prior,
    warm_start,
    write_closed_form,
)

# Trials beyond those asked for, where none of these was measured to be within the budgets.
_MOST_MORE = 3
# Of ten thousand trials, tables and prior take seconds to write: they may lag behind the trials a little.
_SHARE_OF_TABLES = 0.05


@dataclass(frozen=True)
class Audience:
    """Who watches a study: told of every step, asked whether to stop."""

    on_dense_epoch: Callable[[Epoch], None] = field(default=lambda _epoch: None)
    on_sensitivity: Callable[[int, int], None] = field(default=lambda _layer, _layers: None)
    on_queue: Callable[[int, int], None] = field(default=lambda _waiting, _finished: None)
    on_trial_start: Callable[[int, float], None] = field(default=lambda _trial, _sparsity: None)
    on_trial_epoch: Callable[[int, Epoch], None] = field(default=lambda _trial, _epoch: None)
    on_trial_end: Callable[[dict[str, object]], None] = field(default=lambda _row: None)
    on_refit_epoch: Callable[[int, Epoch], None] = field(default=lambda _index, _epoch: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True)
class Finished:
    """How a study ended."""

    summary: dict[str, object]
    stopped: bool


def run_study(
    run: RunFolder, spec: StudySpec, task: Task, audience: Audience, calibration: Calibration | None = None
) -> Finished:
    """Runs what is missing of a study. A stop leaves the front so far, written down."""
    began = time.monotonic()
    torch.set_num_threads(threads_of(spec, task))
    progress = ProgressFile(run.progress_file)
    with run.locked(), logged(run), contextlib.closing(progress):
        aim = described(spec.goal) if spec.recipe is None else told(spec)
        logger.info("sca-search %s, %d threads: %s", __version__, torch.get_num_threads(), aim)
        audience = _with_progress(audience, progress)
        write_text_atomic(run.spec_file, spec.to_toml())  # a study that goes on may have been given more trials
        if calibration is not None:
            write_calibration(run.latency_file, calibration)
        pages = PageWriter(run)
        progress.note("dense warm start", 0, spec.train.dense_epochs)
        pages.write()
        try:
            start = warm_start(run, spec, task, Progress(audience.on_dense_epoch, audience.stop_requested))
        except StopRequestedError:
            logger.info("stopped as asked")
            progress.close()
            pages.write()
            return Finished({}, stopped=True)
        take_prior(run, spec, task)
        write_closed_form(run, spec, task, start)
        space = make_space(run, spec, task, start, audience.on_sensitivity)
        study = open_study(run, space)
        stopped = False
        try:
            _run_trials(run, space, task, start, study, audience, pages)
            _run_refits(run, spec, task, start, study, audience)
        except StopRequestedError:
            stopped = True
        ended = rows(study)
        _write_trials(run, spec, task, study, ended)
        frame = trial_frame(ended)
        summary = summarize(run, spec, frame, task, start, time.monotonic() - began)
        progress.close()
        pages.write()
        logger.info(_last_word(summary, stopped))
        return Finished(summary, stopped)


def _write_trials(
    run: RunFolder, spec: StudySpec, task: Task, study: optuna.Study, told: list[dict[str, object]]
) -> None:
    """The study so far, for those who read files."""
    write_tables(run, spec, trial_frame(told))
    write_prior(run.prior_file, spec.search.form, task.layer_shapes, observations(study))


def _last_word(summary: dict[str, Any], stopped: bool) -> str:
    if stopped:
        return "stopped as asked"
    chosen = summary["chosen"]
    if not chosen:
        return "ended: no trial meets the goal"
    return f"ended: trial {chosen['trial']} is chosen, test accuracy {chosen['test_accuracy']:.2%}"


def _with_progress(audience: Audience, progress: ProgressFile) -> Audience:
    """The audience, and beside it a file and the log for those who watch from elsewhere."""

    def dense(epoch: Epoch) -> None:
        progress.note("dense warm start", epoch.epoch, epoch.epochs)
        log_epoch("dense warm start", epoch)
        audience.on_dense_epoch(epoch)

    def sensitivity(layer: int, layers: int) -> None:
        progress.note("what rounding costs", layer, layers)
        logger.debug("what rounding costs: layer %d of %d", layer, layers)
        audience.on_sensitivity(layer, layers)

    def queued(waiting: int, finished: int) -> None:
        logger.info("%d trials to run, %d finished before", waiting, finished)
        audience.on_queue(waiting, finished)

    def started(number: int, sparsity: float) -> None:
        planned = "" if math.isnan(sparsity) else f", planned sparsity {sparsity:.3%}"
        logger.info("trial %d starts%s", number, planned)
        audience.on_trial_start(number, sparsity)

    def ended(row: dict[str, object]) -> None:
        log_end(row)
        audience.on_trial_end(row)

    def trial(number: int, epoch: Epoch) -> None:
        progress.note(f"trial {number}", epoch.epoch, epoch.epochs)
        log_epoch(f"trial {number}", epoch)
        audience.on_trial_epoch(number, epoch)

    def refitted(index: int, epoch: Epoch) -> None:
        progress.note(f"refit {index} of the chosen one", epoch.epoch, epoch.epochs)
        log_epoch(f"refit {index}", epoch)
        audience.on_refit_epoch(index, epoch)

    return replace(
        audience,
        on_dense_epoch=dense,
        on_sensitivity=sensitivity,
        on_queue=queued,
        on_trial_start=started,
        on_trial_epoch=trial,
        on_trial_end=ended,
        on_refit_epoch=refitted,
    )


def _run_trials(
    run: RunFolder,
    space: Space,
    task: Task,
    start: WarmStart,
    study: optuna.Study,
    audience: Audience,
    pages: PageWriter,
) -> None:
    spec = space.spec
    with storage_errors(run):
        waiting = fill_queue(study, space)
    audience.on_queue(waiting, len(rows(study)) - waiting)
    clock = Clock(spec.search.time_budget, spec.search.refits)

    tables = Pace(_SHARE_OF_TABLES)

    def on_end(number: int) -> None:
        told = rows(study)
        tables.run_if_due(lambda: _write_trials(run, spec, task, study, told))
        pages.write_if_due()
        audience.on_trial_end(next(row for row in told if row["trial"] == number))

    def on_start(number: int, sparsity: float) -> None:
        clock.trial_begins()
        audience.on_trial_start(number, sparsity)

    listener = Listener(on_start, audience.on_trial_epoch, on_end, audience.stop_requested)
    if spec.search.workers > 1 and waiting > 1:
        run_processes(run, spec, waiting, listener, clock.trial_fits)
    else:
        work(
            study, make_objective(run, space, task, start, listener), lambda: has_waiting(study) and clock.trial_fits()
        )
    for _ in range(_MOST_MORE if spec.goal.budgets else 0):
        # What was foretold may have erred; another trial is planned with what was seen.
        if chosen_trial(trial_frame(rows(study)), spec.goal, task.metric.name) is not None or not clock.trial_fits():
            break
        with storage_errors(run):
            queue_another(study, space)
        audience.on_queue(1, len(rows(study)) - 1)
        work(study, make_objective(run, space, task, start, listener), lambda: has_waiting(study))


def _run_refits(
    run: RunFolder, spec: StudySpec, task: Task, start: WarmStart, study: optuna.Study, audience: Audience
) -> None:
    frame = trial_frame(rows(study))
    chosen = chosen_trial(frame, spec.goal, task.metric.name)
    if chosen is None:
        return
    number = int(frame.loc[frame["trial"] == chosen, "candidate"].iloc[0])
    for index in range(1, spec.search.refits + 1):
        progress = Progress(partial(audience.on_refit_epoch, index), audience.stop_requested)
        refit(run, number, task, start, index, progress, make_gauge(run, spec, task))


__all__ = ["Audience", "Finished", "make_task", "prepare_budgets", "run_study"]
