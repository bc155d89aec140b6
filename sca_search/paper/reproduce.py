"""Runs a table's cells one after the other. A finished cell is a file and is not run again; one that was stopped goes
on where it was."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sca_search.config.load import differences
from sca_search.config.study import StudySpec
from sca_search.data import IMAGE_FILES
from sca_search.errors import RunError
from sca_search.paper.cells import WHOLE, Cell, Extent, full_epochs, spec_of
from sca_search.paper.hours import Waiting, epochs_that_fit
from sca_search.paper.result import CellResult, measure_cell, read_result
from sca_search.runs.folder import RunFolder, new_run
from sca_search.runs.provenance import note_command
from sca_search.study.events import StudyListener
from sca_search.study.pace import Say, measure_pace
from sca_search.study.run import run_study
from sca_search.study.setup import make_task
from sca_search.study.time_plan import Pace
from sca_search.study.workers import threads_of
from sca_search.system.signals import NEVER, StopToken
from sca_search.training.task import CachedSource

Measure = Callable[[StudySpec, Say, StopToken], Pace]


@dataclass(frozen=True)
class Plan:
    """What is run, how much of it, and where it is kept."""

    cells: tuple[Cell, ...]
    out: Path
    extent: Extent = WHOLE
    seeds: int = 1
    data_dir: Path | None = None
    hours: float | None = None  # epochs are what fits, instead of the extent's
    command: tuple[str, ...] = ()  # as it was given, to be noted in each cell's run folder
    skip_unreadable: bool = False
    weights: Path | None = None  # of the dense network, instead of its training


@dataclass(frozen=True)
class Reproduced:
    """What is there of a table, by cell."""

    results: dict[Cell, CellResult]
    stopped: bool = False


def result_file(plan: Plan, cell: Cell) -> Path:
    return plan.out / f"{cell.name}.json"


def finished_results(plan: Plan) -> dict[Cell, CellResult]:
    """The cells that have as many seeds as are asked for."""
    found = {cell: read_result(result_file(plan, cell)) for cell in plan.cells}
    return {cell: result for cell, result in found.items() if result is not None and result.seeds >= plan.seeds}


def reproduce(
    plan: Plan,
    say: Say = lambda _line: None,
    listeners: Sequence[StudyListener] = (),
    stop: StopToken = NEVER,
    measure: Measure = measure_pace,
) -> Reproduced:
    """Runs what is missing of a table; StopRequestedError only while a pace is measured."""
    results = finished_results(plan)
    if plan.hours is None:
        _refuse_other_lengths(plan, results)
    _refuse_other_starts(plan, results)
    waiting = [cell for cell in plan.cells if cell not in results]
    specs = _specs(plan, waiting, lambda spec: measure(spec, say, stop), say)
    source = CachedSource()
    for number, cell in enumerate(waiting, start=len(results) + 1):
        spec = specs[cell]
        say(f"cell {number} of {len(plan.cells)}: {cell.told}, {spec.train.epochs} epochs")
        task = make_task(spec, source)
        task.start_model()  # what does not fit is refused before anything is written
        run = _run_of(spec)
        if plan.command:
            note_command(run, plan.command, threads_of(spec, task))
        finished = run_study(run, spec, task, listeners, stop)
        if finished.stopped or stop.is_set():  # a stop between two seeds raises nothing
            return Reproduced(results, stopped=True)
        results[cell] = measure_cell(run, spec, task, result_file(plan, cell), stop)
    return Reproduced({cell: results[cell] for cell in plan.cells if cell in results})


def _refuse_other_lengths(plan: Plan, results: dict[Cell, CellResult]) -> None:
    for cell, result in results.items():
        wanted = _spec(plan, cell, plan.extent).train.epochs
        if result.epochs != wanted:
            raise RunError(
                f"{result_file(plan, cell)}: must have been trained for {wanted} epochs to go on with, got "
                f"{result.epochs}; choose another --out"
            )


def _refuse_other_starts(plan: Plan, results: dict[Cell, CellResult]) -> None:
    is_given = plan.weights is not None
    for cell, result in results.items():
        if result.dense_is_given != is_given:
            kinds = {True: "weights that were given", False: "weights that were trained here"}
            raise RunError(
                f"{result_file(plan, cell)}: must have started from {kinds[is_given]}, it has from "
                f"{kinds[not is_given]}; choose another --out"
            )


def _run_of(spec: StudySpec) -> RunFolder:
    run = RunFolder(spec.out / (spec.name or spec.base_name))
    return run if run.spec_file.is_file() else new_run(spec)


def _specs(plan: Plan, cells: list[Cell], measure: Callable[[StudySpec], Pace], say: Say) -> dict[Cell, StudySpec]:
    """The studies of the cells to run; one that was begun keeps its epochs where hours decide."""
    wanted = {cell: _spec(plan, cell, plan.extent) for cell in cells}
    begun = {cell: spec for cell in cells if (spec := _begun(wanted[cell])) is not None}
    known = {cell: spec.train.epochs for cell, spec in begun.items()}
    for cell, spec in begun.items():
        same_length = wanted[cell] if plan.hours is None else _of_length(plan, cell, known[cell])
        if changed := differences(same_length, spec):
            where = plan.out / cell.name
            raise RunError(f"{where}: holds another study, it differs in {', '.join(changed)}; choose another --out")
    if plan.hours is None:
        return wanted
    epochs = {cell.name: count for cell, count in known.items()}
    if len(known) < len(cells):
        epochs = _epochs_for_hours(plan, wanted, known, measure, say)
    return {cell: _of_length(plan, cell, epochs[cell.name]) for cell in cells}


def _spec(plan: Plan, cell: Cell, extent: Extent) -> StudySpec:
    spec = spec_of(cell, extent, seeds=plan.seeds, out=plan.out, data_dir=plan.data_dir, weights=plan.weights)
    skips = plan.skip_unreadable and spec.data.name in IMAGE_FILES
    return spec.model_copy(update={"data": spec.data.model_copy(update={"skip_unreadable": skips})})


def _of_length(plan: Plan, cell: Cell, epochs: int) -> StudySpec:
    return _spec(plan, cell, replace(plan.extent, epochs=epochs))


def _begun(spec: StudySpec) -> StudySpec | None:
    run = RunFolder(spec.out / (spec.name or spec.base_name))
    return run.spec() if run.spec_file.is_file() else None


def _epochs_for_hours(
    plan: Plan, wanted: dict[Cell, StudySpec], begun: dict[Cell, int], measure: Callable[[StudySpec], Pace], say: Say
) -> dict[str, int]:
    assert plan.hours is not None
    began = time.monotonic()
    paces: dict[tuple[str, str], Pace] = {}
    for cell, spec in wanted.items():
        if (cell.dataset, cell.network) not in paces:
            say(f"measuring the pace of {cell.network} on {cell.dataset}")
            paces[cell.dataset, cell.network] = measure(spec)
    waiting = [
        Waiting(
            cell.name,
            paces[cell.dataset, cell.network],
            full_epochs(cell),
            plan.seeds,
            spec.train.dense_epochs > 0,
            begun.get(cell),
        )
        for cell, spec in wanted.items()
    ]
    return epochs_that_fit(plan.hours, time.monotonic() - began, waiting)
