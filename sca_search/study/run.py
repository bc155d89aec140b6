"""A whole study, from its spec to the summary: warm start, trials, tables, refits, test."""

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from sca_search.config.names import format_metric
from sca_search.config.recipe import describe_scaling
from sca_search.config.study import StudySpec
from sca_search.errors import StorageError, TakenError
from sca_search.export.latency.model import Calibration
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import described
from sca_search.runs.log import logged, logger
from sca_search.runs.progress import ProgressFile
from sca_search.runs.trials import trial_frame
from sca_search.study.events import Audience, with_progress
from sca_search.study.heartbeat import owner_name
from sca_search.study.outcome import summarize, write_tables
from sca_search.study.queue import observations, open_study, rows
from sca_search.study.rounds import fetch_candidates, prepare, run_refits, run_trials
from sca_search.study.setup import make_task, prepare_budgets
from sca_search.study.storage import storage_errors
from sca_search.study.workers import threads_of
from sca_search.system.files import write_text_atomic
from sca_search.system.throttle import Throttle
from sca_search.system.versions import __version__
from sca_search.ternary.prior_file import write_prior
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import Task

# Of ten thousand trials, tables and prior take seconds to write: they may lag behind the trials a little.
_SHARE_OF_TABLES = 0.05


@dataclass(frozen=True)
class Finished:
    """How a study ended."""

    summary: dict[str, object]
    stopped: bool
    is_joined: bool = False  # tables and summary are another command's business


def run_study(
    run: RunFolder, spec: StudySpec, task: Task, audience: Audience, calibration: Calibration | None = None
) -> Finished:
    """Runs what is missing of a study. A stop leaves the front so far, written down.

    A shared study whose run folder somebody else here works in is joined instead.
    """
    try:
        with run.locked(), storage_errors(run):
            return _led(run, spec, task, audience, calibration)
    except StorageError as error:
        return _stopped_by(error, audience)
    except TakenError:
        if run.shared is None:
            raise
    audience.on_note(f"{run.path}: another sca-search works in this folder and writes its tables; this one only trains")
    return join_study(run, spec, task, audience)


def _stopped_by(error: StorageError, audience: Audience) -> Finished:
    """Who was told to stop does not wait for a database or a disk; raises where nobody was."""
    if not audience.stop_requested():
        raise error
    audience.on_note(str(error))
    return Finished({}, stopped=True)


def _led(run: RunFolder, spec: StudySpec, task: Task, audience: Audience, calibration: Calibration | None) -> Finished:
    began = time.monotonic()
    torch.set_num_threads(threads_of(spec, task))
    progress = ProgressFile(run.progress_file)
    with logged(run), contextlib.closing(progress):
        aim = described(spec.goal) if spec.recipe is None else describe_scaling(spec)
        logger.info("sca-search %s, %d threads: %s", __version__, torch.get_num_threads(), aim)
        audience = with_progress(audience, progress)
        write_text_atomic(run.spec_file, spec.to_toml())  # a study that goes on may have been given more trials
        pages = audience.page(run)
        progress.note("dense warm start", 0, spec.train.dense_epochs)
        pages.write()
        try:
            start, space = prepare(run, spec, task, audience, calibration)
        except StopRequestedError:
            logger.info("stopped as asked")
            progress.close()
            pages.write()
            return Finished({}, stopped=True)
        study = open_study(run, space, audience.stop_requested)

        tables = Throttle(_SHARE_OF_TABLES)

        def write_trials() -> pd.DataFrame:
            fetch_candidates(run, study)
            frame = trial_frame(rows(study))
            write_tables(run, spec, frame)
            write_prior(run.prior_file, spec.search.form, task.layer_shapes, observations(study))
            return frame

        def on_row() -> None:
            tables.run_if_due(write_trials)
            pages.write_if_due()

        stopped = False
        try:
            run_trials(run, space, task, start, study, audience, on_row)
            run_refits(run, spec, task, start, study, audience)
        except StopRequestedError:
            stopped = True
        seconds, frame = time.monotonic() - began, write_trials()
        summary = summarize(run, spec, frame, task, start, seconds, lambda: stopped or audience.stop_requested())
        stopped = stopped or not _is_tested(summary)
        progress.close()
        pages.write()
        logger.info(_last_word(summary, stopped))
        return Finished(summary, stopped)


def join_study(run: RunFolder, spec: StudySpec, task: Task, audience: Audience) -> Finished:
    """Trains trials of a shared study as long as there are any, and leaves tables and the choice to others."""
    torch.set_num_threads(threads_of(spec, task))
    stopped = False
    try:
        with storage_errors(run), logged(run, f"{owner_name()}: "):
            logger.info("sca-search %s joins %s", __version__, run.study_name)
            try:
                start, space = prepare(run, spec, task, audience)
                study = open_study(run, space, audience.stop_requested)
                run_trials(run, space, task, start, study, audience, lambda: None)
            except StopRequestedError:
                logger.info("stopped as asked")
                stopped = True
    except StorageError as error:
        stopped = _stopped_by(error, audience).stopped
    return Finished({}, stopped=stopped, is_joined=True)


def _is_tested(summary: dict[str, Any]) -> bool:
    """Whether there is nothing left to do: a stop in the midst of the test images leaves them out."""
    chosen = summary["chosen"]
    return chosen is None or "test_metric" in chosen


def _last_word(summary: dict[str, Any], stopped: bool) -> str:
    if stopped:
        return "stopped as asked"
    chosen = summary["chosen"]
    if not chosen:
        return "ended: no trial meets the goal"
    name = summary["metric_name"]
    return f"ended: trial {chosen['trial']} is chosen, test {name} {format_metric(name, chosen['test_metric'])}"


__all__ = ["Audience", "Finished", "join_study", "make_task", "prepare_budgets", "run_study"]
