"""The objective that trains a trial's candidate, and the loop that runs waiting trials.

The study is an ordinary Optuna study with two objectives, the study's metric and sparsity, both maximized.
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import optuna
from optuna.exceptions import StorageInternalError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from sca_search.config.candidate import Candidate
from sca_search.config.recipe import recipe_candidate
from sca_search.config.study import StudySpec
from sca_search.errors import CheckpointError, StorageError
from sca_search.runs.goal import planned_between
from sca_search.runs.log import logger
from sca_search.runs.trials import RUNG, trial_frame
from sca_search.study import queue
from sca_search.study.artifacts import FILES, artifact_store, files_in
from sca_search.study.events import Emit, Event, Note, TrialEpoch, TrialStarted, ignore
from sca_search.study.halving import RungScore, continues_at_rung, rung_epochs
from sca_search.study.heartbeat import MISSED_HEARTBEATS, StaleTrialDetector, sending_heartbeats
from sca_search.study.optuna_internals import QueueEmptyError
from sca_search.study.queue import TakenOverError
from sca_search.study.results import FAILURES, write_candidate
from sca_search.study.sampler import derived_seed
from sca_search.study.storage import storage_errors
from sca_search.system.console import scrub
from sca_search.system.signals import NEVER, StopToken, StopWhen
from sca_search.training.evaluate import Score
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import Epoch, PausedError, Rungs, TrainedCandidate
from sca_search.training.train import train_candidate

if TYPE_CHECKING:
    from sca_search.study.setup import StudyContext

# The name of a trial's checkpoint in the artifact store.
CHECKPOINT = "checkpoint"
_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Objective:
    """Trains a trial's candidate and writes its results."""

    context: "StudyContext"
    emit: Emit = ignore
    stop: StopToken = NEVER
    worker: int = 1  # number of the process, for the table of trials
    on_beat: Callable[[], None] = field(default=lambda: None)  # with each heartbeat, in the heartbeat's thread

    @property
    def spec(self) -> StudySpec:
        return self.context.spec

    def __call__(self, trial: optuna.Trial) -> tuple[float, float]:
        number = trial.user_attrs["candidate"]
        if queue.is_superseded(trial.study, trial):
            raise TakenOverError
        with (
            sending_heartbeats(trial, self.spec.search.heartbeat, self.on_beat) as is_lost,
            _requeued_if_interrupted(trial, is_lost),
        ):
            trial.set_user_attr("worker", self.worker)
            candidate = self._candidate(trial, number)
            self.emit(TrialStarted(trial.number, candidate.sparsity if self.spec.plans_sparsity else math.nan))
            self._fetch_checkpoint(trial, number)
            stop = StopWhen(lambda: is_lost() or self.stop.is_set())
            rungs = self._rungs(trial, number, candidate.sparsity)
            with self._failures_recorded(trial) as on_epoch:
                train = partial(
                    train_candidate, candidate, self.context.task, self.context.warm_start, on_epoch, stop, rungs
                )
                try:
                    trained = train()
                except CheckpointError as error:
                    self.emit(Note(f"{error}; training starts from the beginning"))
                    self.context.run.checkpoint(number).unlink(missing_ok=True)
                    trained = train()
            return self._recorded(trial, candidate, trained, number)

    @contextlib.contextmanager
    def _failures_recorded(self, trial: optuna.Trial) -> Iterator[Callable[[Epoch], None]]:
        """Counts and reports the epochs of a trial, and records why it failed."""
        epochs = 0

        def on_epoch(epoch: Epoch) -> None:
            nonlocal epochs
            epochs += 1
            self.emit(TrialEpoch(trial.number, epoch))

        try:
            yield on_epoch
        except FAILURES as error:
            trial.set_user_attr("reason", scrub(str(error)))
            logger.warning("trial %d failed", trial.number, exc_info=True)
            raise
        except PausedError as error:
            raise optuna.TrialPruned from error
        finally:
            with contextlib.suppress(UpdateFinishedTrialError):
                trial.set_user_attr("epochs", epochs)

    def _recorded(
        self, trial: optuna.Trial, candidate: Candidate, trained: TrainedCandidate, number: int
    ) -> tuple[float, float]:
        """Writes the candidate's files and the trial's attributes; returns the two objectives."""
        context = self.context
        owned = queue.owned(trial.study, trial)
        figures = write_candidate(context, number, candidate, trained, publishing=owned)
        sparsity = figures.pop("sparsity")
        if (store := artifact_store(context.run)) is not None:
            checkpoint = context.run.checkpoint(number)
            files = [path for path in files_in(context.run.candidate(number)) if path != checkpoint]
            trial.set_user_attr(FILES, store.upload(files))
        for name, value in (figures | {"images": len(context.task.data.val)}).items():
            trial.set_user_attr(name, value)
        return trained.score.accuracy, sparsity

    def drop_checkpoint(self, trial: FrozenTrial) -> None:
        """Of a trial that is stored as complete; before that, another worker may have to resume from it."""
        run = self.context.run
        if (store := artifact_store(run)) is not None and (name := trial.user_attrs.get(CHECKPOINT)):
            store.delete(name)
        run.checkpoint(trial.user_attrs["candidate"]).unlink(missing_ok=True)

    def _fetch_checkpoint(self, trial: optuna.Trial, number: int) -> None:
        """Download the checkpoint that another machine wrote."""
        store, name = artifact_store(self.context.run), trial.user_attrs.get(CHECKPOINT)
        try:
            if store is not None and isinstance(name, str):
                store.download_as(name, self.context.run.checkpoint(number))
        except StorageError as error:
            self.emit(Note(f"{error}; training starts from the beginning"))

    def _sampled(self, trial: optuna.Trial, seed: int) -> Candidate:
        """The trial's values as a candidate. Its sparsity was planned when it was queued, or is planned now from the
        finished trials and the budgets."""
        attributes, goal, space = trial.user_attrs, self.spec.goal, self.context.space
        if "planned_sparsity" in attributes:
            candidate = space.sample(trial, float(attributes["planned_sparsity"]), seed)
            return (
                candidate.model_copy(update={"allocation": attributes["allocation"]})
                if "allocation" in attributes
                else candidate
            )
        finished = trial_frame(queue.rows(trial.study))
        if limits := space.limits(finished):
            candidate = space.sample(trial, 0.0, seed, limits)
            # Limits change with the finished trials; the allocation of a candidate that is resumed does not.
            trial.set_user_attr("allocation", candidate.allocation)
        else:
            assert goal.min_accuracy is not None
            planned = space.possible(planned_between(finished, goal.min_accuracy))
            candidate = space.sample(trial, planned, seed)
        trial.set_user_attr("planned_sparsity", candidate.sparsity)
        return candidate

    def _candidate(self, trial: optuna.Trial, number: int) -> Candidate:
        seed = derived_seed(self.spec.seed, number)
        if self.spec.recipe is not None:
            return recipe_candidate(self.spec, seed)
        if not self.spec.plans_sparsity:
            return self.context.space.sample(trial, 0.0, seed)
        candidate = self._sampled(trial, seed)
        if (budgets := self.context.space.budgets) is not None:
            plan = {layer.name: candidate.sparsity_of(layer.name) for layer in self.context.task.layer_shapes}
            for name, value in budgets.predicted(plan).items():
                trial.set_user_attr(name, value)
        return candidate

    def _rungs(self, trial: optuna.Trial, number: int, sparsity: float) -> Rungs:
        run, search = self.context.run, self.spec.search

        def passes(epoch: int, score: Score) -> bool:
            trial.set_user_attr(f"{RUNG}{epoch}", score.loss)
            trial.set_user_attr("rung_metric", score.accuracy)
            own = RungScore(number, sparsity, score.loss)
            # The trial that this one replaces has passed its rungs.
            is_known = queue.REPLACES in trial.user_attrs
            return is_known or continues_at_rung(own, queue.rung_scores(trial.study, epoch), search.keep)

        def on_checkpoint() -> None:
            trial.set_user_attr("checkpoints", trial.user_attrs.get("checkpoints", 0) + 1)
            if (store := artifact_store(run)) is not None:
                before = trial.user_attrs.get(CHECKPOINT)
                (name,) = store.upload([run.checkpoint(number)]).values()
                trial.set_user_attr(CHECKPOINT, name)
                if before:
                    store.delete(before)

        epochs = rung_epochs(search.rungs, self.spec.train.epochs)
        return Rungs(epochs, passes, run.checkpoint(number), search.checkpoint_every, on_checkpoint)


