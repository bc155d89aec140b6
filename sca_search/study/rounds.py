"""The rounds of a study: what it needs before its trials, the trials, and the refits of the chosen one.

Where several machines share a study, each goes through the same rounds: what is to be done once is done by one of them,
and the others wait for it.
"""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import optuna

from sca_search.config.study import StudySpec
from sca_search.errors import LimitError
from sca_search.export.latency.model import Calibration
from sca_search.export.latency.table import write_calibration
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import chosen_trial
from sca_search.runs.log import logger
from sca_search.runs.trials import trial_frame
from sca_search.study.artifacts import FILES, artifact_store, files_in
from sca_search.study.events import Audience
from sca_search.study.objective import FAILURES, Clock, Listener, make_objective, work
from sca_search.study.once import OnceTasks
from sca_search.study.outcome import refit
from sca_search.study.queue import complete_trials, fill_queue, queue_another, rows
from sca_search.study.setup import (
    build_cost_meter,
    layer_costs,
    make_space,
    needs_costs,
    read_warm_start,
    take_prior,
    warm_start,
    write_closed_form,
)
from sca_search.study.space import Space
from sca_search.study.storage import storage_errors
from sca_search.study.workers import LocalWorkers, needs_processes
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import Progress, Task, WarmStart

# Trials beyond those asked for, where none of these was measured to be within the budgets.
_MOST_MORE = 3


def _chores(run: RunFolder, audience: Audience) -> OnceTasks:
    def on_wait(chore: str) -> None:
        audience.on_note(f"waiting for another machine to finish: {chore}")

    return OnceTasks(run, audience.stop_requested, on_wait)


def prepare(
    run: RunFolder, spec: StudySpec, task: Task, audience: Audience, calibration: Calibration | None = None
) -> tuple[WarmStart, Space]:
    """The dense warm start, and what is searched from there; StopRequestedError where it is stopped."""
    progress = Progress(audience.on_dense_epoch, audience.stop_requested, audience.on_note)

    def on_sensitivity(*told: Any) -> None:
        if audience.stop_requested():
            raise StopRequestedError
        audience.on_sensitivity(*told)

    def do() -> None:
        if calibration is not None:
            write_calibration(run.latency_file, calibration)
        start = warm_start(run, spec, task, progress)
        take_prior(run, spec, task)
        write_closed_form(run, spec, task, start)
        if needs_costs(spec, task):
            layer_costs(run, spec, task, start, on_sensitivity)

    def files() -> list[Path]:
        dense = [run.dense_file, run.dense_scores_file]
        return [*dense, run.given_prior_file, run.closed_form_file, run.sensitivity_file, run.latency_file]

    _chores(run, audience).once("dense warm start", do, files)
    start = read_warm_start(run)
    return start, make_space(run, spec, task, start)


def run_trials(
    run: RunFolder,
    space: Space,
    task: Task,
    start: WarmStart,
    study: optuna.Study,
    audience: Audience,
    on_row: Callable[[], None],
) -> None:
    """Runs what waits, with others where the study is shared; `on_row` is called after each trial of this machine."""
    spec, is_alone = space.spec, run.shared is None
    with storage_errors(run):
        waiting = fill_queue(study, space, is_alone=is_alone)
    audience.on_queue(waiting, len(rows(study)) - waiting)
    clock = Clock(spec.search.time_budget, spec.search.refits)
    listener = _listener(study, clock, audience, on_row)

    def run_waiting(may_begin: Callable[[], bool]) -> None:
        if needs_processes(spec):
            LocalWorkers(run, spec, study, listener, may_begin).work()
        else:
            work(study, make_objective(run, space, task, start, listener), may_begin, is_alone=is_alone)

    if waiting or not is_alone:
        run_waiting(clock.trial_fits)

    def is_enough() -> bool:
        return chosen_trial(trial_frame(rows(study)), spec.goal, task.metric.name) is not None or not clock.trial_fits()

    left = _MOST_MORE if spec.goal.budgets else 0
    while left and not is_enough():
        # What was foretold may have erred; another trial is planned with what was seen.
        with storage_errors(run):
            queue_another(study, space)
        audience.on_queue(1, len(rows(study)) - 1)
        run_waiting(lambda: True)
        left -= 1


def _listener(study: optuna.Study, clock: Clock, audience: Audience, on_row: Callable[[], None]) -> Listener:
    def on_end(number: int) -> None:
        on_row()
        # One that was put back meanwhile counts as the trial that came after it.
        for row in rows(study):
            if row["trial"] == number:
                audience.on_trial_end(row)

    def on_start(number: int, sparsity: float) -> None:
        clock.trial_begins()
        audience.on_trial_start(number, sparsity)

    return Listener(on_start, audience.on_trial_epoch, on_end, audience.stop_requested, audience.on_note)


def run_refits(
    run: RunFolder, spec: StudySpec, task: Task, start: WarmStart, study: optuna.Study, audience: Audience
) -> None:
    """Trains the chosen candidate again with other seeds. One that fails is told of and left out."""
    frame = trial_frame(rows(study))
    chosen = chosen_trial(frame, spec.goal, task.metric.name)
    if chosen is None:
        return
    fetch_candidates(run, study)
    number = int(frame.loc[frame["trial"] == chosen, "candidate"].iloc[0])
    chores = _chores(run, audience)
    for index in range(1, spec.search.refits + 1):
        name, folder = f"refit {index} of candidate {number}", run.candidate(number, index)
        progress = Progress(
            partial(audience.on_refit_epoch, index), _within(spec.search.trial_time, audience.stop_requested)
        )
        train = partial(refit, run, number, task, start, index, progress, build_cost_meter(run, spec, task))
        chores.once(name, partial(_or_note, name, train, audience), partial(files_in, folder))


def _within(seconds: float | None, stop_requested: Callable[[], bool]) -> Callable[[], bool]:
    """Asks for a stop, too, and ends a training that takes longer than a trial may."""
    began = time.monotonic()

    def stops() -> bool:
        if seconds is not None and time.monotonic() - began > seconds:
            raise LimitError(f"took longer than its {seconds:g} s")
        return stop_requested()

    return stops


def _or_note(name: str, train: Callable[[], None], audience: Audience) -> None:
    try:
        train()
    except FAILURES as error:
        logger.warning("%s failed", name, exc_info=True)
        audience.on_note(f"{name} failed and is left out: {error}")


def fetch_candidates(run: RunFolder, study: optuna.Study) -> None:
    """Brings what other machines have trained into the run folder, where they cannot write to it themselves."""
    store = artifact_store(run)
    for trial in complete_trials(study) if store is not None else ():
        assert store is not None
        store.download(trial.user_attrs.get(FILES, {}))
