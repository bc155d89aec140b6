"""Training: the dense warm start once per study, then candidates that start from it.

A candidate's training ends in this order: the number of zeros is made exact; rounding makes the trits final; the
parameters that are still float (normalization, first and last layer, biases) are trained with the trits frozen;
BatchNorm statistics are re-estimated; the network is evaluated.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.config.references import user_code_errors
from sca_search.data import Batch, Batches, TeacherSplit, TrainingSplit
from sca_search.errors import CheckpointError, DivergenceError
from sca_search.models.scales import set_trits
from sca_search.system.machine import oom_as_limit_error, trim_heap
from sca_search.system.signals import NEVER, StopToken
from sca_search.ternary.methods import Method, method_class
from sca_search.ternary.parametrize import total
from sca_search.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sca_search.training.evaluate import (
    EVALUATION_BATCH,
    Score,
    has_initial_statistics,
    logits_of,
    reestimate_normalization,
)
from sca_search.training.fit import FitPlan, OptimizerState, StopRequestedError, fit
from sca_search.training.losses import TaskLoss, distillation, mismatch_of
from sca_search.training.task import (
    Epoch,
    PausedError,
    Rungs,
    Snapshot,
    Task,
    TrainedCandidate,
    WarmStart,
    is_recorded,
    snapshot,
)

NO_RUNGS = Rungs()
# Enough batches to compare candidates by their normalization statistics; the end of training uses the whole split.
RUNG_BATCHES = 8
OnEpoch = Callable[[Epoch], None]


def until_stopped(batches: Iterable[Batch], stop: StopToken) -> Iterator[Batch]:
    """Batches of a whole split, which may take minutes; StopRequestedError before the next one after a stop.

    Not for a validation split, which is small: a trained epoch is always evaluated and recorded.
    """
    for batch in batches:
        if stop.is_set():
            raise StopRequestedError
        yield batch


@dataclass
class _Interval:
    """Whether a number of seconds has passed since the last time."""

    seconds: float
    last: float = field(default_factory=time.monotonic)

    def is_over(self) -> bool:
        is_over = time.monotonic() - self.last >= self.seconds
        self.last = time.monotonic() if is_over else self.last
        return is_over


@user_code_errors("the network")
@oom_as_limit_error()
def train_dense(  # noqa: PLR0913 - settings are keywords
    task: Task,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    on_epoch: OnEpoch = lambda _epoch: None,
    stop: StopToken = NEVER,
    with_teacher: bool = True,
    checkpoint: Path | None = None,
    checkpoint_every: float = math.inf,
) -> WarmStart:
    """The dense network, trained from its initialization or from weights that the user provided.

    The teacher's logits on the training split are for candidates that use distillation: those of ImageNet take
    gigabytes.
    """
    torch.manual_seed(seed)
    model = task.start_model()
    plan = _resumed_dense(model, checkpoint, _plan(task, epochs, learning_rate))
    interval = _Interval(checkpoint_every)
    batches = task.data.training.batches(task.batch, seed=seed)

    def evaluate(epoch: int) -> None:
        if 0 < epoch == epochs and task.make_start is None and has_initial_statistics(model, epochs * len(batches)):
            statistics = task.data.training.batches(EVALUATION_BATCH, seed=0)
            reestimate_normalization(model, until_stopped(statistics, stop))
        accuracy = task.validate(model).accuracy
        on_epoch(Epoch("dense", epoch, epochs, accuracy, accuracy))

    def after_epoch(epoch: int, optimizer_state: Callable[[], OptimizerState]) -> None:
        evaluate(epoch)
        if epoch < epochs and checkpoint is not None and interval.is_over():
            state = Checkpoint(epoch, {}, [], model.state_dict(), optimizer_state(), torch.get_rng_state())
            save_checkpoint(checkpoint, state)

    fit(model, batches, plan, after_epoch, stop, loss=task.loss)
    if epochs == 0:
        evaluate(0)  # reports the weights that the user provided
    # Where inputs change, the teacher is evaluated at every step, and logits of the unchanged inputs are of no use.
    is_stored = with_teacher and not task.data.changes
    inputs = until_stopped(task.data.train.batches(EVALUATION_BATCH), stop)
    logits = logits_of(model, inputs) if is_stored else torch.empty(0)
    start = WarmStart(model.state_dict(), task.validate(model), logits)
    _require_finite(start.state | {"the dense network's output": start.teacher_logits})
    return start


def _resumed_dense(model: nn.Module, checkpoint: Path | None, plan: FitPlan) -> FitPlan:
    """The plan from the checkpoint's epoch on, where there is one; its weights are loaded into the network."""
    if checkpoint is None or not checkpoint.exists():
        return plan
    saved = _loaded(checkpoint, plan.epochs)
    with _of_this_network(checkpoint):
        model.load_state_dict(saved.model)
        torch.set_rng_state(saved.random)
    return replace(plan, first_epoch=saved.epoch, optimizer_state=saved.memory)


