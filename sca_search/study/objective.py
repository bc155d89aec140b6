"""The search: an objective that trains a trial's candidate, and the loop that runs waiting trials.

The study is an ordinary Optuna study with two objectives, the study's metric and sparsity, both maximized.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from sca_search.config.candidate import Candidate
from sca_search.config.costs import TERNARY_SIZE
from sca_search.config.names import SCA
from sca_search.config.recipe import recipe_candidate
from sca_search.config.study import StudySpec
from sca_search.errors import CodeError, DivergenceError, LimitError, StorageError
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import planned_between
from sca_search.runs.log import logger
from sca_search.runs.trials import RUNG, trial_frame
from sca_search.study.artifacts import FILES, artifact_store, files_in
from sca_search.study.budgets import CostMeter, Costs
from sca_search.study.candidates import facts, keep
from sca_search.study.halving import RungScore, goes_on, rung_epochs
from sca_search.study.heartbeat import MISSED_HEARTBEATS, StaleTrialDetector, sending_heartbeats
from sca_search.study.optuna_internals import QueueEmptyError
from sca_search.study.queue import (
    has_waiting,
    is_running,
    is_superseded,
    observations,
    promote,
    requeue,
    requeue_lost,
    rows,
    rung_scores,
)
from sca_search.study.sampler import derived_seed
from sca_search.study.setup import build_cost_meter, given_prior, or_again
from sca_search.study.space import Space
from sca_search.study.storage import storage_errors
from sca_search.system.memory import oom_as_limit_error
from sca_search.system.secrets import scrub
from sca_search.ternary.prior_correction import Observation, asked_for, by_layer
from sca_search.training.evaluate import Score
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import Epoch, PausedError, Progress, Rungs, Settled, Task, WarmStart
from sca_search.training.train import train_candidate

# The training under way, in the store of artifacts.
CHECKPOINT = "checkpoint"
_POLL_SECONDS = 0.5
# What ends a training, and not the study that it is part of.
FAILURES = (CodeError, DivergenceError, LimitError)


@dataclass(frozen=True)
class Listener:
    """How a study talks to the outside."""

    on_start: Callable[[int, float], None] = field(default=lambda _trial, _sparsity: None)
    on_epoch: Callable[[int, Epoch], None] = field(default=lambda _trial, _epoch: None)
    on_end: Callable[[int], None] = field(default=lambda _trial: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    on_note: Callable[[str], None] = field(default=lambda _sentence: None)


class TakenOverError(Exception):
    """A trial that somebody else trains, or has trained: what this worker made of it does not count."""


@dataclass(frozen=True)
class Objective:
    """Trains one trial's candidate and keeps all that it gave."""

    run: RunFolder
    space: Space
    task: Task
    start: WarmStart
    listener: Listener
    given: tuple[Observation, ...] = ()  # what another study's prior file tells
    cost_meter: CostMeter | None = None  # measures what the goal limits
    worker: int = 1  # which of the processes that share the study
    on_beat: Callable[[], None] = field(default=lambda: None)  # between the epochs' steps, with each sign of life

    @property
    def spec(self) -> StudySpec:
        return self.space.spec

    def __call__(self, trial: optuna.Trial) -> tuple[float, float]:
        number = trial.user_attrs["candidate"]
        if is_superseded(trial.study, trial):
            raise TakenOverError
        with (
            sending_heartbeats(trial, self.spec.search.heartbeat, self.on_beat) as is_lost,
            _put_back_if_cut_short(trial, is_lost),
        ):
            trial.set_user_attr("worker", self.worker)
            candidate = self._candidate(trial, number)
            self.listener.on_start(trial.number, candidate.sparsity if self.spec.plans_sparsity else math.nan)
            settled = self._trained(trial, candidate, number, is_lost)
            if is_lost():
                raise TakenOverError
            return self._kept(trial, candidate, settled, number)

    def _trained(self, trial: optuna.Trial, candidate: Candidate, number: int, is_lost: Callable[[], bool]) -> Settled:
        """The candidate at its end."""
        epochs = _Counter()

        def on_epoch(epoch: Epoch) -> None:
            epochs.seen += 1
            self.listener.on_epoch(trial.number, epoch)

        def is_over() -> bool:
            return is_lost() or self.listener.stop_requested()

        progress = Progress(on_epoch, is_over, self.listener.on_note)
        rungs = self._rungs(trial, number, candidate.sparsity)
        self._fetch_checkpoint(trial, number)
        try:
            with oom_as_limit_error():
                return or_again(
                    lambda: train_candidate(candidate, self.task, self.start, progress, rungs),
                    self.run.checkpoint(number),
                    self._note,
                )
        except FAILURES as error:
            trial.set_user_attr("reason", scrub(str(error)))
            logger.warning("trial %d failed", trial.number, exc_info=True)
            raise
        except PausedError as error:
            raise optuna.TrialPruned from error
        finally:
            with contextlib.suppress(UpdateFinishedTrialError):
                trial.set_user_attr("epochs", epochs.seen)

    def _note(self, sentence: str) -> None:
        logger.warning(sentence)
        self.listener.on_note(sentence)

    def _kept(self, trial: optuna.Trial, candidate: Candidate, settled: Settled, number: int) -> tuple[float, float]:
        costs = self.cost_meter(settled.model, self.task) if self.cost_meter else Costs()
        counted = keep(self.run, number, candidate, settled, self.task, costs)
        if (store := artifact_store(self.run)) is not None:
            trial.set_user_attr(FILES, store.upload(self._files(number)))
        for name, value in (facts(settled) | {TERNARY_SIZE.key: counted.ternary_bytes} | dict(costs.figures)).items():
            trial.set_user_attr(name, value)
        trial.set_user_attr("images", len(self.task.data.val))
        if self._asks_the_prior:
            trial.set_user_attr("observed", observed(candidate, settled))
        return settled.score.accuracy, counted.sparsity

    def drop_checkpoint(self, trial: FrozenTrial) -> None:
        """Of a trial that is complete: until its end is known to all, it may have to go on from there."""
        if (store := artifact_store(self.run)) is not None and (name := trial.user_attrs.get(CHECKPOINT)):
            store.delete(name)
        self.run.checkpoint(trial.user_attrs["candidate"]).unlink(missing_ok=True)

    def _files(self, number: int) -> list[Path]:
        """Of a candidate that is whole."""
        return [path for path in files_in(self.run.candidate(number)) if path != self.run.checkpoint(number)]

    def _fetch_checkpoint(self, trial: optuna.Trial, number: int) -> None:
        """Where another machine left off."""
        store, name = artifact_store(self.run), trial.user_attrs.get(CHECKPOINT)
        if store is not None and isinstance(name, str):
            try:
                store.download_as(name, self.run.checkpoint(number))
            except StorageError as error:
                self._note(f"{error}; the training starts again")

    @property
    def _asks_the_prior(self) -> bool:
        """A recipe does not, nor does any other method."""
        return self.spec.recipe is None and self.spec.search.method == SCA

    def _sampled(self, trial: optuna.Trial, seed: int) -> Candidate:
        """The trial's values as a candidate of the sparsity that was planned when it was queued; else of one that
        follows now, from all that has been seen and from what is limited."""
        attributes, goal = trial.user_attrs, self.spec.goal
        if "planned_sparsity" in attributes:
            candidate = self.space.sample(trial, float(attributes["planned_sparsity"]), seed)
            return candidate.model_copy(update={"split": attributes["split"]}) if "split" in attributes else candidate
        seen = trial_frame(rows(trial.study))
        if limits := self.space.limits(seen):
            candidate = self.space.sample(trial, 0.0, seed, limits)
            # Limits change with what is seen, the split of a candidate that goes on does not.
            trial.set_user_attr("split", candidate.split)
        else:
            assert goal.min_accuracy is not None
            planned = self.space.possible(planned_between(seen, goal.min_accuracy))
            candidate = self.space.sample(trial, planned, seed)
        trial.set_user_attr("planned_sparsity", candidate.sparsity)
        return candidate

    def _candidate(self, trial: optuna.Trial, number: int) -> Candidate:
        """The trial's candidate; what the prior is asked for follows from what others reached."""
        if self.spec.recipe is not None:
            return recipe_candidate(self.spec, derived_seed(self.spec.seed, number))
        layers, seed = self.task.layer_shapes, derived_seed(self.spec.seed, number)
        if not self.spec.plans_sparsity:
            return self.space.sample(trial, 0.0, seed)
        candidate = self._sampled(trial, seed)
        if self.space.budgets is not None:
            split = {layer.name: candidate.sparsity_of(layer.name) for layer in layers}
            for name, value in self.space.budgets.predicted(split).items():
                trial.set_user_attr(name, value)
        if not self._asks_the_prior:
            return candidate
        if "asked" not in trial.user_attrs:  # a candidate that goes on keeps what it began with
            trial.set_user_attr("asked", self.asked(trial.study, candidate))
        asked = trial.user_attrs["asked"]
        plan = {layer.name: candidate.sparsity_of(layer.name) for layer in layers}
        return candidate if asked == plan else candidate.model_copy(update={"asked": asked})

    def asked(self, study: optuna.Study, candidate: Candidate) -> dict[str, float]:
        """The sparsity to ask the prior for, a layer."""
        seen = by_layer([*self.given, *observations(study)] if self.spec.search.correction else [])
        return {
            layer.name: asked_for(
                seen.get(layer.name, []),
                candidate.sparsity_of(layer.name),
                candidate.strength_of(layer.name, candidate.epochs),
            )
            for layer in self.task.layer_shapes
        }

    def _rungs(self, trial: optuna.Trial, number: int, sparsity: float) -> Rungs:
        def passes(epoch: int, score: Score) -> bool:
            trial.set_user_attr(f"{RUNG}{epoch}", score.loss)
            trial.set_user_attr("rung_metric", score.accuracy)
            mine = RungScore(number, sparsity, score.loss)
            return goes_on(mine, rung_scores(trial.study, epoch), self.spec.search.keep)

        def on_kept() -> None:
            trial.set_user_attr("checkpoints", trial.user_attrs.get("checkpoints", 0) + 1)
            if (store := artifact_store(self.run)) is not None:
                before = trial.user_attrs.get(CHECKPOINT)
                (name,) = store.upload([self.run.checkpoint(number)]).values()
                trial.set_user_attr(CHECKPOINT, name)
                if before:
                    store.delete(before)

        epochs = rung_epochs(self.spec.search.rungs, self.spec.train.epochs)
        return Rungs(epochs, passes, self.run.checkpoint(number), self.spec.search.checkpoint_every, on_kept)


