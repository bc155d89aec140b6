"""The one Lightning room: a learning module, the callbacks around it, and `fit`."""

import logging
import math
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from sca_search.data import Batch, Batches
from sca_search.errors import CheckpointError, DivergenceError, SpecError
from sca_search.freed_memory import give_back
from sca_search.loss import TaskLoss, cross_entropy
from sca_search.methods import Method
from sca_search.output_scale import output_scales
from sca_search.schedule import Steps
from sca_search.wheels import heal_torchvision, without_scipy_signal

heal_torchvision()  # which Lightning imports
with without_scipy_signal():
    import pytorch_lightning as lightning
    from lightning_fabric.utilities.exceptions import MisconfigurationException
    from pytorch_lightning.utilities.exceptions import SIGTERMException

# What Adam knows of a parameter. The fused one reads them without a look at their sizes.
_REMEMBERED = {"step", "exp_avg", "exp_avg_sq"}

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
    weight_decay: float = 0.0
    last_layer: str | None = None
    trainer: Mapping[str, Any] = field(default_factory=dict)  # Lightning's own settings


@dataclass(frozen=True)
class Leg:
    """Which of a plan's epochs are trained in one go, and the optimizer's memory of those before."""

    first: int = 0
    last: int | None = None  # None: to the plan's end
    memory: dict[str, Tensor] = field(default_factory=dict)


WHOLE = Leg()


@dataclass(frozen=True)
class Watch:
    """What the outside wants: a call after each epoch, and a word whether to stop."""

    after_epoch: Callable[[int], None] = field(default=lambda _epoch: None)
    stop_requested: Callable[[], bool] = field(default=lambda: False)
    # After that, with what gives the optimizer's memory: a training may be kept, to go on from there.
    keep: Callable[[int, Callable[[], dict[str, Tensor]]], None] = field(default=lambda _epoch, _memory: None)


class Learner(lightning.LightningModule):
    """The task's loss, plus the method's own term where one is at work."""

    def __init__(
        self, model: nn.Module, plan: FitPlan, leg: Leg, steps: int, method: Method | None, loss: TaskLoss
    ) -> None:
        super().__init__()
        self.model = model
        self.plan = plan
        self.leg = leg
        self.steps = steps  # an epoch; the trainer does not know yet when it asks for optimizers
        self.method = method
        self.loss = loss
        self.memory: dict[str, Tensor] = {}

    @torch.enable_grad()  # a user's data set may have left them off
    def training_step(self, batch: Batch, _index: int) -> Tensor:
        inputs, *wanted = batch
        loss = self.loss(self.model(inputs), *wanted)
        if self.method is not None:
            loss = loss + self.method.penalty()
        value = loss.item()
        if not math.isfinite(value):
            raise DivergenceError(f"the loss became {value} in epoch {self.leg.first + self.current_epoch + 1}")
        if not self.automatic_optimization:
            self._step(loss)
        return loss

    def _step(self, loss: Tensor) -> None:
        """What Lightning's own optimization comes to where `is_plain`, and in its order."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        course: Any = self.lr_schedulers()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.on_after_backward()
        optimizer.step()
        course.step()

    def on_after_backward(self) -> None:
        if self.method is not None:
            self.method.after_backward()

    def configure_optimizers(self) -> Any:
        own = (self.method.latents().values(), self.method.trains_itself()) if self.method else ()
        groups = parameter_groups(self.model, self.plan, *own)
        # Lightning clips no gradients of a fused one, and lets it unscale none.
        optimizer = torch.optim.Adam(groups, fused=is_plain(self.trainer))
        remember(optimizer, self.leg.memory)
        course = _course(optimizer, self.plan, self.steps * self.plan.epochs)
        for _ in range(self.steps * self.leg.first):
            course.step()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": course, "interval": "step"}}

    def on_train_end(self) -> None:
        self.memory = memory_of(self.trainer.optimizers[0])


def memory_of(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimizer knows of each parameter, under the parameter's number."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return {
        f"{number}.{name}": value
        for number, parameter in enumerate(parameters)
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def remember(optimizer: torch.optim.Optimizer, memory: dict[str, Tensor]) -> None:
    """Puts back what `memory_of` gave."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, value in memory.items():
        number, _, name = key.partition(".")
        if not number.isdecimal() or int(number) >= len(parameters):
            raise CheckpointError(
                f"a checkpoint's memory must be of this network's {len(parameters)} parameters, got {key!r}"
            )
        parameter = parameters[int(number)]
        expected = torch.zeros(()) if name == "step" else parameter
        if name not in _REMEMBERED or (value.shape, value.dtype) != (expected.shape, expected.dtype):
            raise CheckpointError(f"a checkpoint's memory must fit this network's parameters, {key!r} does not")
        optimizer.state[parameter][name] = _laid_out_as(parameter, value)
    for state in optimizer.state.values():
        if state.keys() != _REMEMBERED:
            raise CheckpointError(
                f"a checkpoint's memory of a parameter must be whole, got {', '.join(sorted(state))} alone"
            )


def _laid_out_as(parameter: Tensor, value: Tensor) -> Tensor:
    """A copy with the parameter's order in memory, which the fused optimizer takes for granted."""
    return torch.empty_like(parameter).copy_(value) if value.shape == parameter.shape else value.clone()


