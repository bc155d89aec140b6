"""The contenders of `search.py`: ways to spend a number of epochs on networks of many sparsities.

All train from the same warm start with the same trainer, learning rates, teacher, frozen phase and re-estimated
BatchNorm statistics, so that only the method and the search of its parameters differ. Each returns when its epochs are
used up.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from sca_search.config.candidate import Candidate, Constant, FromPrior, Ramp, Tracked
from sca_search.config.study import StudySpec
from sca_search.export.state_dict import load_plain
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import GRID
from sca_search.study.objective import Objective, work
from sca_search.study.queue import fill_queue, open_study, rows
from sca_search.study.sampler import derived_seed
from sca_search.study.setup import StudyContext, layer_sensitivity
from sca_search.study.space import Space
from sca_search.training.evaluate import EVALUATION_BATCH, score
from sca_search.training.task import Task, TrainedCandidate, WarmStart
from sca_search.training.train import train_candidate


@dataclass(frozen=True)
class Point:
    """One network trained by a contender."""

    epochs: int  # spent so far, including this network
    planned: float | None
    sparsity: float
    accuracy: float  # on the validation split, the only one a contender uses
    loss: float
    test_accuracy: float
    before: float  # the sparsity after rounding, before the exact step
    moved: float


class SpentError(Exception):
    """The epochs are used up."""


@dataclass
class Bench:
    """The task, budget and results of one contender."""

    spec: StudySpec
    task: Task
    start: WarmStart
    budget: int
    folder: Path
    points: list[Point] = field(default_factory=list)
    spent: int = 0

    def candidate(self, sparsity: float, **changed: Any) -> Candidate:
        """The default first guess at a sparsity, with a new seed each time."""
        seed = derived_seed(self.spec.seed, len(self.points))
        space = Space(self.spec, self.task.layer_shapes)  # without layer sensitivity: uniform allocation
        base = space.candidate(space.first_guess(), sparsity, seed)
        return Candidate.model_validate(base.model_dump() | changed)

    def train(self, candidate: Candidate) -> TrainedCandidate:
        """Trains it and counts its epochs; a training that the budget does not cover is not started."""
        self.spend(candidate.epochs + candidate.frozen_epochs)
        trained = train_candidate(candidate, self.task, self.start)
        zeros = sum(count.zeros for count in trained.counts.values())
        weights = sum(count.weights for count in trained.counts.values())
        self.points.append(
            Point(
                epochs=self.spent,
                planned=candidate.sparsity if candidate.exact else None,
                sparsity=zeros / weights,
                accuracy=trained.score.accuracy,
                loss=trained.score.loss,
                test_accuracy=self.test(trained.model),
                before=trained.sparsity_before,
                moved=trained.adjusted_fraction,
            )
        )
        return trained

    def spend(self, epochs: int) -> None:
        if self.spent + epochs > self.budget:
            raise SpentError
        self.spent += epochs

    def test(self, model: Any) -> float:
        return score(model, self.task.data.read_test().batches(EVALUATION_BATCH)).accuracy


Contender = Callable[[Bench], None]


def _sparsities(bench: Bench) -> Iterator[float]:
    """The target repeatedly, or the grid of a study of the whole front."""
    target = bench.spec.goal.target_sparsity
    return itertools.cycle(GRID if target is None else (target,))


def threshold(bench: Bench) -> None:
    """Trits by the quantile of the dense weights, then all epochs of a trial as frozen phase."""
    epochs = bench.spec.train.epochs + bench.spec.train.frozen_epochs
    for sparsity in _sparsities(bench):
        bench.train(bench.candidate(sparsity, epochs=0, frozen_epochs=epochs, strength=Constant(value=0.0)))


def straight_through(bench: Bench) -> None:
    """The straight-through estimator at the quantile threshold, with a uniform allocation."""
    for sparsity in _sparsities(bench):
        bench.train(_straight_through(bench, sparsity))


def straight_through_labels(bench: Bench) -> None:
    """The same without distillation, as it is mostly used."""
    for sparsity in _sparsities(bench):
        bench.train(_straight_through(bench, sparsity, distillation=0.0))


def _straight_through(bench: Bench, sparsity: float, **changed: Any) -> Candidate:
    fixed: dict[str, Any] = {
        "form": "straight-through",
        "alpha": Tracked(),
        "strength": Constant(value=0.0),
        "allocation": {},
    }
    return bench.candidate(sparsity, **(fixed | changed))


def bisection(bench: Bench) -> None:
    """One α for all layers, bisected for each sparsity until rounding gives it within half a point."""
    seen: list[tuple[float, float]] = [(0.0, 0.0), (2.0, 1.0)]
    target = bench.spec.goal.target_sparsity
    for sparsity in GRID if target is None else (target,):
        while min(abs(sparsity - reached) for _, reached in seen) > 0.005:
            low = max(alpha for alpha, reached in seen if reached <= sparsity)
            high = min(alpha for alpha, reached in seen if reached > sparsity)
            if high <= low:  # not monotone because of noise
                break
            alpha = (low + high) / 2
            trained = bench.train(_paper(bench, alpha=Constant(value=alpha), strength=Ramp(first=0.0, last=10.0)))
            seen.append((alpha, trained.sparsity_before))


def _paper(bench: Bench, **changed: Any) -> Candidate:
    """The paper's form unchanged: α is fixed, and rounding determines the sparsity."""
    fixed: dict[str, Any] = {"form": "paper", "exact": False, "allocation": {}, "gradient_sharpness": None}
    return bench.candidate(0.0, **fixed, sharpness=Constant(value=1.0), **changed)


