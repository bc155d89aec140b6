"""Train the cells of a table one after the other. Finished cells are files; interrupted ones continue."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sca_search.config.load import differences, resolve
from sca_search.config.study import StudySpec
from sca_search.data import IMAGE_FILES
from sca_search.errors import RunError, SpecError
from sca_search.paper.cells import FULL, Cell, TrainingExtent, full_epochs, recipe_file
from sca_search.paper.result import CellResult, measure_cell, read_result
from sca_search.runs.folder import RunFolder, new_run
from sca_search.runs.log import note_command
from sca_search.study.events import StudyListener
from sca_search.study.pace import RESERVE, Pace, Say, StudySize, measure_pace
from sca_search.study.session import run_study
from sca_search.study.setup import inputs_of, make_task, threads_of
from sca_search.system.signals import NEVER, StopToken
from sca_search.training.task import CachedSource

Measure = Callable[[StudySpec, Say, StopToken], Pace]
_Timed = Callable[[StudySpec], Pace]


@dataclass(frozen=True)
class Plan:
    """The cells to train, the extent of their training, and the output folder."""

    cells: tuple[Cell, ...]
    out: Path
    extent: TrainingExtent = FULL
    seeds: int = 1
    data_dir: Path | None = None
    hours: float | None = None  # as many epochs as fit, instead of those of `extent`
    command: tuple[str, ...] = ()  # recorded in the run folder of each cell
    skip_unreadable: bool = False
    weights: Path | None = None  # of the dense network, instead of training it

    def run_of(self, cell: Cell) -> RunFolder:
        return RunFolder(self.out / cell.name)

    def result_file(self, cell: Cell) -> Path:
        return self.out / f"{cell.name}.json"


@dataclass(frozen=True)
class ReproductionResult:
    """The finished cells of a table."""

    results: dict[Cell, CellResult]
    stopped: bool = False


def finished_results(plan: Plan) -> dict[Cell, CellResult]:
    """The cells that have all requested seeds."""
    found = {cell: read_result(plan.result_file(cell)) for cell in plan.cells}
    return {cell: result for cell, result in found.items() if result is not None and result.seeds >= plan.seeds}


def reproduce(
    plan: Plan,
    say: Say = lambda _line: None,
    listeners: Sequence[StudyListener] = (),
    stop: StopToken = NEVER,
    measure: Measure = measure_pace,
) -> ReproductionResult:
    """Train the missing cells of a table; StopRequestedError only while epochs are timed."""
    results = finished_results(plan)
    _check_finished(plan, results)
    missing = [cell for cell in plan.cells if cell not in results]
    specs = _specs(plan, missing, lambda spec: measure(spec, say, stop), say)
    source = CachedSource()
    for number, cell in enumerate(missing, start=len(results) + 1):
        spec = specs[cell]
        say(f"cell {number} of {len(plan.cells)}: {cell}, {spec.train.epochs} epochs")
        task = make_task(spec, source)
        inputs = inputs_of(spec, task)  # rejects weights that do not fit before anything is written
        run = plan.run_of(cell)
        if not run.spec_file.is_file():
            run = new_run(spec)
        if plan.command:
            note_command(run, plan.command, threads_of(spec, task), inputs)
        finished = run_study(run, spec, task, listeners, stop)
        if finished.stopped or stop.is_set():  # a stop between two seeds does not raise
            return ReproductionResult(results, stopped=True)
        results[cell] = measure_cell(run, spec, task, plan.result_file(cell), stop)
    return ReproductionResult({cell: results[cell] for cell in plan.cells if cell in results})


def _check_finished(plan: Plan, results: dict[Cell, CellResult]) -> None:
    """RunError if a finished cell has another number of epochs than planned, or another kind of start."""
    kinds = {True: "weights from a file", False: "weights that were trained here"}
    start = kinds[plan.weights is not None]
    for cell, result in results.items():
        epochs = result.epochs if plan.hours else spec_of(plan, cell).train.epochs
        rules = {
            f"have been trained for {epochs} epochs to continue": (result.epochs, epochs),
            f"have started from {start}": (kinds[result.dense_is_given], start),
        }
        for rule, (actual, planned) in rules.items():
            if actual != planned:
                raise RunError(f"{plan.result_file(cell)}: must {rule}, got {actual}; choose another --out")


def _specs(plan: Plan, cells: list[Cell], measure: _Timed, say: Say) -> dict[Cell, StudySpec]:
    """The studies of the cells to train; if hours set the epochs, a cell that was started keeps its number."""
    specs = {cell: spec_of(plan, cell) for cell in cells}
    started = {cell: run.spec() for cell in cells if (run := plan.run_of(cell)).spec_file.is_file()}
    epochs = {cell: spec.train.epochs for cell, spec in started.items()}
    for cell, spec in started.items():
        same_length = specs[cell] if plan.hours is None else spec_of(plan, cell, epochs[cell])
        if changed := differences(same_length, spec):
            where = plan.run_of(cell).path
            raise RunError(f"{where}: holds another study, it differs in {', '.join(changed)}; choose another --out")
    if plan.hours is None:
        return specs
    if len(epochs) < len(cells):
        epochs = _epochs_for_hours(plan, plan.hours, specs, epochs, measure, say)
    return {cell: spec_of(plan, cell, epochs[cell]) for cell in cells}


def spec_of(plan: Plan, cell: Cell, epochs: int | None = None) -> StudySpec:
    """The study of a cell: the study file of the recipe with the α and λ of the cell, and the epochs of the plan."""
    epochs = epochs or plan.extent.epochs or full_epochs(cell)
    flags: dict[str, object] = {
        "name": cell.name,
        "out": plan.out,
        "data": plan.extent.data,
        "data_dir": plan.data_dir,
        "train_limit": plan.extent.train_limit,
        "skip_unreadable": plan.skip_unreadable and (plan.extent.data or cell.dataset) in IMAGE_FILES,
        "model": plan.extent.networks.get(cell.network),
        "weights": plan.weights,
        "epochs": epochs,
        "trials": plan.seeds,
    }
    if cell.has_dense and plan.weights is None:
        flags["dense_epochs"] = epochs  # the paper does not state how long it trained
    spec = resolve(recipe_file(cell.dataset, cell.network), flags)
    assert spec.recipe is not None
    point = {"alpha": cell.alpha, "strength_lambda": cell.strength_lambda, "tanh": cell.tanh}
    changes = {name: value for name, value in point.items() if value is not None}
    return spec.model_copy(update={"recipe": spec.recipe.model_copy(update=changes)})


@dataclass(frozen=True)
class CellTime:
    """How long a cell takes, by the fraction of the paper's epochs."""

    cell: Cell
    pace: Pace
    full_epochs: int
    seeds: int
    has_dense: bool
    started: int | None = None  # its number of epochs, if it was started before

    def epochs(self, fraction: float) -> int:
        return self.started or max(1, math.floor(fraction * self.full_epochs + 1e-9))

    def seconds(self, fraction: float) -> float:
        epochs = self.epochs(fraction)
        return self.pace.seconds(StudySize(epochs if self.has_dense else 0, epochs, 0, self.seeds, 0))