def make_objective(
    run: RunFolder, space: Space, task: Task, start: WarmStart, listener: Listener, worker: int = 1
) -> Objective:
    """With the prior that the study began with, and what measures what its goal limits."""
    spec = space.spec
    cost_meter = build_cost_meter(run, spec, task)
    return Objective(run, space, task, start, listener, given_prior(run, spec, task), cost_meter, worker)


@dataclass
class _Counter:
    seen: int = 0


def observed(candidate: Candidate, settled: Settled) -> list[dict[str, Any]]:
    """What each layer was asked for and reached by rounding alone, for the prior's correction."""
    return [
        vars(Observation(layer, candidate.asked_of(layer), reached, candidate.strength_of(layer, candidate.epochs)))
        for layer, reached in settled.reached.items()
    ]


@contextlib.contextmanager
def _put_back_if_cut_short(trial: optuna.Trial, is_lost: Callable[[], bool]) -> Iterator[None]:
    """A candidate whose trial ends by anything but its own fault waits again."""
    try:
        yield
    except (*FAILURES, optuna.TrialPruned, TakenOverError):
        raise
    except BaseException as error:
        if is_lost():
            raise TakenOverError from error
        with contextlib.suppress(Exception):  # what ended the trial may also keep it from being put back
            requeue(trial.study, trial)
        raise


