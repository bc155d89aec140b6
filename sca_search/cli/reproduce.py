"""`reproduce`: trains the networks of a table of the paper and prints the results next to the paper's."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sca_search.cli.completion import complete_from
from sca_search.cli.options import check_seeds, option, study_options
from sca_search.config.references import expand_home
from sca_search.errors import DataError, SpecError
from sca_search.paper.cells import (
    QUICK,
    Cell,
    TrainingExtent,
    cells_of,
    full_epochs,
    require_one_network,
    select_networks,
)
from sca_search.paper.figures import GRIDS, TITLES, figures_of
from sca_search.system.console import errors, info, print_json, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.paper.comparison import RankCorrelation, Row
    from sca_search.paper.reproduce import Plan
    from sca_search.paper.result import CellResult

_OUT = Path("runs") / "paper"


@study_options("data_dir", "weights", "skip_unreadable")
def reproduce_command(
    flags: dict[str, Any],
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="Number of the table in the paper, 1 to 7.", autocompletion=complete_from(TITLES)
        ),
    ],
    network: Annotated[list[str] | None, option("Only the cells of this network. Can be repeated.")] = None,
    quick: Annotated[bool, option("Few epochs on a part of the data, in minutes.", "--quick")] = False,
    hours: Annotated[float | None, option("As many epochs as fit into this many hours, for the cells to run.")] = None,
    epochs: Annotated[int | None, option("Epochs per cell. Default: as in the paper.")] = None,
    seeds: Annotated[int, typer.Option(callback=check_seeds, help="Number of trainings per cell.")] = 1,
    out: Annotated[Path, option(f"Folder in which the table's folder is created. Default: {_OUT}.")] = _OUT,
) -> None:
    """Train the networks of a table of the paper, and print our results next to the paper's.

    SCA and the dense networks are trained; the results of other methods are the paper's. Each cell is a study. The same
    command continues with the cells that are not finished.

    **Example**

    `sca-search reproduce 6 --quick --data-dir ~/data`
    """
    figures = figures_of(table)
    data_dir, weights = flags["data_dir"], flags["weights"]
    _check_options(quick, hours, epochs, data_dir)
    extent = QUICK[table] if quick else TrainingExtent(epochs=epochs)
    cells = select_networks(cells_of(figures), network or ())
    if weights is not None:
        require_one_network(cells, weights)
    info().print(f"Table {table}: {TITLES[table]}", style="bold")
    if shortened := extent.describe(full_epochs(cell) for cell in cells):
        info().print(f"shortened: {shortened}", soft_wrap=True)
    folder = out / f"table-{table}{'-quick' if quick else ''}"
    say("loading torch")
    from sca_search.paper.reproduce import Plan

    skips = bool(flags["skip_unreadable"])
    _run(table, Plan(cells, expand_home(folder), extent, seeds, data_dir, hours, tuple(sys.argv[1:]), skips, weights))


def _check_options(quick: bool, hours: float | None, epochs: int | None, data_dir: Path | None) -> None:
    lengths = {"--quick": quick or None, "--hours": hours, "--epochs": epochs}
    used = [flag for flag, value in lengths.items() if value is not None]
    if len(used) > 1:
        raise SpecError(f"{' and '.join(used)} cannot be given together: each sets the number of epochs")
    if hours is not None and not 0 < hours < float("inf"):
        raise SpecError(f"--hours must be above 0, got {hours}")
    if epochs is not None and epochs < 1:
        raise SpecError(f"--epochs must be at least 1, got {epochs}")
    if data_dir is not None and not expand_home(data_dir).is_dir():
        raise SpecError(f"--data-dir must be a folder that exists, got {str(data_dir)!r}")


def _run(table: str, plan: "Plan") -> None:
    from sca_search.dashboard import PageWriter
    from sca_search.paper.reproduce import ReproductionResult, finished_results, reproduce
    from sca_search.study.progress import StudyDisplay
    from sca_search.training.fit import StopRequestedError

    with stop_on_interrupt() as stop, StudyDisplay(info()) as display:
        try:
            done = reproduce(plan, say, [PageWriter(), display], stop)
        except StopRequestedError:
            done = ReproductionResult(finished_results(plan), stopped=True)
        except DataError:  # of a later cell: print the results of earlier ones
            if finished := finished_results(plan):
                _print(table, plan, finished)
            raise
    rows, ranks = _print(table, plan, done.results)
    print_json(
        {
            "table": table,
            "folder": plan.out,
            "cells": len(plan.cells),
            "finished": len(done.results),
            "stopped": done.stopped,
            "rows": [row.as_json() for row in rows],
            "rank_correlations": [vars(rank) for rank in ranks],
        }
    )
    if done.stopped:
        errors().print("Interrupted. The same command continues.")
        raise typer.Exit(stop.exit_code)


def _print(table: str, plan: "Plan", finished: "dict[Cell, CellResult]") -> "tuple[list[Row], list[RankCorrelation]]":
    from sca_search.paper.comparison import rank_correlations, rows_of

    rows = rows_of(figures_of(table), finished)
    ranks = rank_correlations(rows)
    results().print(_grid(rows) if table in GRIDS else _list(rows))
    for rank in ranks:
        ours = "not enough cells" if rank.ours is None else f"{rank.ours:.3f} in {rank.cells} cells"
        paper = "none" if rank.paper is None else f"{rank.paper:.3f}"
        line = f"λ {rank.strength_lambda:g}: Spearman of sparsity and α: paper {paper}, ours {ours}"
        results().print(line)
    results().print(f"{len(finished)} of {len(plan.cells)} cells finished, in {plan.out}")
    return rows, ranks


def _list(rows: "list[Row]") -> Table:
    """Tables of methods: one row per result of the paper."""
    names = ("data", "network", "method", "weights", "metric", "paper, %", "ours, %", "sparsity, %", "epochs", "seeds")
    table = Table(*names)
    for row in rows:
        figure = row.figure
        what = (figure.dataset, figure.network, figure.method, figure.weights, figure.metric)
        table.add_row(*what, _number(figure.value, figure.sd), _ours(row), _number(row.sparsity), *_amount(row))
    return table


def _grid(rows: "list[Row]") -> Table:
    """Tables over α and λ: one row per cell, with its sparsity and accuracy."""
    names = ("λ", "α", "sparsity, %: paper", "ours", "accuracy, %: paper", "ours", "epochs", "seeds")
    table = Table(*names)
    sparsities = [row for row in rows if row.figure.metric == "sparsity"]
    accuracies = [row for row in rows if row.figure.metric == "top1"]
    for zeros, correct in zip(sparsities, accuracies, strict=True):
        point = (f"{zeros.figure.strength_lambda:g}", f"{zeros.figure.alpha:g}")
        values = (text for row in (zeros, correct) for text in (_number(row.figure.value), _ours(row)))
        table.add_row(*point, *values, *_amount(zeros))
    return table


def _ours(row: "Row") -> str:
    failed = f"{row.failed} diverged" if row.failed else ""
    return ", ".join(part for part in (_number(row.ours, row.ours_sd), failed) if part)


def _amount(row: "Row") -> tuple[str, str]:
    return ("" if row.epochs is None else str(row.epochs), "" if row.seeds is None else str(row.seeds))


def _number(value: float | None, sd: float | None = None) -> str:
    return "" if value is None else f"{value:.2f}" + ("" if sd is None else f" ± {sd:.2f}")