def _epochs_for_hours(
    plan: Plan, hours: float, specs: dict[Cell, StudySpec], started: dict[Cell, int], measure: _Timed, say: Say
) -> dict[Cell, int]:
    began = time.monotonic()
    paces: dict[tuple[str, str], Pace] = {}
    times = []
    for cell, spec in specs.items():
        if (network := (cell.dataset, cell.network)) not in paces:
            say(f"timing {cell.network} on {cell.dataset}")
            paces[network] = measure(spec)
        has_dense = spec.train.dense_epochs > 0
        times.append(CellTime(cell, paces[network], full_epochs(cell), plan.seeds, has_dense, started.get(cell)))
    return epochs_that_fit(hours, time.monotonic() - began, times)


def epochs_that_fit(hours: float, seconds_spent: float, cells: Iterable[CellTime]) -> dict[Cell, int]:
    """Epochs per cell: the largest fraction of the paper's epochs that fits, the same for all cells.

    A cell that was started continues in any case: the same command must not reject it because the machine is slower
    today.
    """
    times = list(cells)
    fresh = [each for each in times if not each.started]
    seconds = RESERVE * (3600 * hours - seconds_spent)
    longest = max((each.full_epochs for each in fresh), default=1)
    for epochs in range(longest, 0, -1):
        fraction = epochs / longest
        if not fresh or sum(each.seconds(fraction) for each in times) <= seconds:
            return {each.cell: each.epochs(fraction) for each in times}
    least = (sum(each.seconds(0.0) for each in times) / RESERVE + seconds_spent) / 3600
    raise SpecError(
        f"--hours must be at least {math.ceil(100 * least) / 100:g} for one epoch of each of {len(fresh)} cells on "
        f"this machine, got {hours:g}"
    )