def work(
    study: optuna.Study, objective: Objective, may_begin: Callable[[], bool] = lambda: True, *, is_alone: bool = True
) -> None:
    """Runs waiting trials, as long as they may begin. A stop puts the trial under way back.

    Who is not alone looks after the others, also while it trains, and stays while they train: a trial whose heart stops
    is put back, and somebody must take it.
    """
    search = objective.spec.search
    if not is_alone:
        detector = StaleTrialDetector(study, MISSED_HEARTBEATS * search.heartbeat)
        objective = replace(objective, on_beat=partial(_look_after_others, study, detector))

    def on_end(_study: optuna.Study, trial: FrozenTrial) -> None:
        if trial.state == TrialState.COMPLETE:
            objective.drop_checkpoint(trial)
        promote(study, objective.spec)
        objective.listener.on_end(trial.number)

    while True:
        with storage_errors(objective.run), contextlib.suppress(QueueEmptyError, TakenOverError):
            objective.on_beat()
            waits = has_waiting(study)
            if not (waits or (not is_alone and is_running(study))) or not may_begin():
                return
            if objective.listener.stop_requested():  # between two trials: what is left is not run
                raise StopRequestedError
            if waits:
                _run_one(study, objective, on_end)
                continue
        time.sleep(min(_POLL_SECONDS, search.heartbeat / 2))


def _look_after_others(study: optuna.Study, detector: StaleTrialDetector) -> None:
    for trial in detector.stale():
        requeue_lost(study, trial)


def _run_one(study: optuna.Study, objective: Objective, on_end: Callable[[optuna.Study, FrozenTrial], None]) -> None:
    try:
        study.optimize(objective, n_trials=1, catch=FAILURES, callbacks=[on_end])
    except (UnboundLocalError, AssertionError) as error:
        # Optuna's own, where the end of a trial cannot be told: they hide what happened.
        hidden = error.__context__
        if isinstance(hidden, StorageInternalError):
            raise hidden from hidden.__cause__
        if hidden is not None and _has_ended(hidden):
            raise TakenOverError from error
        raise
    except (UpdateFinishedTrialError, ValueError) as error:
        if not _has_ended(error):
            raise
        raise TakenOverError from error


def _has_ended(error: BaseException) -> bool:
    """Optuna's two ways to say that a trial has ended, which another worker did that took ours for dead."""
    return isinstance(error, UpdateFinishedTrialError) or (
        isinstance(error, ValueError) and str(error).startswith("Cannot tell a")
    )


class Clock:
    """Says whether another trial, and the refits after it, still fit into the time budget."""

    def __init__(self, budget: float | None, refits: int) -> None:
        self._budget = budget
        self._refits = refits
        self._began = time.monotonic()
        self._longest = 0.0
        self._last = self._began

    def trial_begins(self) -> None:
        """Before the first one, worker processes start, which takes long but is no part of a trial."""
        if not self._longest:
            self._last = time.monotonic()

    def trial_fits(self) -> bool:
        now = time.monotonic()
        self._longest = max(self._longest, now - self._last)
        self._last = now
        if self._budget is None:
            return True
        return now - self._began + self._longest * (1 + self._refits) <= self._budget