@contextmanager
def _of_this_network(checkpoint: Path) -> Iterator[None]:
    """CheckpointError for values that do not fit the training."""
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        sentence = (str(error).splitlines() or [repr(error)])[0]
        raise CheckpointError(f"{checkpoint}: must be of this study's network, got: {sentence}") from error


@user_code_errors("the network")
@oom_as_limit_error()
def train_candidate(
    candidate: Candidate,
    task: Task,
    start: WarmStart,
    on_epoch: OnEpoch = lambda _epoch: None,
    stop: StopToken = NEVER,
    rungs: Rungs = NO_RUNGS,
) -> TrainedCandidate:
    """Ternarize the warm start, train it along the candidate's schedules, and make its trits final.

    Raises PausedError where a rung decides that it must not continue now.
    """
    torch.manual_seed(candidate.seed)
    training = CandidateTraining(candidate, task, start, on_epoch, stop, rungs)
    first, state = training.resume()
    # A training that resumes at a rung is evaluated there again: it may have been killed before it was.
    for last in [*(epoch for epoch in rungs.epochs if first <= epoch < candidate.epochs), candidate.epochs]:
        plan = replace(training.plan, first_epoch=first, last_epoch=last, optimizer_state=state)
        batches = training.batches(candidate.seed)
        state = fit(training.model, batches, plan, training.after_epoch, stop, training.method, training.loss)
        first = last
        if last < candidate.epochs:
            training.save(last, state)
            if not rungs.passes(last, training.score_as_if_ended()):
                raise PausedError
    training.method.finish()
    return training.finalize()


def _plan(task: Task, epochs: int, learning_rate: float, latent_learning_rate: float = 0.0) -> FitPlan:
    return FitPlan(
        epochs=epochs,
        learning_rate=learning_rate,
        latent_learning_rate=latent_learning_rate,
        learning_rate_steps=task.learning_rate_steps,
        last_layer_weight_decay=task.last_layer_weight_decay,
        weight_decay=task.weight_decay,
        last_layer=task.last_layer,
        trainer=task.trainer,
    )


def _require_finite(values: Mapping[str, Tensor]) -> None:
    """The loss is checked before each step, so a divergence in the last step shows only here."""
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise DivergenceError(f"{name} is not finite after the last step")


def _loaded(where: Path, epochs: int) -> Checkpoint:
    """A checkpoint without numbers that no training of this length writes: a run folder may be untrusted."""
    saved = load_checkpoint(where)
    if not 0 < saved.epoch <= epochs:
        raise CheckpointError(f"{where}: must be of an epoch from 1 to {epochs}, got {str(saved.epoch)[:20]}")
    for name, value in saved.method.items():
        if not 0.0 <= value < math.inf:
            raise CheckpointError(f"{where}: {name[:80]} must be a finite number of at least 0, got {value}")
    return saved


