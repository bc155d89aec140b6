"""Training with Lightning: the training module and `fit`. No other module of training imports Lightning."""

import logging
import math
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.config.candidate import Steps
from sca_search.data import Batch, Batches
from sca_search.errors import CheckpointError, DivergenceError, SpecError
from sca_search.models.scales import output_scales
from sca_search.system.machine import trim_heap
from sca_search.system.signals import NEVER, StopToken
from sca_search.system.torchvision import patch_torchvision
from sca_search.ternary.methods import Method
from sca_search.training.losses import TaskLoss

patch_torchvision()  # which Lightning imports
import pytorch_lightning as lightning  # noqa: E402
from lightning_fabric.utilities.exceptions import MisconfigurationException  # noqa: E402
from pytorch_lightning.utilities.exceptions import SIGTERMException  # noqa: E402

# Adam's state per parameter. The fused optimizer reads it without checking its sizes.
_ADAM_STATE = {"step", "exp_avg", "exp_avg_sq"}
OptimizerState = dict[str, Tensor]
# Called after each epoch, with a function that reads the optimizer's state for a checkpoint.
AfterEpoch = Callable[[int, Callable[[], OptimizerState]], None]


class StopRequestedError(Exception):
    """The user requested a stop while a network was training."""


@dataclass(frozen=True)
class FitPlan:
    """How the optimizer runs: learning rates and their schedule, weight decay, and which epochs are trained now."""

    epochs: int
    learning_rate: float
    latent_learning_rate: float = 0.0
    learning_rate_steps: tuple[tuple[float, float], ...] = ()  # empty: one cycle
    last_layer_weight_decay: float = 0.0
    weight_decay: float = 0.0
    last_layer: str | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)  # settings of Lightning's Trainer
    first_epoch: int = 0
    last_epoch: int | None = None  # None: all
    optimizer_state: OptimizerState = field(default_factory=dict)  # after the epochs before the first


class TrainingModule(lightning.LightningModule):
    """The task's loss, plus the penalty of the method if there is one."""

    def __init__(
        self,
        model: nn.Module,
        batches: int,
        plan: FitPlan,
        after_epoch: AfterEpoch,
        stop: StopToken,
        method: Method | None,
        loss: TaskLoss,
    ) -> None:
        super().__init__()
        self.model = model
        self.batches = batches  # per epoch; the trainer does not know it yet when it asks for optimizers
        self.plan = plan
        self.after_epoch = after_epoch
        self.stop = stop
        self.method = method
        self.task_loss = loss
        self.stopped = False
        self.optimizer_state: OptimizerState = {}

    def on_after_backward(self) -> None:
        if self.method is not None:
            self.method.after_backward()

    def loss_of(self, batch: Batch) -> Tensor:
        inputs, *targets = batch

        def task_loss() -> Tensor:
            return self.task_loss(self.model(inputs), *targets)

        loss = task_loss()
        if self.method is not None:
            loss = loss + self.method.penalty() + self.method.second_pass(loss, task_loss)
        value = loss.item()
        if not math.isfinite(value):
            raise DivergenceError(f"the loss became {value} in epoch {self.plan.first_epoch + self.current_epoch + 1}")
        return loss

    def update_schedules(self, batch: int) -> None:
        if self.method is not None:
            self.method.update(self.plan.first_epoch + self.current_epoch + batch / self.batches)

    def check_stop(self) -> None:
        if self.stop.is_set():
            self.stopped = self.trainer.should_stop = True

    def on_train_epoch_end(self) -> None:
        if not self.stopped:
            optimizer = self.trainer.optimizers[0]
            optimizer.zero_grad()  # frees the gradients' memory for the evaluation
            self.after_epoch(self.plan.first_epoch + self.current_epoch + 1, lambda: read_state(optimizer))

    def configure_optimizers(self) -> Any:
        own = (self.method.latents().values(), self.method.self_updated()) if self.method else ()
        groups = parameter_groups(self.model, self.plan, *own)
        # Lightning does not clip or unscale gradients of a fused optimizer.
        optimizer = torch.optim.Adam(groups, fused=is_plain(self.trainer))
        restore_state(optimizer, self.plan.optimizer_state)
        # With accumulated batches the optimizer makes one step per group of batches, and one for the rest.
        steps = math.ceil(self.batches / self.trainer.accumulate_grad_batches)
        schedule = _learning_rates(optimizer, self.plan, steps * self.plan.epochs)
        for _ in range(steps * self.plan.first_epoch):
            schedule.step()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_end(self) -> None:
        self.optimizer_state = read_state(self.trainer.optimizers[0])


