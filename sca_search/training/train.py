"""Trains: the dense warm start once a study, then candidates from it; every candidate ends by settling.

**Settle**, in this order: the count of zeros is made exact; rounding makes the trits final; what is still float
(normalisation, first and last layer, biases) trains on with the trits frozen; BatchNorm statistics are
re-estimated; the network is measured.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.config.references import user_code_errors
from sca_search.data import Batch, Batches, TeacherSplit, TrainingSplit
from sca_search.errors import CheckpointError, DivergenceError
from sca_search.models.scales import put_trits
from sca_search.system.memory import oom_as_limit_error, trim_heap
from sca_search.ternary.histogram import Snapshot, is_kept, snapshot
from sca_search.ternary.methods import Method, method_class
from sca_search.ternary.parametrize import total
from sca_search.training.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from sca_search.training.evaluate import (
    EVALUATION_BATCH,
    Score,
    answers,
    reestimate_normalisation,
    remembers_its_beginning,
)
from sca_search.training.fit import WHOLE, FitPlan, Leg, StopRequestedError, Watch, fit
from sca_search.training.losses import TaskLoss, distillation, mismatch_of
from sca_search.training.task import NOT_KEPT, Epoch, Keeping, PausedError, Progress, Rungs, Settled, Task, WarmStart

NO_RUNGS = Rungs()
# Enough for normalisation statistics to compare candidates by; the end uses the whole split.
RUNG_BATCHES = 8


def until_stopped(batches: Iterable[Batch], stop_requested: Callable[[], bool]) -> Iterator[Batch]:
    """Batches of a whole split, which may take minutes: StopRequestedError before the next one where that is asked for.

    Not for a validation split, which is small: an epoch that is trained is looked at and kept.
    """
    for batch in batches:
        if stop_requested():
            raise StopRequestedError
        yield batch


@user_code_errors("the network")
@oom_as_limit_error()
def train_dense(
    task: Task,
    *,
    epochs: int,
    learning_rate: float,
    seed: int,
    progress: Progress,
    with_answers: bool = True,
    keeping: Keeping = NOT_KEPT,
) -> WarmStart:
    """The dense network, trained from its initialisation or from the weights that it was given.

    Its answers on the training split are for candidates that distil: those of ImageNet take gigabytes.
    """
    torch.manual_seed(seed)
    model = task.start_model()
    leg = _go_on_dense(model, keeping.checkpoint, epochs)
    is_due = keeping.due()
    batches = task.data.training.batches(task.batch, seed=seed)

    def after_epoch(epoch: int) -> None:
        if 0 < epoch == epochs and task.make_start is None and remembers_its_beginning(model, epochs * len(batches)):
            statistics = task.data.training.batches(EVALUATION_BATCH, seed=0)
            reestimate_normalisation(model, until_stopped(statistics, progress.stop_requested))
        accuracy = task.validate(model).accuracy
        progress.on_epoch(Epoch("dense", epoch, epochs, accuracy, accuracy))

    def keep(epoch: int, memory: Callable[[], dict[str, Tensor]]) -> None:
        if epoch < epochs and keeping.checkpoint is not None and is_due():
            state = {name: value.detach() for name, value in model.state_dict().items()}
            save_checkpoint(
                keeping.checkpoint, Checkpoint(epoch, 1.0, {}, [], state, memory(), random=torch.get_rng_state())
            )

    watch = Watch(after_epoch, progress.stop_requested, keep)
    fit(model, batches, _plan(task, epochs, learning_rate), watch, loss=task.loss, leg=leg)
    if epochs == 0:
        after_epoch(0)  # who watches is told of the weights that were given
    # Where inputs change, it is asked at every step, and answers to those that it saw here are of no use.
    is_asked = with_answers and not task.data.changes
    asked = until_stopped(task.data.train.batches(EVALUATION_BATCH), progress.stop_requested)
    told = answers(model, asked) if is_asked else torch.empty(0)
    start = WarmStart(model.state_dict(), task.validate(model), told)
    _require_finite(start.state | {"the dense network's answer": start.answers})
    return start


def _go_on_dense(model: nn.Module, checkpoint: Path | None, epochs: int) -> Leg:
    """Where the warm start goes on: at its beginning, or where it was kept."""
    if checkpoint is None or not checkpoint.exists():
        return WHOLE
    kept = load_checkpoint(checkpoint)
    _require_possible(checkpoint, kept, epochs)
    with _of_this_network(checkpoint):
        model.load_state_dict(kept.model)
        torch.set_rng_state(kept.random)
    return Leg(kept.epoch, None, kept.memory)


@contextmanager
def _of_this_network(checkpoint: Path) -> Iterator[None]:
    """Values that do not fit a training, as one sentence."""
    try:
        yield
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        sentence = (str(error).splitlines() or [repr(error)])[0]
        raise CheckpointError(f"{checkpoint}: must be of this study's network, got: {sentence}") from error


@user_code_errors("the network")
@oom_as_limit_error()
def train_candidate(
    candidate: Candidate, task: Task, start: WarmStart, progress: Progress, rungs: Rungs = NO_RUNGS
) -> Settled:
    """Ternarizes the warm start, trains it along the candidate's schedules, and settles.

    Raises PausedError where a rung says that it should not go on now.
    """
    torch.manual_seed(candidate.seed)
    return _Training(candidate, task, start, progress).run(rungs)


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


def _taught(task: Task, start: WarmStart) -> TeacherSplit:
    """The training split with the dense network's answers, which is asked again where inputs change."""
    if task.data.changes:
        return TeacherSplit(task.data.training, task.model_with(start.state).eval())
    return TeacherSplit(task.data.training, start.answers)