def parameter_groups(
    model: nn.Module, plan: FitPlan, latents: Iterable[nn.Parameter] = (), left_out: Iterable[nn.Parameter] = ()
) -> list[dict[str, Any]]:
    """Θ with its own learning rate, the last layer with its decay, the rest."""
    theta, moved = ({id(parameter) for parameter in given} for given in (latents, left_out))
    last = model.get_submodule(plan.last_layer) if plan.last_layer and plan.last_layer_weight_decay else None
    decayed = {id(parameter) for parameter in last.parameters()} - theta if last else set()
    # A step of Adam's is as long for a small scale as for a large one: so each scale has a rate in its own measure.
    scales = {id(scale): unit for scale, unit in output_scales(model)}
    trained = [p for p in model.parameters() if p.requires_grad and id(p) not in moved]
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


def _course(optimizer: torch.optim.Optimizer, plan: FitPlan, steps: int) -> torch.optim.lr_scheduler.LRScheduler:
    if not plan.learning_rate_steps:
        peaks = [group["lr"] for group in optimizer.param_groups]
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=peaks, total_steps=max(1, steps))
    course = Steps(value=1.0, factors=plan.learning_rate_steps)
    per_epoch = steps / plan.epochs
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: course.at(step / per_epoch, plan.epochs))


class _Conductor(lightning.Callback):
    """Moves the schedules before each batch; tells the outside after each epoch; stops when asked."""

    def __init__(self, watch: Watch, method: Method | None, leg: Leg) -> None:
        self.watch = watch
        self.method = method
        self.first = leg.first
        self.stopped = False

    def on_train_batch_start(self, trainer: Any, _module: Any, _batch: Any, batch_idx: int) -> None:
        if self.method is not None:
            self.method.update(self.first + trainer.current_epoch + batch_idx / trainer.num_training_batches)

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if self.watch.stop_requested():
            self.stopped = trainer.should_stop = True

    def on_train_epoch_end(self, trainer: Any, _module: Any) -> None:
        if not self.stopped:
            for optimizer in trainer.optimizers:
                optimizer.zero_grad()  # nobody needs them before the next step, and what comes now needs room
            epoch = self.first + trainer.current_epoch + 1
            self.watch.after_epoch(epoch)
            self.watch.keep(epoch, lambda: memory_of(trainer.optimizers[0]))


def is_plain(trainer: Any) -> bool:
    """Whether a step is forward, backward and the optimizer's, and nobody listens in between.

    The module takes such a step by itself: the hooks that Lightning calls around each of its parts would be a
    twentieth of a small network's time. Lightning does not count these steps, so whatever counts them is not plain.
    """
    return bool(
        trainer.gradient_clip_val is None
        and trainer.accumulate_grad_batches == 1
        and trainer.precision == "32-true"
        and trainer.world_size == 1
        and trainer.max_steps == -1
        and not trainer.loggers
        and all(isinstance(callback, _Conductor) for callback in trainer.callbacks)
    )


def layout(model: nn.Module) -> torch.memory_format:
    """Channels last, unless there are weights of volumes: torch knows that layout for images alone."""
    is_flat = all(tensor.ndim <= 4 for tensor in chain(model.parameters(), model.buffers()))
    return torch.channels_last if is_flat else torch.contiguous_format


def make_trainer(settings: Mapping[str, Any], **ours: Any) -> lightning.Trainer:
    """Lightning's, with a user's settings; SpecError where it refuses them."""
    usual: dict[str, Any] = {"accelerator": "auto", "devices": 1}
    quiet: dict[str, Any] = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            trainer = lightning.Trainer(**(usual | dict(settings)), **quiet, enable_model_summary=False, **ours)
        except (MisconfigurationException, ValueError, TypeError, ImportError, RuntimeError) as error:
            sentence = " ".join(str(error).split())
            raise SpecError(f"[trainer]: Lightning refuses these settings: {sentence}") from error
    if trainer.strategy.launcher is not None and trainer.world_size > 1:
        # Such strategies train in processes of their own, from which only the weights come back.
        raise SpecError(
            "[trainer]: a trial must be trained in one process, got "
            f"{trainer.world_size} by {type(trainer.strategy).__name__}; more devices take more --workers"
        )
    return trainer


def fit(
    model: nn.Module,
    batches: Batches,
    plan: FitPlan,
    watch: Watch,
    method: Method | None = None,
    loss: TaskLoss = cross_entropy,
    leg: Leg = WHOLE,
) -> dict[str, Tensor]:
    """Trains a network in place, and gives the optimizer's memory. Raises DivergenceError or StopRequestedError."""
    epochs = (plan.epochs if leg.last is None else leg.last) - leg.first
    if epochs == 0 or not any(parameter.requires_grad for parameter in model.parameters()):
        return leg.memory
    give_back()
    conductor = _Conductor(watch, method, leg)
    batches.set_epoch(leg.first)
    # On a CPU, pooling and small convolutions are faster with a pixel's channels side by side.
    model.to(memory_format=layout(model))  # type: ignore[call-overload]
    learner = Learner(model, plan, leg, len(batches), method, loss)
    with warnings.catch_warnings():
        # Lightning advises worker processes and more: the batches are in memory, and the advice is not the user's.
        warnings.simplefilter("ignore")
        trainer = make_trainer(plan.trainer, max_epochs=epochs, callbacks=[conductor])
        learner.automatic_optimization = not is_plain(trainer)
        try:
            trainer.fit(learner, batches)
        except SIGTERMException as error:  # Lightning listens for it as well, and would end the process
            if not watch.stop_requested():  # nobody else does: it ends the process as if Lightning were not there
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGTERM)
            raise StopRequestedError from error
        except SystemExit as error:
            if isinstance(
                error.__context__, KeyboardInterrupt
            ):  # Lightning would end the process with a code of its own
                raise error.__context__ from None
            raise
    model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    if conductor.stopped:
        raise StopRequestedError
    return learner.memory
