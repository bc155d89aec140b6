"""The one Lightning room: a learning module, the callbacks around it, and `fit`."""

import logging
import math
import os
import signal
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from sca_search.config.schedule import Steps
from sca_search.data import Batch, Batches
from sca_search.errors import CheckpointError, DivergenceError, SpecError
from sca_search.models.scales import output_scales
from sca_search.system.memory import trim_heap
from sca_search.system.torchvision import patch_torchvision
from sca_search.ternary.methods import Method
from sca_search.training.losses import TaskLoss, cross_entropy

patch_torchvision()  # which Lightning imports
import pytorch_lightning as lightning  # noqa: E402
from lightning_fabric.utilities.exceptions import MisconfigurationException  # noqa: E402
from pytorch_lightning.utilities.exceptions import SIGTERMException  # noqa: E402

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


@dataclass(frozen=True)
class Lesson:
    """What is to be learned, and who looks on."""

    loss: TaskLoss = cross_entropy
    watch: Watch = field(default_factory=Watch)


class Learner(lightning.LightningModule):
    """The task's loss, plus the method's own term where one is at work."""

    def __init__(
        self, model: nn.Module, plan: FitPlan, leg: Leg, batches: int, method: Method | None, lesson: Lesson
    ) -> None:
        super().__init__()
        self.model = model
        self.plan = plan
        self.leg = leg
        self.batches = batches  # an epoch; the trainer does not know yet when it asks for optimizers
        self.method = method
        self.lesson = lesson
        self.stopped = False
        self.memory: dict[str, Tensor] = {}

    def on_after_backward(self) -> None:
        if self.method is not None:
            self.method.after_backward()

    def loss_of(self, batch: Batch) -> Tensor:
        inputs, *wanted = batch
        loss = self.lesson.loss(self.model(inputs), *wanted)
        if self.method is not None:
            loss = loss + self.method.penalty()
        value = loss.item()
        if not math.isfinite(value):
            raise DivergenceError(f"the loss became {value} in epoch {self.leg.first + self.current_epoch + 1}")
        return loss

    def move_schedules(self, batch: int) -> None:
        if self.method is not None:
            self.method.update(self.leg.first + self.current_epoch + batch / self.batches)

    def listen(self) -> None:
        """Whether the outside wants to stop."""
        if self.lesson.watch.stop_requested():
            self.stopped = self.trainer.should_stop = True

    def on_train_epoch_end(self) -> None:
        if not self.stopped:
            optimizer = self.trainer.optimizers[0]
            optimizer.zero_grad()  # nobody needs them before the next step, and what comes now needs room
            epoch = self.leg.first + self.current_epoch + 1
            self.lesson.watch.after_epoch(epoch)
            self.lesson.watch.keep(epoch, lambda: memory_of(optimizer))

    def configure_optimizers(self) -> Any:
        own = (self.method.latents().values(), self.method.trains_itself()) if self.method else ()
        groups = parameter_groups(self.model, self.plan, *own)
        # Lightning clips no gradients of a fused one, and lets it unscale none.
        optimizer = torch.optim.Adam(groups, fused=is_plain(self.trainer))
        remember(optimizer, self.leg.memory)
        # Of several batches that are added up, the optimizer makes one step, and of those left over at the end another.
        steps = math.ceil(self.batches / self.trainer.accumulate_grad_batches)
        course = _course(optimizer, self.plan, steps * self.plan.epochs)
        for _ in range(steps * self.leg.first):
            course.step()
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": course, "interval": "step"}}

    def on_train_end(self) -> None:
        self.memory = memory_of(self.trainer.optimizers[0])


class StepLearner(Learner):
    """Lightning takes the steps."""

    @torch.enable_grad()  # a user's data set may have left them off
    def training_step(self, batch: Batch, _index: int) -> Tensor:
        return self.loss_of(batch)

    def on_train_batch_start(self, _batch: Any, batch_idx: int) -> None:
        self.move_schedules(batch_idx)

    def on_train_batch_end(self, *_: Any) -> None:
        self.listen()


class EpochLearner(Learner):
    """Takes an epoch's steps by itself, where they are plain: the same to the bit.

    What Lightning does around a step would be a twentieth of a small network's time.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.automatic_optimization = False

    def training_step(self, dataloader_iter: Iterator[tuple[Batch, int, int]]) -> None:
        """Until the epoch is over or somebody wants to stop. By its argument's name Lightning gives it an iterator."""
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        course: Any = self.lr_schedulers()
        for batch, number, _loader in dataloader_iter:
            self.move_schedules(number)
            self._step(self.transfer_batch_to_device(batch, self.device, 0), optimizer, course)
            self.listen()
            if self.trainer.received_sigterm:
                raise SIGTERMException
            if self.stopped:
                return

    @torch.enable_grad()
    def _step(self, batch: Batch, optimizer: Any, course: Any) -> None:
        optimizer.zero_grad()
        self.loss_of(batch).backward()  # type: ignore[no-untyped-call]
        self.on_after_backward()
        optimizer.step()
        course.step()


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


def is_plain(trainer: Any) -> bool:
    """Whether a step is forward, backward and the optimizer's, and nobody listens in between.

    Lightning does not count what an `EpochLearner` does, so whatever counts steps is not plain.
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
        except (MisconfigurationException, ArithmeticError, ValueError, TypeError, ImportError, RuntimeError) as error:
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
    trim_heap()
    batches.set_epoch(leg.first)
    # On a CPU, pooling and small convolutions are faster with a pixel's channels side by side.
    model.to(memory_format=layout(model))  # type: ignore[call-overload]
    with warnings.catch_warnings():
        # Lightning advises worker processes and more: the batches are in memory, and the advice is not the user's.
        warnings.simplefilter("ignore")
        trainer = make_trainer(plan.trainer, max_epochs=epochs)
        kind = EpochLearner if is_plain(trainer) else StepLearner
        learner = kind(model, plan, leg, len(batches), method, Lesson(loss, watch))
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
    if learner.stopped:
        raise StopRequestedError
    return learner.memory
