"""Makes what a study trains with: the task from its spec, and the dense warm start from the run folder or anew."""

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import torch
from pydantic import TypeAdapter
from safetensors import SafetensorError
from safetensors.torch import load_file

from sca_search.config.names import SCA
from sca_search.config.study import StudySpec
from sca_search.errors import CheckpointError, RunError
from sca_search.export.latency.calibrate import Say, calibration_graph, calibration_of
from sca_search.export.latency.model import Calibration, latency_model
from sca_search.export.latency.table import read_calibration, read_latency_table
from sca_search.models.prepare import prepared
from sca_search.models.weights import TEACHER_LOGITS
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import typical_sparsity
from sca_search.study.budgets import Budgets, CostMeter, budgets_of, columns_of, needs_calibration
from sca_search.study.space import Space
from sca_search.system.files import save_tensors, write_json_atomic
from sca_search.ternary.allocation import LayerCost, allocate, uniform_weighting
from sca_search.ternary.exact import Floor
from sca_search.ternary.parametrize import latents, ternarize
from sca_search.ternary.prior import alpha_for_sparsity
from sca_search.ternary.prior_correction import Observation
from sca_search.ternary.prior_file import read_prior, write_prior
from sca_search.training.evaluate import Score
from sca_search.training.fit import make_trainer
from sca_search.training.losses import loss_of
from sca_search.training.metrics import metric_of, try_metric
from sca_search.training.sensitivity import measure_sensitivity
from sca_search.training.source import BY_NAME, Source
from sca_search.training.task import Keeping, Progress, Task, WarmStart
from sca_search.training.train import train_dense

# Where the closed form is written down: close where α changes most.
_SPARSITIES = (*(step / 20 for step in range(20)), 0.97, 0.98, 0.99, 0.995)
# Of a study's passes through the network, those that may tell the layers' sensitivity.
_SENSITIVITY_SHARE = 0.05
_COSTS = TypeAdapter(list[LayerCost])

_T = TypeVar("_T")
Told = Callable[[int, int], None]
"""How far something has come, and of how many parts."""


def _to_nobody(_done: int, _parts: int) -> None:
    pass


def make_task(spec: StudySpec, source: Source = BY_NAME, *, check_test: bool = True) -> Task:
    """Data, network and the choice of layers; raises for everything that a user can get wrong."""
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
        make_trainer(spec.trainer)  # what Lightning refuses is refused before anything is written
    _refuse_impossible(spec, task)
    return task


def _refuse_impossible(spec: StudySpec, task: Task) -> None:
    """What only shows once the network's layers are known: a target below the floors, a prior of another network."""
    if spec.goal.target_sparsity is not None:
        allocate(task.layer_shapes, uniform_weighting(task.layer_shapes), spec.goal.target_sparsity)
    if spec.search.prior is not None:
        read_prior(spec.search.prior, spec.search.form, task.layer_shapes)


def warm_start(run: RunFolder, spec: StudySpec, task: Task, progress: Progress) -> WarmStart:
    """The dense network of this run: trained once, read back ever after."""
    scores = run.dense_scores_file
    if not scores.exists():

        def train() -> WarmStart:
            return train_dense(
                task,
                epochs=spec.train.dense_epochs,
                learning_rate=spec.train.dense_learning_rate,
                seed=spec.seed,
                progress=progress,
                with_answers=spec.train.distillation > 0,
                keeping=Keeping(run.dense_checkpoint, spec.search.checkpoint_every),
            )

        start = or_again(train, run.dense_checkpoint, progress.on_note)
        save_tensors(run.dense_file, start.state | {TEACHER_LOGITS: start.answers})
        # The scores come last: where they are, the weights are whole.
        told = {"metric": start.score.accuracy, "loss": start.score.loss, "metric_name": task.metric.name}
        write_json_atomic(scores, told)
        run.dense_checkpoint.unlink(missing_ok=True)
    return read_warm_start(run)


def or_again(train: Callable[[], _T], checkpoint: Path, note: Callable[[str], None]) -> _T:
    """A training that goes on from its checkpoint; where that is damaged, it is said and the training starts again."""
    try:
        return train()
    except CheckpointError as error:
        note(f"{error}; the training starts again")
        checkpoint.unlink(missing_ok=True)
        return train()


def read_warm_start(run: RunFolder) -> WarmStart:
    """The dense network as an earlier command left it; RunError where it cannot be read."""
    try:
        known = json.loads(run.dense_scores_file.read_text(encoding="utf-8"))
        state = load_file(run.dense_file)
        answers = state.pop(TEACHER_LOGITS)
        return WarmStart(state, Score(float(known["metric"]), float(known["loss"])), answers)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError, RecursionError, OverflowError) as error:
        raise RunError(f"{run.dense_file}: the dense network cannot be read: {error}") from error


def take_prior(run: RunFolder, spec: StudySpec, task: Task) -> None:
    """Copies the prior that a study is to start from into its run folder; raises where it is not of this network."""
    if spec.search.prior is not None and not run.given_prior_file.exists():
        given = read_prior(spec.search.prior, spec.search.form, task.layer_shapes)
        write_prior(run.given_prior_file, spec.search.form, task.layer_shapes, given)