@dataclass
class CandidateTraining:
    """The state of one candidate from the warm start to its trits."""

    candidate: Candidate
    task: Task
    start: WarmStart
    on_epoch: OnEpoch = lambda _epoch: None
    stop: StopToken = NEVER
    rungs: Rungs = NO_RUNGS

    def __post_init__(self) -> None:
        trim_heap()
        candidate, task, dense = self.candidate, self.task, self.start.state
        self.train_split: TrainingSplit | TeacherSplit = task.data.training
        self.loss: TaskLoss = task.loss
        if candidate.distillation:
            # Where inputs change, the teacher's logits are computed per batch.
            teacher = task.model_with(dense).eval() if task.data.changes else self.start.teacher_logits
            self.train_split = TeacherSplit(task.data.training, teacher)
            mismatch = mismatch_of(task.data.kind, candidate.temperature)
            self.loss = distillation(candidate.distillation, task.loss, mismatch)
        self.model = task.model_with(dense) if candidate.from_dense else task.make_model()
        self.method: Method = method_class(candidate.method)(self.model, candidate, task)
        self.history: list[Epoch] = []
        self.snapshots: list[Snapshot] = []
        self._interval = _Interval(self.rungs.every)

    @property
    def plan(self) -> FitPlan:
        candidate = self.candidate
        plan = _plan(self.task, candidate.epochs, candidate.learning_rate, candidate.latent_learning_rate)
        steps = candidate.learning_rate_steps
        return replace(plan, learning_rate_steps=steps) if steps else plan

    def batches(self, seed: int) -> Batches:
        return self.train_split.batches(self.task.batch, seed=seed)

    def resume(self) -> tuple[int, OptimizerState]:
        """The number of finished epochs and the optimizer's state, from the checkpoint if there is one."""
        checkpoint = self.rungs.checkpoint
        if checkpoint is None or not checkpoint.exists():
            self._record_weights(0)
            return 0, {}
        saved = _loaded(checkpoint, self.candidate.epochs)
        with _of_this_network(checkpoint):
            steps = saved.epoch * len(self.batches(self.candidate.seed))
            self.model.load_state_dict(saved.model)
            self.method.resume(saved.method, steps)
            self.history = [Epoch(**epoch) for epoch in saved.history]
            self.snapshots = [Snapshot.of(each) for each in saved.snapshots]
            torch.set_rng_state(saved.random)
        return saved.epoch, saved.memory

    def save(self, epoch: int, optimizer_state: OptimizerState) -> None:
        """Write a checkpoint, where the training has one."""
        if self.rungs.checkpoint is None:
            return
        checkpoint = Checkpoint(
            epoch=epoch,
            method=self.method.state(),
            history=[asdict(each) for each in self.history],
            snapshots=[asdict(each) for each in self.snapshots],
            model=self.model.state_dict(),
            memory=optimizer_state,
            random=torch.get_rng_state(),
        )
        save_checkpoint(self.rungs.checkpoint, checkpoint)
        self.rungs.on_checkpoint()

    def after_epoch(self, epoch: int, optimizer_state: Callable[[], OptimizerState]) -> None:
        if is_recorded(epoch, self.candidate.epochs):
            self._record_weights(epoch)
        self._report(self._evaluate(epoch))
        if self.rungs.checkpoint is not None and self._interval.is_over():
            self.save(epoch, optimizer_state())

    def _report(self, epoch: Epoch) -> None:
        self.history.append(epoch)
        self.on_epoch(epoch)

    def score_as_if_ended(self) -> Score:
        """The validation score of a copy with the planned zeros, rounded, with normalization re-estimated.

        Before the regularizer is strong, the score of the network itself does not predict its final score.
        """
        with torch.random.fork_rng(devices=[]):  # the evaluation must not change what dropout draws afterwards
            state = {name: value for name, value in self.model.state_dict().items() if ".parametrizations." not in name}
            levels = self.method.final_weights().levels
            copy = self.task.model_with(state | {f"{name}.weight": own.trits for name, own in levels.items()})
            set_trits(copy, levels)
            reestimate_normalization(copy, islice(self._statistics_batches(), RUNG_BATCHES))
            return self.task.validate(copy)

    def _statistics_batches(self) -> Batches:
        """The batches that normalization statistics are estimated on: inputs as in training.

        They are augmented if those were: a padded and cropped image has other statistics, and a network that was
        trained on such images loses accuracy with statistics of plain ones (3.2 points of ResNet-20 on CIFAR-10). They
        are shuffled, so that each batch mixes classes; training batches also never end with a single image.
        """
        return self.task.data.training.batches(EVALUATION_BATCH, seed=0)

    def _record_weights(self, epoch: int) -> None:
        trained, used = self.method.weights()
        if trained:  # full precision has no latent weights
            self.snapshots.append(snapshot(epoch, trained, used, self.method.alphas()))

    def _evaluate(self, epoch: int) -> Epoch:
        """The validation scores of the soft and of the rounded network."""
        soft = self.task.validate(self.model).accuracy
        with self.method.rounded():
            hard = self.task.validate(self.model).accuracy
        alphas = self.method.alphas().values()
        agreement = self.method.gradient_agreement()
        return Epoch(
            phase="ternary",
            epoch=epoch,
            epochs=self.candidate.epochs,
            soft_metric=soft,
            rounded_metric=hard,
            sparsity=self.method.sparsity(),
            alpha=fmean(alphas) if alphas else 0.0,
            strength=self.method.strength,
            **({} if agreement is None else asdict(agreement)),
        )

    def finalize(self) -> TrainedCandidate:
        """Make the trits final, train the float parameters, and evaluate."""
        before = self._evaluate(self.candidate.epochs)
        weights = self.method.final_weights()
        self.method.detach(weights)
        self._train_float_parameters(before, total(weights.counts).sparsity)
        reestimate_normalization(self.model, until_stopped(self._statistics_batches(), self.stop))
        final = self.task.validate(self.model, with_error=True)
        _require_finite(self.model.state_dict() | {"the loss": torch.tensor(final.loss)})
        return TrainedCandidate(
            model=self.model,
            score=final,
            counts=weights.counts,
            adjusted_fraction=weights.adjusted_fraction,
            achieved=weights.achieved,
            sparsity_before=before.sparsity,
            soft_metric=before.soft_metric,
            rounded_metric=before.rounded_metric,
            dead_layers=weights.dead_layers,
            unit=self.method.unit,
            alphas=self.method.alphas(),
            history=tuple(self.history),
            snapshots=tuple(self.snapshots),
        )

    def _train_float_parameters(self, before: Epoch, sparsity: float) -> None:
        """Normalization, first and last layer and biases adapt to the frozen trits."""
        candidate = self.candidate
        frozen = Epoch("frozen", 0, candidate.frozen_epochs, 0.0, 0.0, sparsity, before.alpha)

        def after_epoch(epoch: int, _state: Callable[[], OptimizerState]) -> None:
            accuracy = self.task.validate(self.model).accuracy
            self._report(replace(frozen, epoch=epoch, soft_metric=accuracy, rounded_metric=accuracy))

        plan = _plan(self.task, candidate.frozen_epochs, candidate.frozen_learning_rate)
        fit(self.model, self.batches(candidate.seed + 1), plan, after_epoch, self.stop, loss=self.loss)