def stock(make: Callable[[int], optuna.samplers.BaseSampler]) -> Contender:
    """Stock Optuna: a sampler on α and λ of each layer, with two objectives."""

    def contend(bench: Bench) -> None:
        study = optuna.create_study(directions=["maximize", "maximize"], sampler=make(bench.spec.seed))
        while True:
            trial = study.ask()
            trained = bench.train(_raw(bench, trial))
            study.tell(trial, (trained.score.accuracy, bench.points[-1].sparsity))

    return contend


def _raw(bench: Bench, trial: optuna.Trial) -> Candidate:
    layers = bench.task.ternary_layers
    alphas = {layer: Constant(value=trial.suggest_float(f"alpha.{layer}", 0.0, 2.0)) for layer in layers}
    # The paper's λ is between 1e-9 and 1e-4 for networks of up to eleven million weights; small networks need more.
    strengths = {
        layer: Ramp(first=0.0, last=trial.suggest_float(f"lambda.{layer}", 1e-7, 1.0, log=True)) for layer in layers
    }
    return _paper(
        bench,
        alpha=FromPrior(),
        layer_alpha=alphas,
        strength=Constant(value=0.0),
        layer_strength=strengths,
        strength_is_lambda=True,
    )


def no_prior(bench: Bench) -> None:
    """The first guess with random α per layer; only the exact step gives it its sparsity."""
    random = np.random.default_rng(bench.spec.seed)
    for sparsity in _sparsities(bench):
        alphas = {layer: Constant(value=float(random.uniform(0.0, 2.0))) for layer in bench.task.ternary_layers}
        bench.train(bench.candidate(sparsity, layer_alpha=alphas))


def ours(changed: Mapping[str, Any] | None = None, moved_to_training: bool = False) -> Contender:
    """A study of this package, with `changed` spec keys (dotted), or with its frozen epochs moved to training."""

    def contend(bench: Bench) -> None:
        epochs = bench.spec.train.epochs + bench.spec.train.frozen_epochs
        unfrozen = {"train.epochs": epochs, "train.frozen_epochs": 0} if moved_to_training else {}
        spec = _changed(bench.spec, {**(changed or {}), **unfrozen})
        run = RunFolder(bench.folder)
        run.path.mkdir(parents=True, exist_ok=True)
        sensitivity = layer_sensitivity(run, spec, bench.task, bench.start)
        space = Space(spec, bench.task.layer_shapes, tuple(sensitivity))
        study = open_study(run, space)
        fill_queue(study, space)
        objective = Objective(StudyContext(run, bench.task, bench.start, space))
        most = spec.train.epochs + spec.train.frozen_epochs

        def fits() -> bool:
            return (
                sum(int(trial.user_attrs.get("epochs", 0)) for trial in study.get_trials(deepcopy=False)) + most
                <= bench.budget
            )

        work(study, objective, fits)
        finished = {row["trial"]: row for row in rows(study) if row["state"] == "complete"}
        for trial in study.get_trials(deepcopy=False):
            bench.spent += int(trial.user_attrs.get("epochs", 0))
            if trial.number in finished:
                bench.points.append(_point(bench, run, finished[trial.number]))

    return contend


def _point(bench: Bench, run: RunFolder, row: dict[str, Any]) -> Point:
    state = load_plain(run.candidate(int(row["candidate"])) / "model.safetensors")[0]
    return Point(
        epochs=bench.spent,
        planned=row["planned_sparsity"],
        sparsity=row["sparsity"],
        accuracy=row["metric"],
        loss=row["loss"],
        test_accuracy=bench.test(bench.task.model_with(state)),
        before=row["sparsity_before"],
        moved=row["adjusted_fraction"],
    )


def _changed(spec: StudySpec, changed: dict[str, Any]) -> StudySpec:
    values = spec.model_dump()
    for key, value in changed.items():
        *tables, name = key.split(".")
        table = values
        for each in tables:
            table = table[each]
        table[name] = value
    return StudySpec.model_validate(values)


def rows_of(points: list[Point]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(point) for point in points]