def given_prior(run: RunFolder, spec: StudySpec, task: Task) -> tuple[Observation, ...]:
    """What the prior that a study started from tells."""
    if not run.given_prior_file.exists():
        return ()
    return tuple(read_prior(run.given_prior_file, spec.search.form, task.layer_shapes))


def layer_costs(
    run: RunFolder, spec: StudySpec, task: Task, start: WarmStart, told: Told = _to_nobody
) -> list[LayerCost]:
    """The layers' sensitivity: measured once a run, read back ever after."""
    if not run.sensitivity_file.exists():
        epochs = spec.search.trials * (spec.train.epochs + spec.train.frozen_epochs)
        # A step back takes about twice as long as one ahead.
        passes = 3 * epochs * len(task.data.train)
        costs = measure_sensitivity(task, start, _SENSITIVITY_SHARE * passes, told)
        write_json_atomic(run.sensitivity_file, [dataclasses.asdict(cost) for cost in costs])
    return read_costs(run.sensitivity_file)


def read_costs(path: Path) -> list[LayerCost]:
    """The layers' sensitivity as an earlier command left it."""
    try:
        costs = _COSTS.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # pydantic's are ValueErrors
        first = str(error).splitlines()[0]
        raise RunError(f"{path}: the layers' sensitivity cannot be read: {first}") from error
    if not all(0.0 <= cost.sparsity <= 1.0 and math.isfinite(cost.loss + cost.accuracy) for cost in costs):
        raise RunError(f"{path}: a layer's sensitivity must be a finite loss at a sparsity from 0 to 1")
    return costs


def needs_costs(spec: StudySpec, task: Task) -> bool:
    """Whether the split of the zeros is searched, which the layers' sensitivity guides."""
    is_searched = spec.recipe is None and spec.search.method == SCA
    return is_searched and bool(spec.search.space.split) and len(task.layer_shapes) > 1


def make_space(run: RunFolder, spec: StudySpec, task: Task, start: WarmStart, told: Told = _to_nobody) -> Space:
    """What the study searches; the layers' sensitivity is only asked where it matters."""
    costs = layer_costs(run, spec, task, start, told) if needs_costs(spec, task) else []
    return Space(spec, task.layer_shapes, tuple(costs), run_budgets(run, spec, task))


@dataclasses.dataclass(frozen=True)
class Prepared:
    """What a study with budgets needs before it begins, and which of them hold with no zeros at all."""

    calibration: Calibration | None = None
    met_without_zeros: tuple[str, ...] = ()


def prepare_budgets(spec: StudySpec, task: Task, known: Path | None, say: Say) -> Prepared:
    """Calibrates where the goal is in milliseconds, unless it is known, and refuses what cannot be met."""
    if not columns_of(spec.goal):
        return Prepared()
    graph, calibration = calibration_graph(task), None
    if needs_calibration(spec.goal):
        table = known if known and known.exists() else spec.search.latency_table
        calibration = read_calibration(table, graph) if table else calibration_of(graph, say)
    budgets = budgets_of(task, graph, latency_model(calibration) if calibration else None)
    budgets.refuse_impossible(spec.goal)
    return Prepared(calibration, tuple(budgets.met_without_zeros(spec.goal)))


def run_budgets(run: RunFolder, spec: StudySpec, task: Task) -> Budgets | None:
    """What is foretold of splits, where the goal limits it."""
    if not columns_of(spec.goal):
        return None
    graph = calibration_graph(task)
    return budgets_of(task, graph, read_latency_table(run.latency_file, graph) if run.latency_file.exists() else None)


def build_cost_meter(run: RunFolder, spec: StudySpec, task: Task) -> CostMeter | None:
    """What measures the study's networks, where the goal limits something; another device has no clock here."""
    if not columns_of(spec.goal):
        return None
    if not needs_calibration(spec.goal):
        return CostMeter()
    latency = read_latency_table(run.latency_file, calibration_graph(task))
    return CostMeter(latency, is_timed=spec.search.latency_table is None)


def write_closed_form(run: RunFolder, spec: StudySpec, task: Task, start: WarmStart) -> None:
    """The prior's α a layer on the warm start, for the spread that the study tries first: written once a run."""
    if run.closed_form_file.exists() or spec.search.method != SCA:
        return
    model = task.model_with(start.state)
    spread = Space(spec).first_guess()["spread"]
    ternarize(model, task.spreads(spread))
    alphas = {
        name: [alpha_for_sparsity(latent, sparsity) for sparsity in _SPARSITIES]
        for name, latent in latents(model).items()
    }
    write_json_atomic(run.closed_form_file, {"spread": spread, "sparsity": _SPARSITIES, "alpha": alphas})


def starting_alphas(task: Task, spec: StudySpec) -> dict[str, float]:
    """The prior's α a layer on the network as it is initialised, for the target; a recipe has its own, and other
    methods have none."""
    if spec.search.method != SCA:
        return {}
    if spec.recipe is not None:
        return dict.fromkeys(task.ternary_layers, spec.recipe.alpha)
    torch.manual_seed(spec.seed)
    model = task.make_model()
    spread = Space(spec).first_guess()["spread"]
    ternarize(model, task.spreads(spread))
    return {name: alpha_for_sparsity(latent, typical_sparsity(spec.goal)) for name, latent in latents(model).items()}
