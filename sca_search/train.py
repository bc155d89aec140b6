"""Trains: the dense warm start once a study, then candidates from it; every candidate ends by settling."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from sca_search.candidate import Candidate
from sca_search.control import SparsityControl, strength_unit
from sca_search.data import DataSet
from sca_search.exact import ExactTrits, Floor, exact_trits
from sca_search.fit import FitPlan, Watch, fit
from sca_search.layers import LayerChoice
from sca_search.loss import TaskLoss, cross_entropy, distilled
from sca_search.measure import EVALUATION_BATCH, Score, reestimate_normalisation, score
from sca_search.prior import zeros_for_sparsity
from sca_search.ternary import (
    ZeroCount,
    bake,
    latents,
    rounded,
    soft_weights,
    sparsity,
    ternarize,
    ternary_weights,
    zero_counts,
)

State = dict[str, Tensor]


@dataclass(frozen=True)
class Task:
    """What all candidates of a study share: data, network, which layers are ternary, and the fixed settings."""

    data: DataSet
    make_model: Callable[[], nn.Module]
    choices: tuple[LayerChoice, ...]
    batch: int = 64
    learning_rate_steps: tuple[tuple[float, float], ...] = ()
    last_layer_weight_decay: float = 0.0
    floor: Floor = field(default_factory=Floor)

    @property
    def ternary_layers(self) -> tuple[str, ...]:
        return tuple(choice.layer.name for choice in self.choices if choice.ternary)

    @property
    def last_layer(self) -> str:
        return [choice.layer.name for choice in self.choices if choice.layer.executed][-1]

    def spreads(self, spread: float) -> dict[str, float | None]:
        return {
            choice.layer.name: spread if choice.layer.scale_is_free else None
            for choice in self.choices
            if choice.ternary
        }


@dataclass(frozen=True)
class Epoch:
    """One line of a training's history."""

    phase: str  # "dense", "ternary" or "frozen"
    epoch: int
    epochs: int
    soft_accuracy: float
    rounded_accuracy: float
    sparsity: float
    alpha: float  # mean over the layers
    strength: float  # λ
    sharpness: float

    @property
    def gap(self) -> float:
        """What rounding costs now."""
        return self.soft_accuracy - self.rounded_accuracy


@dataclass(frozen=True)
class Progress:
    """How a training talks to the outside."""

    on_epoch: Callable[[Epoch], None] = field(default=lambda _epoch: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)


@dataclass(frozen=True)
class WarmStart:
    """The dense network that all candidates start from."""

    state: State
    score: Score


@dataclass(frozen=True)
class Settled:
    """A candidate at its end: plain weights, and what the way there was."""

    model: nn.Module
    score: Score
    counts: dict[str, ZeroCount]
    moved_share: float
    sparsity_before: float  # by rounding alone, before the exact step
    soft_accuracy: float
    rounded_accuracy: float
    dead_layers: tuple[str, ...]
    unit: float  # λ for a strength of 1
    alphas: dict[str, float]
    history: tuple[Epoch, ...]


def train_dense(task: Task, *, epochs: int, learning_rate: float, seed: int, progress: Progress) -> WarmStart:
    """The dense network, trained from its initialisation."""
    torch.manual_seed(seed)
    model = task.make_model()

    def after_epoch(epoch: int) -> None:
        accuracy = _validate(task, model).accuracy
        progress.on_epoch(Epoch("dense", epoch, epochs, accuracy, accuracy, 0.0, 0.0, 0.0, 1.0))

    fit(
        model,
        task.data.train.batches(task.batch, seed=seed),
        _plan(task, epochs, learning_rate),
        Watch(after_epoch, progress.stop_requested),
    )
    return WarmStart(model.state_dict(), _validate(task, model))


def train_candidate(candidate: Candidate, task: Task, start: WarmStart, progress: Progress) -> Settled:
    """Ternarizes the warm start, trains it along the candidate's schedules, and settles."""
    torch.manual_seed(candidate.seed)
    model = task.make_model()
    model.load_state_dict(start.state)
    ternarize(model, task.spreads(candidate.spread), candidate.form)
    unit = 1.0 if candidate.strength_is_lambda else _unit(model, candidate, task)
    control = SparsityControl(model, candidate, unit)
    history: list[Epoch] = []

    def after_epoch(epoch: int) -> None:
        history.append(_look(model, task, control, epoch))
        progress.on_epoch(history[-1])

    plan = _plan(task, candidate.epochs, candidate.learning_rate, candidate.latent_learning_rate)
    watch = Watch(after_epoch, progress.stop_requested)
    loss = _loss(candidate, task, start)
    fit(model, task.data.train.batches(task.batch, seed=candidate.seed), plan, watch, control, loss)
    control.finish()
    return _settle(model, candidate, task, control, history, progress, loss)