class StepModule(TrainingModule):
    """Lightning makes the optimizer's steps."""

    @torch.enable_grad()  # a user's data set may have disabled gradients
    def training_step(self, batch: Batch, _index: int) -> Tensor:
        return self.loss_of(batch)

    def on_train_batch_start(self, _batch: Any, batch_idx: int) -> None:
        self.update_schedules(batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        self.check_stop()


class EpochModule(TrainingModule):
    """Makes the steps of an epoch itself if they are plain, with bit-identical results.

    Lightning's overhead per step would take 5 % of the training time of a small network.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.automatic_optimization = False

    def training_step(self, dataloader_iter: Iterator[tuple[Batch, int, int]]) -> None:
        """One epoch, or until a stop. Lightning passes an iterator because of the argument's name."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        schedule: Any = self.lr_schedulers()
        for batch, number, _loader in dataloader_iter:
            self.update_schedules(number)
            batch_here = self.transfer_batch_to_device(batch, self.device, 0)
            with torch.enable_grad():  # a user's data set may have disabled gradients
                optimizer.zero_grad()
                self.loss_of(batch_here).backward()  # type: ignore[no-untyped-call]
                self.on_after_backward()
                optimizer.step()
                schedule.step()
            self.check_stop()
            if self.trainer.received_sigterm:
                raise SIGTERMException
            if self.stopped:
                return


def read_state(optimizer: torch.optim.Optimizer) -> OptimizerState:
    """The optimizer's state per parameter, keyed by the parameter's number."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def restore_state(optimizer: torch.optim.Optimizer, state: OptimizerState) -> None:
    """Restore what `read_state` returned; CheckpointError where it does not fit the parameters."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    rule = "a checkpoint's optimizer state must"
    for key, value in state.items():
        number, _, name = key.partition(".")
        if not number.isdecimal() or int(number) >= len(parameters):
            raise CheckpointError(f"{rule} be of this network's {len(parameters)} parameters, got {key!r}")
        parameter = parameters[int(number)]
        expected = torch.zeros(()) if name == "step" else parameter
        if name not in _ADAM_STATE or (value.shape, value.dtype) != (expected.shape, expected.dtype):
            raise CheckpointError(f"{rule} fit this network's parameters, {key!r} does not")
        # The fused optimizer assumes the parameter's memory layout.
        optimizer.state[parameter][name] = torch.empty_like(expected).copy_(value)
    for entries in optimizer.state.values():
        if entries.keys() != _ADAM_STATE:
            raise CheckpointError(
                f"a checkpoint's optimizer state of a parameter must be complete, got only {', '.join(sorted(entries))}"
            )


def parameter_groups(
    model: nn.Module, plan: FitPlan, latents: Iterable[nn.Parameter] = (), excluded: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Parameters by learning rate and weight decay: latents, the last layer, output scales, the rest."""
    theta, skipped = ({id(parameter) for parameter in parameters} for parameters in (latents, excluded))
    last = model.get_submodule(plan.last_layer) if plan.last_layer and plan.last_layer_weight_decay else None
    decayed = {id(parameter) for parameter in last.parameters()} - theta if last else set()
    # Adam's steps have the same length for small and large scales, so each scale has a rate proportional to its size.
    scales = {id(scale): unit for scale, unit in output_scales(model)}
    trained = [p for p in model.parameters() if p.requires_grad and id(p) not in skipped]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trained if id(p) in theta], "lr": plan.latent_learning_rate},
        {
            "params": [p for p in trained if id(p) in decayed and id(p) not in scales],
            "lr": plan.learning_rate,
            "weight_decay": plan.last_layer_weight_decay,
        },
        {"params": [p for p in trained if id(p) not in theta | decayed | scales.keys()], "lr": plan.learning_rate},
        *({"params": [p], "lr": plan.learning_rate * scales[id(p)]} for p in trained if id(p) in scales),
    ]
    return [{"weight_decay": plan.weight_decay} | group for group in groups if group["params"]]


def _learning_rates(
    optimizer: torch.optim.Optimizer, plan: FitPlan, steps: int
) -> torch.optim.lr_scheduler.LRScheduler:
    if not plan.learning_rate_steps:
        peaks = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peaks, total_steps=max(1, steps))
    factor = Steps(value=1.0, factors=plan.learning_rate_steps)
    per_epoch = steps / plan.epochs
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factor.at(step / per_epoch, plan.epochs))


def is_plain(trainer: Any) -> bool:
    """Whether a step is only forward, backward and the optimizer's step, without callbacks in between.

    Lightning does not count the steps of an `EpochModule`, so a trainer that counts steps is not plain.
    """
    return bool(
        trainer.gradient_clip_val is None
        and trainer.accumulate_grad_batches == 1
        and trainer.precision == "32-true"
        and trainer.world_size == 1
        and trainer.max_steps == -1
        and not trainer.loggers
        and not trainer.callbacks
    )


def layout(model: nn.Module) -> torch.memory_format:
    """Channels last, unless there are 3D convolutions: torch supports that layout only for images."""
    is_flat = all(tensor.ndim <= 4 for tensor in chain(model.parameters(), model.buffers()))
    return torch.channels_last if is_flat else torch.contiguous_format


@contextmanager
def _quiet_lightning() -> Iterator[None]:
    """Suppress Lightning's messages, which would break the progress display, and its warnings.

    It recommends data loader workers and more; the batches are in memory already.
    """
    messages = logging.getLogger("pytorch_lightning")
    before = messages.level
    messages.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        messages.setLevel(before)


def make_trainer(settings: Mapping[str, Any], **ours: Any) -> lightning.Trainer:
    """Lightning's Trainer with a user's settings; SpecError where it rejects them."""
    usual = {"accelerator": "auto", "devices": 1, **settings}
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with _quiet_lightning():
        try:
            trainer = lightning.Trainer(**usual, **quiet, enable_model_summary=False, **ours)
        except (MisconfigurationException, ArithmeticError, ValueError, TypeError, ImportError, RuntimeError) as error:
            sentence = " ".join(str(error).split())
            raise SpecError(f"[trainer]: Lightning rejects these settings: {sentence}") from error
    if trainer.strategy.launcher is not None and trainer.world_size > 1:
        # Such strategies train in separate processes, which return only the weights.
        raise SpecError(
            "[trainer]: a trial must be trained in one process, got "
            f"{trainer.world_size} by {type(trainer.strategy).__name__}; to use more devices, increase --workers"
        )
    return trainer


def fit(
    model: nn.Module,
    batches: Batches,
    plan: FitPlan,
    after_epoch: AfterEpoch = lambda _epoch, _state: None,
    stop: StopToken = NEVER,
    method: Method | None = None,
    loss: TaskLoss = F.cross_entropy,
) -> OptimizerState:
    """Train a network in place and return the optimizer's state. Raises DivergenceError or StopRequestedError."""
    epochs = (plan.epochs if plan.last_epoch is None else plan.last_epoch) - plan.first_epoch
    if epochs == 0 or not any(parameter.requires_grad for parameter in model.parameters()):
        return plan.optimizer_state
    trim_heap()
    batches.set_epoch(plan.first_epoch)
    # On a CPU, pooling and small convolutions are faster with a pixel's channels side by side.
    model.to(memory_format=layout(model))  # type: ignore[call-overload]
    with _quiet_lightning():
        trainer = make_trainer(plan.trainer, max_epochs=epochs)
        kind = EpochModule if is_plain(trainer) else StepModule
        module = kind(model, len(batches), plan, after_epoch, stop, method, loss)
        try:
            trainer.fit(module, batches)
        except SIGTERMException as error:  # Lightning handles SIGTERM as well, and would end the process
            if not stop.is_set():  # no other handler: end the process as without Lightning
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            raise StopRequestedError from error
        except SystemExit as error:  # Lightning turns Ctrl-C into an exit code of its own
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None
            raise
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if module.stopped:
        raise StopRequestedError
    return module.optimizer_state
