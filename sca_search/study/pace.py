"""Measures the pace of a study: a small real one is run in a folder that is thrown away, and its parts are timed.

Large data is measured on a share of its images: what takes a time for each image is scaled up, the rest is not.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import torch

from sca_search.config.study import StudySpec
from sca_search.data import AnySplit, LazySplit, Split
from sca_search.errors import RunError
from sca_search.runs.folder import new_run
from sca_search.study.events import DenseEpoch, Event, TrialEnded, TrialEpoch, TrialsQueued, TrialStarted
from sca_search.study.halving import rung_epochs
from sca_search.study.run import run_study
from sca_search.study.setup import make_task, prepare_costs
from sca_search.study.time_plan import Pace
from sca_search.study.workers import threads_of
from sca_search.system.signals import StopToken
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.fit import StopRequestedError
from sca_search.training.sensitivity import GRID
from sca_search.training.task import Task
from sca_search.training.train import RUNG_BATCHES, train_dense

# The small study. Its rungs lie behind epochs 2 and 4, so that five of seven gaps between epochs are plain ones.
_DENSE, _EPOCHS, _FROZEN, _TRIALS = 6, 8, 4, 3
# What a training epoch and a look at the validation split may take of it; above that, a share is measured.
# A look is short beside an epoch: what is wrong about it is taken for training, and scaled up with that.
_EPOCH_SECONDS, _LOOK_SECONDS = 0.8, 0.05
# No further trial begins where it would end later: on a machine that is very busy, one must do.
_MOST_SECONDS = 60.0
_FEW_BATCHES = 4
_FEW_IMAGES, _LOOKS = 512, 4
Say = Callable[[str], None]


@dataclass
class Times:
    """When what happened, in seconds."""

    dense: list[float] = field(default_factory=list)
    queued: list[float] = field(default_factory=list)
    started: dict[int, float] = field(default_factory=dict)
    ternary: dict[int, list[float]] = field(default_factory=dict)
    frozen: dict[int, list[float]] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)

    def on_event(self, event: Event) -> None:
        now = time.monotonic()
        match event:
            case DenseEpoch():
                self.dense.append(now)
            case TrialsQueued():
                self.queued.append(now)
            case TrialStarted(trial):
                self.started[trial] = now
            case TrialEpoch(trial, epoch):
                phase = self.ternary if epoch.phase == "ternary" else self.frozen
                phase.setdefault(trial, []).append(now)
            case TrialEnded(trial):
                self.ended[trial] = now


@dataclass(frozen=True)
class Share:
    """How many images of a split were measured, and how many there are."""

    measured: int
    all: int

    @property
    def missing(self) -> int:
        return self.all - self.measured

    @property
    def missing_of_few(self) -> int:
        """Of the batches that stand for a split at rungs and in layer sensitivity."""
        few = RUNG_BATCHES * EVALUATION_BATCH
        return min(few, self.all) - min(few, self.measured)


@dataclass(frozen=True)
class Shares:
    """Of what was measured, and the seconds that one image takes to look at."""

    train: Share
    val: Share
    test: Share
    look: float = 0.0
    sensitivities: int = 0  # networks that are looked at, one layer rounded in each


def measure_pace(spec: StudySpec, say: Say, stop: StopToken) -> Pace:
    """Runs the small study; raises for everything that the real one would refuse."""
    whole = make_task(spec)  # which may download
    prepare_costs(spec, whole, None, say)  # which is kept, so that the run finds it
    say("timing the start of a run")
    start = _import_seconds(stop)
    torch.set_num_threads(threads_of(spec, whole))  # as the study will, so that the first guess is of its pace
    train, val = _affordable(whole, spec, stop)
    amount = {"dense_epochs": _DENSE, "epochs": _EPOCHS, "frozen_epochs": _FROZEN}
    limit = {"train_limit": train} if train < len(whole.data.train) else {}
    trials = _TRIALS if spec.search.workers == 1 else 2 * spec.search.workers
    with tempfile.TemporaryDirectory() as folder:
        small = spec.model_copy(
            update={
                "name": "probe",
                "out": Path(folder),
                "data": spec.data.model_copy(update=limit),
                "train": spec.train.model_copy(update=amount),
                "search": spec.search.model_copy(update={"trials": trials, "refits": 0, "time_budget": _MOST_SECONDS}),
            }
        )
        began = time.monotonic()
        task = make_task(small)
        costs = prepare_costs(small, task, None)
        start += time.monotonic() - began
        if spec.search.workers == 1:  # other processes read the data by themselves
            task = _with_less_to_look_at(task, val)
        shares = _shares(task, whole)
        say(f"timing a small study: {trials} trials{_on(shares)}")
        times, run = Times(), new_run(small)
        began = time.monotonic()
        if run_study(run, small, task, [times], stop, costs).stopped:
            raise StopRequestedError
        return scaled(pace_of(times, small, start, began, time.monotonic()), shares)


def pace_of(times: Times, spec: StudySpec, start: float, began: float, over: float) -> Pace:
    """The pace of what was timed, as it was."""
    whole = [trial for trial, epochs in times.frozen.items() if len(epochs) == spec.train.frozen_epochs]
    if not whole:
        raise RunError("the pace cannot be measured: no trial of the small study came to its end")
    rungs = rung_epochs(spec.search.rungs, spec.train.epochs)
    dense = statistics.fmean(_gaps(times.dense))
    epoch = statistics.fmean(gap for trial in whole for gap in _gaps(times.ternary[trial], rungs))
    frozen = statistics.fmean(gap for trial in whole for gap in _gaps(times.frozen[trial]))
    workers = spec.search.workers
    # Other processes take a while to start; in this one, a trial begins by sampling it.
    first = min(times.started.values()) if workers > 1 else times.queued[0]
    each = (max(times.ended.values()) - first) * workers / len(times.ended)
    return Pace(
        start=start,
        dense_epoch=dense,
        dense_rest=max(0.0, times.dense[0] - began - dense),
        before_trials=first - times.dense[-1],
        epoch=epoch,
        frozen_epoch=frozen,
        trial_rest=max(0.0, each - spec.train.epochs * epoch - spec.train.frozen_epochs * frozen),
        end=over - max(times.ended.values()),
        workers=workers,
    )


def scaled(pace: Pace, shares: Shares) -> Pace:
    """The pace on all images: of a training epoch's time, what is no look grows with the training split."""
    larger = shares.train.all / shares.train.measured
    look, missing = shares.look * shares.val.measured, shares.look * shares.val.missing

    def whole(epoch: float, looks: int) -> float:
        return larger * max(0.0, epoch - looks * look) + looks * (look + missing)

    through = shares.look * shares.train.missing  # once through what was left out
    few = shares.look * shares.train.missing_of_few
    sensitivity = shares.sensitivities * (few + shares.look * shares.val.missing_of_few)
    return replace(
        pace,
        dense_epoch=whole(pace.dense_epoch, 1),
        before_trials=pace.before_trials
        + through
        + missing
        + sensitivity,  # first the dense network's answers, its score
        epoch=whole(pace.epoch, 2),
        frozen_epoch=whole(pace.frozen_epoch, 1),
        # Normalisation is re-estimated on the training split; two rungs, two looks before and one after settling.
        trial_rest=pace.trial_rest + through + 2 * few + 5 * missing,
        end=pace.end + 2 * shares.look * shares.test.missing,
    )


