"""How many epochs and trials fit into a time, from measured seconds per epoch.

Epochs come first: the most, up to a limit, that leave time for a useful search, 16 trials and two refits of the chosen
one. If there is no time for that even with few epochs, there are fewer trials, at least one.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from sca_search.config.candidate import Candidate
from sca_search.config.recipe import recipe_candidate
from sca_search.config.study import StudySpec
from sca_search.data import AnySplit, LazySplit, Split
from sca_search.errors import SpecError
from sca_search.runs.goal import typical_sparsity
from sca_search.study.budgets import prepare_costs
from sca_search.study.setup import make_task, threads_of
from sca_search.study.space import Space
from sca_search.system.signals import StopToken
from sca_search.training.task import Epoch, Task, WarmStart
from sca_search.training.train import train_candidate, train_dense

RESERVE = 0.9  # of the time is planned; the rest is for the test split, the page, and a machine that is busier later
# Ternary epochs of a trial. With fewer than 2 the schedules have no effect; above 40, more trials help more.
MIN_EPOCHS, MAX_EPOCHS = 2, 40
# Ratio of dense and frozen epochs to ternary ones, as in the defaults (30, 5 and 20), and their minimum.
_DENSE_RATIO, _FROZEN_RATIO, _MIN_DENSE, _MIN_FROZEN = 1.5, 0.25, 2, 1
# Minimum of trials, refits, and the fewest epochs with which this many trials are worth more than longer ones.
_LEVELS = ((16, 2, 10), (8, 1, 5), (4, 0, 3), (1, 0, MIN_EPOCHS))
# What is measured: this many epochs, on as many batches as take about this long.
_EPOCHS, _FROZEN, _EPOCH_SECONDS, _FEW_BATCHES = 3, 2, 1.0, 4
# Storing a trial and sampling the next: 0.4 to 0.7 s between two trials of the digits, on two busy cores.
_TRIAL_SECONDS = 0.5

Say = Callable[[str], None]


@dataclass(frozen=True)
class StudySize:
    """How much a study trains."""

    dense_epochs: int
    epochs: int
    frozen_epochs: int
    trials: int
    refits: int

    def __str__(self) -> str:
        trials = "1 trial" if self.trials == 1 else f"{self.trials} trials"
        refits = {0: "no refits", 1: "1 refit"}.get(self.refits, f"{self.refits} refits")
        return (
            f"{self.dense_epochs} dense epochs, {trials} and {refits} of {self.epochs} + {self.frozen_epochs} epochs "
            "each"
        )


@dataclass(frozen=True)
class Pace:
    """Measured seconds of the parts of a study."""

    start: float  # Python, torch, data and network
    dense_epoch: float
    epoch: float  # with the validation of the soft and the rounded network
    frozen_epoch: float
    trial_rest: float  # of a trial in addition to its epochs
    workers: int = 1

    def trial(self, size: StudySize) -> float:
        """Seconds per trial."""
        return size.epochs * self.epoch + size.frozen_epochs * self.frozen_epoch + self.trial_rest

    def parts(self, size: StudySize) -> dict[str, float]:
        """Seconds of a study by part; a refit takes as long as a trial."""
        return {
            "start": self.start,
            "dense warm start": size.dense_epochs * self.dense_epoch,
            "trials": math.ceil(size.trials / self.workers) * self.trial(size),
            "refits": size.refits * self.trial(size),
        }

    def seconds(self, size: StudySize) -> float:
        """Seconds of the whole study."""
        return sum(self.parts(size).values())


def measure_pace(spec: StudySpec, say: Say, stop: StopToken, began: float | None = None) -> Pace:
    """Time epochs of the dense warm start and of one trial; raises everything that the study would reject.

    Of large data, a fraction of both splits is used, and all times are divided by it. Constant parts are scaled as
    well, which errs on the safe side. `began` is when the program started, to be counted as part of the start.
    """
    began = time.monotonic() if began is None else began
    task = make_task(spec)
    start = time.monotonic() - began
    prepare_costs(spec, task, None, say)  # its calibration is cached for the study
    torch.set_num_threads(threads_of(spec, task))
    rough, _ = _time_dense(_part_of(task, _FEW_BATCHES), spec, stop)
    batches = max(_FEW_BATCHES, round(_FEW_BATCHES * _EPOCH_SECONDS / rough))
    part = _part_of(task, batches)
    fraction = len(part.data.train) / len(task.data.train)
    say("timing an epoch" + (f" on {len(part.data.train):,} training images" if fraction < 1 else ""))
    dense_epoch, warm_start = _time_dense(part, spec, stop)
    ends: dict[str, list[float]] = {"ternary": [], "frozen": []}

    def on_epoch(epoch: Epoch) -> None:
        ends[epoch.phase].append(time.monotonic())

    began = time.monotonic()
    train_candidate(_candidate(spec, task), part, warm_start, on_epoch, stop)
    total = time.monotonic() - began
    epoch, frozen = _mean_gap(ends["ternary"]), _mean_gap(ends["frozen"])
    rest = max(0.0, total - _EPOCHS * epoch - _FROZEN * frozen)
    return Pace(
        start,
        dense_epoch / fraction,
        epoch / fraction,
        frozen / fraction,
        rest / fraction + _TRIAL_SECONDS,
        spec.search.workers,
    )


def _time_dense(task: Task, spec: StudySpec, stop: StopToken) -> tuple[float, WarmStart]:
    """Seconds per epoch, and the dense network."""
    ends: list[float] = []
    warm_start = train_dense(
        task,
        epochs=_EPOCHS,
        learning_rate=spec.train.dense_learning_rate,
        seed=spec.seed,
        on_epoch=lambda _epoch: ends.append(time.monotonic()),
        stop=stop,
        with_teacher=spec.uses_teacher,
    )
    return _mean_gap(ends), warm_start


def _candidate(spec: StudySpec, task: Task) -> Candidate:
    """The first candidate of the study, for a few epochs."""
    if spec.recipe:
        candidate = recipe_candidate(spec, spec.seed)
    else:
        space = Space(spec, task.layer_shapes)
        sparsity = space.possible(typical_sparsity(spec.goal))
        candidate = space.candidate(space.first_guess(), sparsity, spec.seed)
    return candidate.model_copy(update={"epochs": _EPOCHS, "frozen_epochs": _FROZEN})


def _part_of(task: Task, batches: int) -> Task:
    """The task on the first batches of the training split, and on the same fraction of the validation split."""
    train = _first(task.data.train, batches * task.batch)
    val = _first(task.data.val, math.ceil(len(task.data.val) * len(train) / len(task.data.train)))
    return replace(task, data=replace(task.data, train=train, val=val))


def _first(split: AnySplit, count: int) -> AnySplit:
    if isinstance(split, Split):
        return Split(split.images[:count], split.labels[:count])
    if isinstance(split, LazySplit):
        return replace(split, paths=split.paths[:count], labels=split.labels[:count])
    return split


def _mean_gap(ends: list[float]) -> float:
    """Mean time from the end of an epoch to the end of the next; the first epoch is slower and not counted."""
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def fit_study(seconds: float, pace: Pace, fixed: Mapping[str, int]) -> StudySize:
    """The size that fits into a time, with some of its numbers fixed; SpecError with the least time if none does."""
    for min_trials, refits, min_epochs in _LEVELS:
        for epochs in (fixed["epochs"],) if "epochs" in fixed else range(MAX_EPOCHS, min_epochs - 1, -1):
            one = _with_one_trial(epochs, fixed, refits)
            # The most trials that fit, with workers in parallel.
            rounds = math.floor((seconds - pace.seconds(replace(one, trials=0))) / pace.trial(one))
            trials = fixed.get("trials") or max(0, rounds * pace.workers)
            size = replace(one, trials=max(1, trials))
            if trials >= (fixed.get("trials") or min_trials) and pace.seconds(size) <= seconds:
                return size
    least = replace(_with_one_trial(fixed.get("epochs", MIN_EPOCHS), fixed, 0), trials=fixed.get("trials", 1))
    raise SpecError(
        f"--time must be at least {math.ceil(pace.seconds(least) / RESERVE)}s for {least} on this machine, got "
        f"{seconds / RESERVE:g}s"
    )


def _with_one_trial(epochs: int, fixed: Mapping[str, int], refits: int) -> StudySize:
    dense = fixed.get("dense_epochs", max(_MIN_DENSE, round(_DENSE_RATIO * epochs)))
    frozen = max(_MIN_FROZEN, round(_FROZEN_RATIO * epochs))
    return StudySize(dense, epochs, frozen, 1, fixed.get("refits", refits))
