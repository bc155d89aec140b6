"""Builds the context of a study's trials, once and in memory: the task, the dense warm start, the search space, the
costs.

Files in the run folder are the record. They are read on resume, by workers and by other commands.
"""

import contextlib
import dataclasses
import inspect
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from sca_search.config.names import SCA
from sca_search.config.references import is_installed, load_object
from sca_search.config.study import StudySpec
from sca_search.data import checksum
from sca_search.errors import CheckpointError, RunError
from sca_search.export.latency.table import write_calibration
from sca_search.models.prepare import prepared
from sca_search.models.weights import TEACHER_LOGITS
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import typical_sparsity
from sca_search.study.budgets import CostMeter, Costs, CostSetup, prepare_costs
from sca_search.study.events import DenseEpoch, Emit, Note, SensitivityStep, ignore
from sca_search.study.space import Space
from sca_search.system.files import require_loadable, save_tensors, write_json_atomic
from sca_search.system.machine import usable_cores
from sca_search.system.signals import NEVER, StopToken
from sca_search.ternary.allocation import LayerCost, allocate, uniform_weighting
from sca_search.ternary.exact import Floor
from sca_search.ternary.parametrize import latents, parametrize_layers
from sca_search.ternary.prior import alpha_for_sparsity
from sca_search.training.evaluate import Score
from sca_search.training.fit import StopRequestedError, make_trainer
from sca_search.training.losses import loss_of
from sca_search.training.metrics import metric_of, try_metric
from sca_search.training.sensitivity import measure_sensitivity
from sca_search.training.task import BY_NAME, Source, Task, WarmStart
from sca_search.training.train import train_dense

# Networks with fewer weights than this are slower with a second thread: a trial on the 8×8 digits took 3.6 s with one
# thread and 4.1 s with two while another process used the machine.
_WEIGHTS_FOR_THREADS = 100_000
# Sparsities at which the closed form is written to a file: dense where α changes most.
_SPARSITIES = (*(step / 20 for step in range(20)), 0.97, 0.98, 0.99, 0.995)
# The fraction of a study's passes through the network that may be spent on the layers' sensitivity.
_SENSITIVITY_FRACTION = 0.05
_SENSITIVITY = TypeAdapter(list[LayerCost])


def make_task(spec: StudySpec, source: Source = BY_NAME, *, check_test: bool = True) -> Task:
    """Load data and network and choose the layers; raises for every mistake of a user."""
    data = source.load(spec, check_test=check_test)
    make = source.maker(spec, data.num_classes, data.input_shape)
    network = prepared(make, data.input_shape, data.num_classes, spec.model)
    metric = metric_of(source.metric or spec.train.metric, data)
    try_metric(metric, data)
    task = Task(
        data=data,
        make_model=network.make_model,
        make_start=network.make_start,
        choices=network.choices,
        batch=spec.train.batch,
        learning_rate_steps=spec.train.learning_rate_steps,
        last_layer_weight_decay=spec.train.last_layer_weight_decay,
        weight_decay=spec.train.weight_decay,
        floor=Floor(spec.train.floor_per_layer, spec.train.floor_per_channel),
        loss=loss_of(source.loss or spec.train.loss, data),
        metric=metric,
        trainer=spec.trainer or {},
    )
    if spec.trainer:
        make_trainer(spec.trainer)  # settings that Lightning rejects are rejected before anything is written
    if spec.goal.target_sparsity is not None:  # a target beyond the layers' floors is rejected
        allocate(task.layer_shapes, uniform_weighting(task.layer_shapes), spec.goal.target_sparsity)
    return task


def inputs_of(spec: StudySpec, task: Task, *, needs_weights: bool = True) -> dict[str, str]:
    """Checksums of what a study starts from: all its commands and machines must have the same.

    data: inputs and targets of training and validation as they are read; of inputs that do not fit into memory a
    sample.
    network: names and shapes of its tensors, and the source files of its classes and of the function that makes it,
    without those of installed packages.
    initial weights: the tensors that do not depend on the seed. Random ones may differ in their last bits between
    processors. Without `needs_weights` the user's file may be missing: a study needs it once.

    ModelError if the user's weights do not fit.
    """
    weights = spec.model.weights
    is_missing = not needs_weights and weights is not None and not weights.is_file()
    network, again = (_made(task.make_model if is_missing else task.start_model, seed) for seed in (0, 1))
    first, second = network.state_dict(), again.state_dict()
    inputs = {
        "data": task.data.checksum,
        "network": _network_checksum(network, first, spec.references.get("model.name")),
    }
    if is_missing:
        return inputs
    return inputs | {"initial weights": checksum(value for name, value in first.items() if value.equal(second[name]))}


