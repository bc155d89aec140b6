"""Train the cells of a table one after the other. Finished cells are files; interrupted ones continue."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sca_search.config.load import differences
from sca_search.config.study import StudySpec
from sca_search.data import IMAGE_FILES
from sca_search.errors import RunError, SpecError
from sca_search.paper.cells import FULL, Cell, Extent, full_epochs, spec_of
from sca_search.paper.result import CellResult, measure_cell, read_result
from sca_search.runs.folder import RunFolder, new_run
from sca_search.runs.provenance import note_command
from sca_search.study.events import StudyListener
from sca_search.study.pace import RESERVE, Pace, Say, StudySize, measure_pace
from sca_search.study.session import run_study
from sca_search.study.setup import make_task, threads_of
from sca_search.system.signals import NEVER, StopToken
from sca_search.training.task import CachedSource

Measure = Callable[[StudySpec, Say, StopToken], Pace]


@dataclass(frozen=True)
class Plan:
    """What to train, how much of it, and where."""

    cells: tuple[Cell, ...]
    out: Path
    extent: Extent = FULL
    seeds: int = 1
    data_dir: Path | None = None
    hours: float | None = None  # as many epochs as fit, instead of those of `extent`
    command: tuple[str, ...] = ()  # recorded in the run folder of each cell
    skip_unreadable: bool = False
    weights: Path | None = None  # of the dense network, instead of training it


@dataclass(frozen=True)
class Reproduced:
    """The finished cells of a table."""

    results: dict[Cell, CellResult]
    stopped: bool = False


def result_file(plan: Plan, cell: Cell) -> Path:
    return plan.out / f"{cell.name}.json"


def finished_results(plan: Plan) -> dict[Cell, CellResult]:
    """The cells that have all requested seeds."""
    found = {cell: read_result(result_file(plan, cell)) for cell in plan.cells}
    return {cell: result for cell, result in found.items() if result is not None and result.seeds >= plan.seeds}


def reproduce(
    plan: Plan,
    say: Say = lambda _line: None,
    listeners: Sequence[StudyListener] = (),
    stop: StopToken = NEVER,
    measure: Measure = measure_pace,
) -> Reproduced:
    """Train the missing cells of a table; StopRequestedError only while epochs are timed."""
    results = finished_results(plan)
    if plan.hours is None:
        _check_lengths(plan, results)
    _check_starts(plan, results)
    missing = [cell for cell in plan.cells if cell not in results]
    specs = _specs(plan, missing, lambda spec: measure(spec, say, stop), say)
    source = CachedSource()
    for number, cell in enumerate(missing, start=len(results) + 1):
        spec = specs[cell]
        say(f"cell {number} of {len(plan.cells)}: {cell}, {spec.train.epochs} epochs")
        task = make_task(spec, source)
        task.start_model()  # rejects weights that do not fit before anything is written
        run = _run_of(spec)
        if plan.command:
            note_command(run, plan.command, threads_of(spec, task))
        finished = run_study(run, spec, task, listeners, stop)
        if finished.stopped or stop.is_set():  # a stop between two seeds does not raise
            return Reproduced(results, stopped=True)
        results[cell] = measure_cell(run, spec, task, result_file(plan, cell), stop)
    return Reproduced({cell: results[cell] for cell in plan.cells if cell in results})


def _check_lengths(plan: Plan, results: dict[Cell, CellResult]) -> None:
    for cell, result in results.items():
        epochs = _spec(plan, cell, plan.extent).train.epochs
        if result.epochs != epochs:
            raise RunError(
                f"{result_file(plan, cell)}: must have been trained for {epochs} epochs to continue, got "
                f"{result.epochs}; choose another --out"
            )


def _check_starts(plan: Plan, results: dict[Cell, CellResult]) -> None:
    is_given = plan.weights is not None
    for cell, result in results.items():
        if result.dense_is_given != is_given:
            kinds = {True: "weights from a file", False: "weights that were trained here"}
            raise RunError(
                f"{result_file(plan, cell)}: must have started from {kinds[is_given]}, got {kinds[not is_given]}; "
                "choose another --out"
            )


def _run_of(spec: StudySpec) -> RunFolder:
    run = RunFolder(spec.out / (spec.name or spec.base_name))
    return run if run.spec_file.is_file() else new_run(spec)


def _specs(plan: Plan, cells: list[Cell], measure: Callable[[StudySpec], Pace], say: Say) -> dict[Cell, StudySpec]:
    """The studies of the cells to train; if hours set the epochs, a cell that was started keeps its number."""
    specs = {cell: _spec(plan, cell, plan.extent) for cell in cells}
    started = {cell: spec for cell in cells if (spec := _started(specs[cell])) is not None}
    epochs = {cell: spec.train.epochs for cell, spec in started.items()}
    for cell, spec in started.items():
        same_length = specs[cell] if plan.hours is None else _of_length(plan, cell, epochs[cell])
        if changed := differences(same_length, spec):
            where = plan.out / cell.name
            raise RunError(f"{where}: holds another study, it differs in {', '.join(changed)}; choose another --out")
    if plan.hours is None:
        return specs
    if len(epochs) < len(cells):
        epochs = _epochs_for_hours(plan, plan.hours, specs, epochs, measure, say)
    return {cell: _of_length(plan, cell, epochs[cell]) for cell in cells}


def _spec(plan: Plan, cell: Cell, extent: Extent) -> StudySpec:
    spec = spec_of(cell, extent, seeds=plan.seeds, out=plan.out, data_dir=plan.data_dir, weights=plan.weights)
    skips = plan.skip_unreadable and spec.data.name in IMAGE_FILES
    return spec.model_copy(update={"data": spec.data.model_copy(update={"skip_unreadable": skips})})


def _of_length(plan: Plan, cell: Cell, epochs: int) -> StudySpec:
    return _spec(plan, cell, replace(plan.extent, epochs=epochs))


def _started(spec: StudySpec) -> StudySpec | None:
    run = RunFolder(spec.out / (spec.name or spec.base_name))
    return run.spec() if run.spec_file.is_file() else None


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
    plan: Plan,
    hours: float,
    specs: dict[Cell, StudySpec],
    started: dict[Cell, int],
    measure: Callable[[StudySpec], Pace],
    say: Say,
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
