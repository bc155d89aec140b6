"""The one Lightning room: a classifier module, the callbacks around it, and `fit`."""

import logging
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sca_search.control import SparsityControl
from sca_search.data import Batch, Batches
from sca_search.errors import DivergenceError
from sca_search.loss import TaskLoss, cross_entropy
from sca_search.schedule import Steps
from sca_search.ternary import latents
from sca_search.wheels import heal_torchvision

heal_torchvision()
import pytorch_lightning as lightning  # noqa: E402 - it imports torchvision, which must be healed before

logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)  # its greeting would tear the progress display


class StopRequestedError(Exception):
    """The user asked to stop while a network was training."""


@dataclass(frozen=True)
class FitPlan:
    """How the optimizer runs: learning rates, their course, and decay of the last layer."""

    epochs: int
    learning_rate: float
    latent_learning_rate: float = 0.0
    learning_rate_steps: tuple[tuple[float, float], ...] = ()  # empty: one cycle
    last_layer_weight_decay: float = 0.0
    last_layer: str | None = None


@dataclass(frozen=True)
class Watch:
    """What the outside wants: a call after each epoch, and a word whether to stop."""

    after_epoch: Callable[[int], None] = field(default=lambda _epoch: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)


class Classifier(lightning.LightningModule):
    """Cross-entropy, plus λR where a control steers ternary layers."""

    def __init__(self, model: nn.Module, plan: FitPlan, control: SparsityControl | None, loss: TaskLoss) -> None:
        super().__init__()
        self.model = model
        self.plan = plan
        self.control = control
        self.loss = loss

    def training_step(self, batch: Batch, _index: int) -> Tensor:
        images, *wanted = batch
        loss = self.loss(self.model(images), *wanted)
        if self.control is not None:
            loss = loss + self.control.penalty()
        if not math.isfinite(float(loss.detach())):
            raise DivergenceError(f"the loss became {float(loss.detach())} in epoch {self.current_epoch + 1}")
        return loss

    def configure_optimizers(self) -> Any:
        groups = parameter_groups(self.model, self.plan)
        optimizer = torch.optim.Adam(groups, fused=True)
        steps = int(self.trainer.estimated_stepping_batches)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": _course(optimizer, self.plan, steps), "interval": "step"},
        }


def parameter_groups(model: nn.Module, plan: FitPlan) -> list[dict[str, Any]]:
    """Θ with its own learning rate, the last layer with its decay, the rest."""
    theta = {id(latent) for latent in latents(model).values()}
    last = model.get_submodule(plan.last_layer) if plan.last_layer and plan.last_layer_weight_decay else None
    decayed = {id(parameter) for parameter in last.parameters()} - theta if last else set()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [
        {"params": [p for p in trained if id(p) in theta], "lr": plan.latent_learning_rate},
        {
            "params": [p for p in trained if id(p) in decayed],
            "lr": plan.learning_rate,
            "weight_decay": plan.last_layer_weight_decay,
        },
        {"params": [p for p in trained if id(p) not in theta | decayed], "lr": plan.learning_rate},
    ]
    return [group for group in groups if group["params"]]


def _course(optimizer: torch.optim.Optimizer, plan: FitPlan, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    if not plan.learning_rate_steps:
        peaks = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peaks, total_steps=max(1, steps))
    course = Steps(value=1.0, factors=plan.learning_rate_steps)
    per_epoch = steps / plan.epochs
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: course.at(step / per_epoch, plan.epochs))


class _Conductor(lightning.Callback):
    """Moves the schedules before each batch; tells the outside after each epoch; stops when asked."""

    def __init__(self, watch: Watch, control: SparsityControl | None) -> None:
        self.watch = watch
        self.control = control
        self.stopped = False

    def on_train_batch_start(self, trainer: Any, _module: Any, _batch: Any, batch_idx: int) -> None:
        if self.control is not None:
            self.control.update(trainer.current_epoch + batch_idx / trainer.num_training_batches)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.watch.stop_requested():
            self.stopped = trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, _module: Any) -> None:
        if not self.stopped:
            self.watch.after_epoch(trainer.current_epoch + 1)


def fit(
    model: nn.Module,
    batches: Batches,
    plan: FitPlan,
    watch: Watch,
    control: SparsityControl | None = None,
    loss: TaskLoss = cross_entropy,
) -> None:
    """Trains a network in place. Raises DivergenceError or StopRequestedError."""
    if plan.epochs == 0 or not any(parameter.requires_grad for parameter in model.parameters()):
        return
    conductor = _Conductor(watch, control)
    with warnings.catch_warnings():
        # Lightning advises worker processes and more: the batches are in memory, and the advice is not the user's.
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            max_epochs=plan.epochs,
            accelerator="auto",
            devices=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            callbacks=[conductor],
            default_root_dir=None,
        )
        trainer.fit(Classifier(model, plan, control, loss), batches)
    if conductor.stopped:
        raise StopRequestedError