def _require_finite(values: Mapping[str, Tensor]) -> None:
    """The loss is checked before each step, so that an explosion in the very last one shows only here."""
    for name, value in values.items():
        if not bool(torch.isfinite(value).all()):
            raise DivergenceError(f"{name} is not finite after the last step")


def _require_possible(where: Path, kept: Checkpoint, epochs: int) -> None:
    """A run folder may come from somebody else: numbers that no training of this length leaves are refused."""
    if not 0 < kept.epoch <= epochs:
        raise CheckpointError(f"{where}: must be of an epoch from 1 to {epochs}, got {str(kept.epoch)[:20]}")
    for name, value in {
        "λ's unit": kept.unit,
        **{f"α of {layer}": alpha for layer, alpha in kept.alphas.items()},
    }.items():
        if not 0.0 <= value < math.inf:
            raise CheckpointError(f"{where}: {name[:80]} must be a finite number of at least 0, got {value}")


class _Training:
    """One candidate on its way from the warm start to its trits."""

    def __init__(self, candidate: Candidate, task: Task, start: WarmStart, progress: Progress) -> None:
        trim_heap()
        self.candidate = candidate
        self.task = task
        self.progress = progress
        self.train_split: TrainingSplit | TeacherSplit = task.data.training
        self.loss: TaskLoss = task.loss
        if candidate.distillation:
            self.train_split = _taught(task, start)
            mismatch = mismatch_of(task.data.kind, candidate.temperature)
            self.loss = distillation(candidate.distillation, candidate.temperature, task.loss, mismatch)
        self.model = task.model_with(start.state) if candidate.from_dense else task.make_model()
        self.method: Method = method_class(candidate.method)(self.model, candidate, task)
        self.history: list[Epoch] = []
        self.snapshots: list[Snapshot] = []

    def run(self, rungs: Rungs) -> Settled:
        candidate = self.candidate
        plan = _plan(self.task, candidate.epochs, candidate.learning_rate, candidate.latent_learning_rate)
        if candidate.learning_rate_steps:
            plan = replace(plan, learning_rate_steps=candidate.learning_rate_steps)
        first, memory = self._go_on(rungs.keeping.checkpoint)
        is_due = rungs.keeping.due()

        def keep(epoch: int, memory: Callable[[], dict[str, Tensor]]) -> None:
            if is_due():
                self._keep(rungs.keeping, epoch, memory())

        if not first:
            self._keep_weights(0)
        # A training that goes on from a rung is looked at there once more: it may have been killed before it was.
        for last in [*(epoch for epoch in rungs.epochs if first <= epoch < candidate.epochs), candidate.epochs]:
            leg = Leg(first, last, memory)
            memory = self._fit(plan, self._look_and_keep, self.method, candidate.seed, leg, keep)
            first = last
            if last < candidate.epochs:
                self._keep(rungs.keeping, last, memory)
                with torch.random.fork_rng(devices=[]):  # a look must not change what dropout draws afterwards
                    score = self._score_as_if_ended()
                if not rungs.passes(last, score):
                    raise PausedError
        self.method.finish()
        return self._settle()

    def _go_on(self, checkpoint: Path | None) -> tuple[int, dict[str, Tensor]]:
        """The epochs that are over and the optimizer's memory, from a checkpoint where there is one."""
        if checkpoint is None or not checkpoint.exists():
            return 0, {}
        kept = load_checkpoint(checkpoint)
        _require_possible(checkpoint, kept, self.candidate.epochs)
        with _of_this_network(checkpoint):
            steps = kept.epoch * len(self.train_split.batches(self.task.batch, seed=self.candidate.seed))
            self.model.load_state_dict(kept.model)
            self.method.go_on(kept.unit, kept.alphas, steps)
            self.history = [Epoch(**epoch) for epoch in kept.history]
            self.snapshots = [Snapshot.of(each) for each in kept.snapshots]
            torch.set_rng_state(kept.random)
        return kept.epoch, kept.memory

    def _keep(self, keeping: Keeping, epoch: int, memory: dict[str, Tensor]) -> None:
        if keeping.checkpoint is not None:
            state = {name: value.detach() for name, value in self.model.state_dict().items()}
            kept = Checkpoint(
                epoch=epoch,
                unit=self.method.unit,
                alphas=self.method.alphas(),
                history=[asdict(each) for each in self.history],
                snapshots=[asdict(each) for each in self.snapshots],
                model=state,
                memory=memory,
                random=torch.get_rng_state(),
            )
            save_checkpoint(keeping.checkpoint, kept)
            keeping.on_kept()

    def _score_as_if_ended(self) -> Score:
        """The validation score of a copy: zeros counted out to the plan, rounded, normalisation re-estimated.

        Before the pull is strong or the forward pass sharp, the network's own figures say nothing of its end.
        """
        state = {name: value for name, value in self.model.state_dict().items() if ".parametrizations." not in name}
        levels = self.method.ending().levels
        copy = self.task.model_with(state | {f"{name}.weight": own.trits for name, own in levels.items()})
        put_trits(copy, levels)
        reestimate_normalisation(copy, islice(self._statistics_batches(), RUNG_BATCHES))
        return self.task.validate(copy)

    def _statistics_batches(self) -> Batches:
        """What normalisation is estimated on: inputs as training saw them.

        Augmented where those were: an image with a border cut into it has other statistics, and a network that never
        saw one without loses points by the plain ones (3.2 of ResNet-20's on CIFAR-10). Shuffled, for a mixture of
        classes in each batch; training's batches also never end in a single image.
        """
        return self.task.data.training.batches(EVALUATION_BATCH, seed=0)

    def _fit(
        self,
        plan: FitPlan,
        look: Callable[[int], Epoch],
        method: Method | None,
        seed: int,
        leg: Leg = WHOLE,
        keep: Callable[[int, Callable[[], dict[str, Tensor]]], None] = lambda _epoch, _memory: None,
    ) -> dict[str, Tensor]:
        def after_epoch(epoch: int) -> None:
            self.history.append(look(epoch))
            self.progress.on_epoch(self.history[-1])

        batches = self.train_split.batches(self.task.batch, seed=seed)
        watch = Watch(after_epoch, self.progress.stop_requested, keep)
        return fit(self.model, batches, plan, watch, method, self.loss, leg)

    def _look_and_keep(self, epoch: int) -> Epoch:
        if is_kept(epoch, self.candidate.epochs):
            self._keep_weights(epoch)
        return self._look(epoch)

    def _keep_weights(self, epoch: int) -> None:
        trained, used = self.method.weights()
        if trained:  # full precision has no weights of its own to show
            self.snapshots.append(snapshot(epoch, trained, used, self.method.alphas()))

    def _look(self, epoch: int) -> Epoch:
        """The network now, soft and as rounding would leave it."""
        soft = self.task.validate(self.model).accuracy
        with self.method.rounded():
            hard = self.task.validate(self.model).accuracy
        alphas = self.method.alphas().values()
        return Epoch(
            phase="ternary",
            epoch=epoch,
            epochs=self.candidate.epochs,
            soft_metric=soft,
            rounded_metric=hard,
            sparsity=self.method.sparsity(),
            alpha=fmean(alphas) if alphas else 0.0,
            strength=self.method.strength,
            sharpness=self.method.sharpness,
        )

    def _settle(self) -> Settled:
        before = self._look(self.candidate.epochs)
        ending = self.method.ending()
        self.method.detach(ending)
        self._train_float_parts(before, total(ending.counts).sparsity)
        reestimate_normalisation(self.model, until_stopped(self._statistics_batches(), self.progress.stop_requested))
        final = self.task.validate(self.model, with_error=True)
        _require_finite(self.model.state_dict() | {"the loss": torch.tensor(final.loss)})
        return Settled(
            model=self.model,
            score=final,
            counts=ending.counts,
            moved_share=ending.moved_share,
            reached=ending.reached,
            sparsity_before=before.sparsity,
            soft_metric=before.soft_metric,
            rounded_metric=before.rounded_metric,
            dead_layers=ending.dead_layers,
            unit=self.method.unit,
            alphas=self.method.alphas(),
            history=tuple(self.history),
            snapshots=tuple(self.snapshots),
        )

    def _train_float_parts(self, before: Epoch, sparsity: float) -> None:
        """Normalisation, first and last layer and biases learn to live with the trits."""
        candidate = self.candidate

        def look(epoch: int) -> Epoch:
            accuracy = self.task.validate(self.model).accuracy
            return Epoch(
                "frozen",
                epoch,
                candidate.frozen_epochs,
                accuracy,
                accuracy,
                sparsity,
                before.alpha,
                0.0,
                before.sharpness,
            )

        plan = _plan(self.task, candidate.frozen_epochs, candidate.frozen_learning_rate)
        self._fit(plan, look, None, seed=candidate.seed + 1)