@contextlib.contextmanager
def _requeued_if_interrupted(trial: optuna.Trial, is_lost: Callable[[], bool]) -> Iterator[None]:
    """Requeue the candidate of a trial that ends for a reason other than a failure of its own."""
    try:
        yield
    except (*FAILURES, optuna.TrialPruned, TakenOverError):
        raise
    except BaseException as error:
        if is_lost():
            raise TakenOverError from error
        with contextlib.suppress(Exception):  # the reason of the interruption may also prevent this
            queue.requeue(trial.study, trial)
        raise


def work(
    study: optuna.Study, objective: Objective, may_begin: Callable[[], bool] = lambda: True, *, is_alone: bool = True
) -> None:
    """Run waiting trials as long as they may begin. After a stop, the running trial is requeued.

    A worker that is not alone requeues stale trials of others, also while it trains, and stays while others train: it
    may have to take over their trials.
    """
    search = objective.spec.search
    if not is_alone:
        detector = StaleTrialDetector(study, MISSED_HEARTBEATS * search.heartbeat)
        objective = replace(objective, on_beat=partial(_requeue_stale, study, detector))

    def on_end(_study: optuna.Study, trial: FrozenTrial) -> None:
        if trial.state == TrialState.COMPLETE:
            objective.drop_checkpoint(trial)
        queue.promote(study, objective.spec)
        objective.emit(queue.trial_ended(study, trial.number))

    while True:
        with storage_errors(objective.context.run), contextlib.suppress(QueueEmptyError, TakenOverError):
            objective.on_beat()
            waits = queue.has_waiting(study)
            # A trial that runs elsewhere may have to be requeued.
            if not (waits or (not is_alone and queue.in_state(study, TrialState.RUNNING))) or not may_begin():
                return
            if objective.stop.is_set():  # between two trials: the rest is not run
                raise StopRequestedError
            if waits:
                with _optuna_errors():
                    study.optimize(objective, n_trials=1, catch=FAILURES, callbacks=[on_end])
                continue
        time.sleep(min(_POLL_SECONDS, search.heartbeat / 2))


