"""Who watches a study: a screen, a file and the log."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from sca_search.runs.folder import RunFolder
from sca_search.runs.log import log_end, log_epoch, logger
from sca_search.runs.progress import ProgressFile
from sca_search.training.task import Epoch


class ResultsPage(Protocol):
    """A page of a study's results, rendered from its run folder."""

    def write(self) -> None: ...

    def write_if_due(self) -> None:
        """Skips the update if rendering would slow the study down."""


class NoPage:
    """No page is written."""

    def __init__(self, _run: RunFolder) -> None:
        pass

    def write(self) -> None:
        pass

    def write_if_due(self) -> None:
        pass


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
    on_note: Callable[[str], None] = field(default=lambda _sentence: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    page: Callable[[RunFolder], ResultsPage] = NoPage


def with_progress(audience: Audience, progress: ProgressFile) -> Audience:
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

    def noted(sentence: str) -> None:
        logger.warning(sentence)
        audience.on_note(sentence)

    return replace(
        audience,
        on_note=noted,
        on_dense_epoch=dense,
        on_sensitivity=sensitivity,
        on_queue=queued,
        on_trial_start=started,
        on_trial_epoch=trial,
        on_trial_end=ended,
        on_refit_epoch=refitted,
    )