def _loss(candidate: Candidate, task: Task, start: WarmStart) -> TaskLoss:
    """Cross-entropy, or a mixture with the dense network's answers where the candidate distils."""
    if candidate.distillation == 0:
        return cross_entropy
    teacher = task.make_model()
    teacher.load_state_dict(start.state)
    return distilled(teacher, candidate.distillation, candidate.temperature)


def _plan(task: Task, epochs: int, learning_rate: float, latent_learning_rate: float = 0.0) -> FitPlan:
    return FitPlan(
        epochs=epochs,
        learning_rate=learning_rate,
        latent_learning_rate=latent_learning_rate,
        learning_rate_steps=task.learning_rate_steps,
        last_layer_weight_decay=task.last_layer_weight_decay,
        last_layer=task.last_layer,
    )


def _unit(model: nn.Module, candidate: Candidate, task: Task) -> float:
    """λ for a strength of 1, on the first training batch with the schedules at their start."""
    SparsityControl(model, candidate)
    images, labels = next(iter(task.data.train.batches(task.batch, seed=candidate.seed)))
    model.train()
    return strength_unit(model, images, labels)


def _validate(task: Task, model: nn.Module) -> Score:
    return score(model, task.data.val.batches(EVALUATION_BATCH))


def _look(model: nn.Module, task: Task, control: SparsityControl, epoch: int) -> Epoch:
    soft = _validate(task, model).accuracy
    with rounded(model):
        hard = _validate(task, model).accuracy
    alphas = control.alphas().values()
    return Epoch(
        phase="ternary",
        epoch=epoch,
        epochs=control.candidate.epochs,
        soft_accuracy=soft,
        rounded_accuracy=hard,
        sparsity=sparsity(model).sparsity,
        alpha=sum(alphas) / len(alphas),
        strength=control.strength,
        sharpness=next(iter(ternary_weights(model).values())).sharpness,
    )


def _settle(
    model: nn.Module,
    candidate: Candidate,
    task: Task,
    control: SparsityControl,
    history: list[Epoch],
    progress: Progress,
    loss,
) -> Settled:
    """The end of every trial: exact count, rounding, float parts trained on, statistics re-estimated, measured."""
    before = _look(model, task, control, candidate.epochs)
    exact = _exact(model, candidate, task)
    bake(model, exact.trits)
    _train_float_parts(model, candidate, task, before, history, progress, loss)
    reestimate_normalisation(model, task.data.train.batches(EVALUATION_BATCH))
    return Settled(
        model=model,
        score=_validate(task, model),
        counts=zero_counts({name: model.get_submodule(name).weight for name in exact.trits}),  # type: ignore[misc]
        moved_share=exact.moved_share,
        sparsity_before=before.sparsity,
        soft_accuracy=before.soft_accuracy,
        rounded_accuracy=before.rounded_accuracy,
        dead_layers=exact.dead_layers,
        unit=control.unit,
        alphas=control.alphas(),
        history=tuple(history),
    )


@torch.no_grad()
def _exact(model: nn.Module, candidate: Candidate, task: Task) -> ExactTrits:
    thetas = {name: latent.detach() for name, latent in latents(model).items()}
    thresholds = {name: weight.threshold for name, weight in ternary_weights(model).items()}
    zeros = zeros_for_sparsity(candidate.sparsity, sum(latent.numel() for latent in thetas.values()))
    return exact_trits(thetas, soft_weights(model), thresholds, zeros, task.floor)


def _train_float_parts(
    model: nn.Module, candidate: Candidate, task: Task, before: Epoch, history: list[Epoch], progress: Progress, loss
) -> None:
    """Normalisation, first and last layer and biases learn to live with the trits."""

    def after_epoch(epoch: int) -> None:
        accuracy = _validate(task, model).accuracy
        history.append(
            Epoch(
                "frozen",
                epoch,
                candidate.frozen_epochs,
                accuracy,
                accuracy,
                candidate.sparsity,
                before.alpha,
                0.0,
                before.sharpness,
            )
        )
        progress.on_epoch(history[-1])

    batches = task.data.train.batches(task.batch, seed=candidate.seed + 1)
    plan = _plan(task, candidate.frozen_epochs, candidate.frozen_learning_rate)
    fit(model, batches, plan, Watch(after_epoch, progress.stop_requested), loss=loss)