def _requeue_stale(study: optuna.Study, detector: StaleTrialDetector) -> None:
    for trial in detector.stale():
        queue.requeue_lost(study, trial)


@contextlib.contextmanager
def _optuna_errors() -> Iterator[None]:
    """TakenOverError where another worker ended the trial; the cause where Optuna's own error hides it."""
    try:
        yield
    except (UnboundLocalError, AssertionError, UpdateFinishedTrialError, ValueError) as error:
        # The first two are raised by Optuna itself where the end of a trial cannot be stored.
        cause = error.__context__ if isinstance(error, UnboundLocalError | AssertionError) else error
        if isinstance(cause, StorageInternalError):
            raise cause from cause.__cause__
        is_told = isinstance(cause, ValueError) and str(cause).startswith("Cannot tell a")
        if is_told or isinstance(cause, UpdateFinishedTrialError):  # another worker considered ours dead
            raise TakenOverError from error
        raise


@dataclass
class Clock:
    """Decides whether another trial, and the refits after it, still fit into the time budget. A study listener."""

    budget: float | None
    refits: int
    _began: float = field(default_factory=time.monotonic)
    _longest: float = 0.0

    def __post_init__(self) -> None:
        self._last = self._began

    def on_event(self, event: Event) -> None:
        """The start of worker processes, before the first trial, takes long but is not part of a trial."""
        if isinstance(event, TrialStarted) and not self._longest:
            self._last = time.monotonic()

    def trial_fits(self) -> bool:
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now
        return self.budget is None or now - self._began + self._longest * (1 + self.refits) <= self.budget