def _gaps(times: list[float], without: tuple[int, ...] = ()) -> list[float]:
    """From each epoch to the next, but for those behind which something else was done."""
    return [later - earlier for epoch, (earlier, later) in enumerate(pairwise(times), 1) if epoch not in without]


def _import_seconds(stop: StopToken) -> float:
    """A process of its own that imports what a run does."""
    began = time.monotonic()
    imports = "import sca_search.cli.run, sca_search.study.progress, sca_search.study.run"
    done = subprocess.run([sys.executable, "-c", imports], capture_output=True, check=False)
    if stop.is_set():  # Ctrl-C ends that process, too
        raise StopRequestedError
    done.check_returncode()
    return time.monotonic() - began


def _affordable(task: Task, spec: StudySpec, stop: StopToken) -> tuple[int, int]:
    """How many training and validation images fit into the time that a small study may take, by a first guess."""
    few = min(len(task.data.train), _FEW_BATCHES * task.batch)
    ends: list[float] = []
    less = replace(task, data=replace(task.data, train=_first(task.data.train, few), val=_first(task.data.val, 1)))
    train_dense(
        less,
        epochs=3,
        learning_rate=spec.train.dense_learning_rate,
        seed=spec.seed,
        on_epoch=lambda _epoch: ends.append(time.monotonic()),
        stop=stop,
    )
    step = statistics.fmean(_gaps(ends)) / few
    train = max(few, round(_EPOCH_SECONDS / step))
    val = max(1, round(_LOOK_SECONDS / _look_seconds(task)))
    return min(train, len(task.data.train)), min(val, len(task.data.val))


def _look_seconds(task: Task) -> float:
    """Of one validation image."""
    some = _first(task.data.val, _FEW_IMAGES)
    less, model = replace(task, data=replace(task.data, val=some)), task.make_model()
    less.validate(model)  # the first time is not like the others
    began = time.monotonic()
    for _ in range(_LOOKS):
        less.validate(model)
    return (time.monotonic() - began) / (_LOOKS * len(some))


def _first(split: AnySplit, count: int) -> AnySplit:
    if isinstance(split, Split):
        return Split(split.images[:count], split.labels[:count])
    if isinstance(split, LazySplit):
        return replace(split, paths=split.paths[:count], labels=split.labels[:count])
    return split


def _with_less_to_look_at(task: Task, val: int) -> Task:
    if val == len(task.data.val):
        return task
    some = _first(task.data.val, val)
    return replace(task, data=replace(task.data, val=some, read_test=lambda: some))


def _shares(task: Task, whole: Task) -> Shares:
    train = Share(len(task.data.train), len(whole.data.train))
    val = Share(len(task.data.val), len(whole.data.val))
    if not train.missing and not val.missing:
        return Shares(train, val, Share(1, 1))
    tested = len(whole.data.read_test())  # counted, not looked at
    test = Share(val.measured if val.missing else tested, tested)
    return Shares(train, val, test, _look_seconds(whole), 1 + len(GRID) * len(whole.layer_shapes))


def _on(shares: Shares) -> str:
    if not shares.train.missing and not shares.val.missing:
        return ""
    return f" on {shares.train.measured:,} of {shares.train.all:,} training images"
