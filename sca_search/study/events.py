"""The events of a study, and the listeners that record them. Does not import torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import ProgressFile, log_end, log_epoch, logger

if TYPE_CHECKING:
    from sca_search.training.task import Epoch

import time


class Event:
    """Something that happened in a study."""


@dataclass(frozen=True)
class StudyStarted(Event):
    """The run folder exists; nothing is trained yet."""

    run: RunFolder
    spec: StudySpec
    metric: str
    notes: tuple[str, ...] = ()  # about data, recipe and budgets, for the user


@dataclass(frozen=True)
class DenseEpoch(Event):
    """An epoch of the dense warm start."""

    epoch: "Epoch"


@dataclass(frozen=True)
class SensitivityStep(Event):
    """The sensitivity of one layer was measured."""

    layer: int  # from 1
    layers: int


@dataclass(frozen=True)
class TrialsQueued(Event):
    """The numbers of trials that wait and that finished before."""

    waiting: int
    finished: int


@dataclass(frozen=True)
class TrialStarted(Event):
    """A trial was sampled; its planned sparsity is NaN where the method does not plan one."""

    trial: int
    sparsity: float


@dataclass(frozen=True)
class TrialEpoch(Event):
    """An epoch of a trial."""

    trial: int
    epoch: "Epoch"


@dataclass(frozen=True)
class TrialEnded(Event):
    """A trial completed, failed or was paused; no row where its candidate is queued again already."""

    trial: int
    row: Mapping[str, Any] | None


@dataclass(frozen=True)
class RefitEpoch(Event):
    """An epoch of a refit."""

    refit: int
    epoch: "Epoch"


@dataclass(frozen=True)
class Note(Event):
    """Something that the user should know."""

    text: str


@dataclass(frozen=True)
class StudyEnded(Event):
    """All files are written, or the study was stopped."""


Emit = Callable[[Event], None]


class StudyListener(Protocol):
    """Receives the events of a study, in the process and thread that runs it."""

    def on_event(self, event: Event) -> None: ...


def emitter(listeners: Sequence[StudyListener]) -> Emit:
    """A function that passes an event to all listeners in order."""

    def emit(event: Event) -> None:
        for listener in listeners:
            listener.on_event(event)

    return emit


def ignore(_event: Event) -> None:
    """No listener."""


class ProgressListener:
    """Writes the current phase and epoch to the progress file; removes it at the end of the study."""

    def __init__(self, file: ProgressFile) -> None:
        self._file = file

    def on_event(self, event: Event) -> None:
        match event:
            case StudyStarted(spec=spec):
                self._file.note("dense warm start", 0, spec.train.dense_epochs)
            case DenseEpoch(epoch):
                self._file.note("dense warm start", epoch.epoch, epoch.epochs)
            case SensitivityStep(layer, layers):
                self._file.note("layer sensitivity", layer, layers)
            case TrialEpoch(trial, epoch):
                self._file.note(f"trial {trial}", epoch.epoch, epoch.epochs)
            case RefitEpoch(refit, epoch):
                self._file.note(f"refit {refit} of the chosen trial", epoch.epoch, epoch.epochs)
            case StudyEnded():
                self._file.close()


class LogListener:
    """Writes events to the run's log."""

    def on_event(self, event: Event) -> None:
        match event:
            case DenseEpoch(epoch):
                log_epoch("dense warm start", epoch)
            case SensitivityStep(layer, layers):
                logger.debug("layer sensitivity: layer %d of %d", layer, layers)
            case TrialsQueued(waiting, finished):
                logger.info("%d trials to run, %d finished before", waiting, finished)
            case TrialStarted(trial, sparsity):
                planned = "" if math.isnan(sparsity) else f", planned sparsity {sparsity:.3%}"
                logger.info("trial %d starts%s", trial, planned)
            case TrialEpoch(trial, epoch):
                log_epoch(f"trial {trial}", epoch)
            case TrialEnded(row=row) if row is not None:
                log_end(row)
            case RefitEpoch(refit, epoch):
                log_epoch(f"refit {refit}", epoch)
            case Note(text):
                logger.warning(text)


class TrialCounter:
    """Collects the numbers of the trials that ended."""

    def __init__(self) -> None:
        self.trials: list[int] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, TrialEnded) and event.row is not None:
            self.trials.append(event.trial)


class Throttle:
    """Runs work for at most a fraction of the time: after a run, the next one waits in proportion to its duration."""

    def __init__(self, fraction: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._fraction = fraction
        self._clock = clock
        self._due = 0.0

    def run(self, work: Callable[[], object]) -> None:
        began = self._clock()
        work()
        ended = self._clock()
        self._due = ended + (ended - began) * (1.0 / self._fraction - 1.0)

    def run_if_due(self, work: Callable[[], object]) -> None:
        """Run the work unless that would exceed its fraction of the time."""
        if self._clock() >= self._due:
            self.run(work)