def _made(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def _network_checksum(network: nn.Module, state: dict[str, Tensor], reference: str | None) -> str:
    found = zlib.crc32(repr([(key, tuple(value.shape)) for key, value in state.items()]).encode())
    for source in sorted(path.read_bytes() for path in set(_source_files(network, reference))):
        found = zlib.crc32(source, found)
    return f"{found:08x}"


def _source_files(network: nn.Module, reference: str | None) -> Iterator[Path]:
    """The user's files that define the network; a class of an interactive session has none."""
    makers = [load_object(reference, "model")] if reference else []
    for made in (*makers, *{type(module) for module in network.modules()}):
        with contextlib.suppress(OSError, TypeError):
            file = inspect.getsourcefile(made)  # type: ignore[arg-type]  # TypeError for an object without a file
            if file is not None and not is_installed(file):
                yield Path(file).resolve()


def threads_of(spec: StudySpec, task: Task) -> int:
    """Threads per worker: as requested, else one for a small network, or the cores divided among the workers.

    OMP_NUM_THREADS is an upper limit, as in torch.
    """
    if spec.search.threads:
        return spec.search.threads
    if sum(choice.layer.weights for choice in task.choices) < _WEIGHTS_FOR_THREADS:
        return 1
    limit = os.environ.get("OMP_NUM_THREADS", "")
    threads = max(1, usable_cores() // spec.search.workers)
    return min(threads, int(limit)) if limit.isdecimal() and int(limit) else threads


@dataclass(frozen=True)
class StudyContext:
    """Everything that trials of a study need, in memory; the run folder holds the record of it."""

    run: RunFolder
    task: Task
    warm_start: WarmStart
    space: Space  # with the predicted costs
    cost_meter: CostMeter | None = None

    @property
    def spec(self) -> StudySpec:
        return self.space.spec

    def costs_of(self, model: nn.Module) -> Costs:
        """The measured costs of a trained network, where the goal has budgets."""
        return Costs() if self.cost_meter is None else self.cost_meter(model, self.task)


def build_context(
    run: RunFolder,
    spec: StudySpec,
    task: Task,
    costs: CostSetup | None = None,
    emit: Emit = ignore,
    stop: StopToken = NEVER,
) -> StudyContext:
    """Train and measure what a study needs before its trials, or read what an earlier command has written.

    Raises StopRequestedError.
    """
    costs = costs or prepare_costs(spec, task, run.latency_file)
    if costs.calibration is not None:
        write_calibration(run.latency_file, costs.calibration)
    start = warm_start(run, spec, task, emit, stop)
    write_closed_form(run, spec, task, start)
    sensitivity = layer_sensitivity(run, spec, task, start, emit, stop)
    space = Space(spec, task.layer_shapes, tuple(sensitivity), costs.budgets)
    return StudyContext(run, task, start, space, costs.meter)


def context_files(run: RunFolder) -> list[Path]:
    """The files that `build_context` writes and `read_context` reads; some studies do not have all of them."""
    return [run.dense_file, run.dense_scores_file, run.closed_form_file, run.sensitivity_file, run.latency_file]


def read_context(run: RunFolder, spec: StudySpec, task: Task) -> StudyContext:
    """The context of a study that another process prepared, from its run folder."""
    costs = prepare_costs(spec, task, run.latency_file)
    sensitivity = read_sensitivity(run.sensitivity_file) if needs_sensitivity(spec, task) else []
    space = Space(spec, task.layer_shapes, tuple(sensitivity), costs.budgets)
    return StudyContext(run, task, read_warm_start(run), space, costs.meter)


def warm_start(run: RunFolder, spec: StudySpec, task: Task, emit: Emit = ignore, stop: StopToken = NEVER) -> WarmStart:
    """The dense network of this run: trained now, or read if an earlier command has trained it."""
    if run.dense_scores_file.exists():
        return read_warm_start(run)
    train = partial(
        train_dense,
        task,
        epochs=spec.train.dense_epochs,
        learning_rate=spec.train.dense_learning_rate,
        seed=spec.seed,
        on_epoch=lambda epoch: emit(DenseEpoch(epoch)),
        stop=stop,
        with_teacher=spec.uses_teacher,
        checkpoint=run.dense_checkpoint,
        checkpoint_every=spec.search.checkpoint_every,
    )
    try:
        start = train()
    except CheckpointError as error:
        emit(Note(f"{error}; training starts from the beginning"))
        run.dense_checkpoint.unlink(missing_ok=True)
        start = train()
    save_tensors(run.dense_file, start.state | {TEACHER_LOGITS: start.teacher_logits})
    # The scores come last: if they exist, the weights are complete.
    scores = {"metric": start.score.accuracy, "loss": start.score.loss, "metric_name": task.metric.name}
    write_json_atomic(run.dense_scores_file, scores)
    run.dense_checkpoint.unlink(missing_ok=True)
    return start


def read_warm_start(run: RunFolder) -> WarmStart:
    """The dense network that an earlier command trained; RunError where it cannot be read."""
    require_loadable(run.dense_file, RunError)
    try:
        scores = json.loads(run.dense_scores_file.read_text(encoding="utf-8"))
        state = load_file(run.dense_file)
        logits = state.pop(TEACHER_LOGITS)
        return WarmStart(state, Score(float(scores["metric"]), float(scores["loss"])), logits)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise RunError(f"{run.dense_file}: the dense network cannot be read: {error}") from error


def layer_sensitivity(
    run: RunFolder, spec: StudySpec, task: Task, start: WarmStart, emit: Emit = ignore, stop: StopToken = NEVER
) -> list[LayerCost]:
    """The layers' sensitivity, if the study needs it: measured now, or read if an earlier command has measured it."""
    if not needs_sensitivity(spec, task):
        return []
    if run.sensitivity_file.exists():
        return read_sensitivity(run.sensitivity_file)

    def on_layer(layer: int, layers: int) -> None:
        if stop.is_set():
            raise StopRequestedError
        emit(SensitivityStep(layer, layers))

    epochs = spec.search.trials * (spec.train.epochs + spec.train.frozen_epochs)
    # A backward pass takes about twice as long as a forward pass.
    passes = 3 * epochs * len(task.data.train)
    sensitivity = measure_sensitivity(task, start, _SENSITIVITY_FRACTION * passes, on_layer)
    write_json_atomic(run.sensitivity_file, [dataclasses.asdict(layer) for layer in sensitivity])
    return sensitivity


def read_sensitivity(path: Path) -> list[LayerCost]:
    """The layers' sensitivity that an earlier command measured."""
    try:
        layers = _SENSITIVITY.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # pydantic's are ValueErrors
        first = str(error).splitlines()[0]
        raise RunError(f"{path}: the layers' sensitivity cannot be read: {first}") from error
    if not all(0.0 <= layer.sparsity <= 1.0 and math.isfinite(layer.loss + layer.accuracy) for layer in layers):
        raise RunError(f"{path}: a layer's sensitivity must be a finite loss at a sparsity from 0 to 1")
    return layers


def needs_sensitivity(spec: StudySpec, task: Task) -> bool:
    """Whether the allocation is searched, which the layers' sensitivity guides."""
    is_searched = spec.plans_sparsity and Space(spec).form is not None
    return is_searched and bool(spec.search.space.allocation) and len(task.layer_shapes) > 1


def write_closed_form(run: RunFolder, spec: StudySpec, task: Task, start: WarmStart) -> None:
    """Write the prior's α per layer on the warm start, for the spread of the first trial; once per run."""
    if run.closed_form_file.exists() or spec.search.method != SCA:
        return
    spread, first = _first_latents(spec, task, task.model_with(start.state))
    alphas = {name: [alpha_for_sparsity(latent, each) for each in _SPARSITIES] for name, latent in first.items()}
    write_json_atomic(run.closed_form_file, {"spread": spread, "sparsity": _SPARSITIES, "alpha": alphas})


def _first_latents(spec: StudySpec, task: Task, model: nn.Module) -> tuple[float, Mapping[str, Tensor]]:
    """The spread of the first trial, and the latents of a network with it."""
    spread = Space(spec).first_guess()["spread"]
    parametrize_layers(model, dict.fromkeys(task.ternary_layers, spread))
    return spread, latents(model)


def starting_alphas(task: Task, spec: StudySpec) -> dict[str, float]:
    """The prior's α per layer on the initial network, for the target; a recipe has its own, other methods have none."""
    if spec.search.method != SCA:
        return {}
    if spec.recipe is not None:
        return dict.fromkeys(task.ternary_layers, spec.recipe.alpha)
    torch.manual_seed(spec.seed)
    _, first = _first_latents(spec, task, task.make_model())
    return {name: alpha_for_sparsity(latent, typical_sparsity(spec.goal)) for name, latent in first.items()}
