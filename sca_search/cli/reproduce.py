"""`reproduce`: a table of the paper's, trained here, with the paper's figures beside ours."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from sca_search.cli.completion import table_names
from sca_search.cli.options import check_seeds
from sca_search.errors import DataError, SpecError
from sca_search.paper.cells import QUICK, Extent, cells_of, full_epochs, of_networks, require_one_network
from sca_search.paper.figures import GRIDS, TITLES, figures_of
from sca_search.system.console import answer, errors, remarks, results, say
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.paper.comparison import RankCorrelation, Row
    from sca_search.paper.reproduce import Plan

_USUAL_OUT = Path("runs") / "paper"


def reproduce_command(
    table: Annotated[
        str, typer.Argument(metavar="TABLE", help="1 to 7, as the paper numbers them.", autocompletion=table_names)
    ],
    network: Annotated[
        list[str] | None,
        typer.Option(help="Only the cells of this network; may be given several times.", show_default=False),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few epochs on a part of the data, in minutes.", show_default=False)
    ] = False,
    hours: Annotated[
        float | None,
        typer.Option(help="As many epochs as fit into so many hours, for what is left to run.", show_default=False),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(help="Epochs of each cell. Default: the paper's.", show_default=False)
    ] = None,
    seeds: Annotated[int, typer.Option(callback=check_seeds, help="Trainings per cell.")] = 1,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder with local copies of the data sets.", show_default=False)
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Trained weights of the dense network, instead of training it: safetensors or a state dict.",
            show_default=False,
        ),
    ] = None,
    skip_unreadable: Annotated[
        bool,
        typer.Option(
            "--skip-unreadable",
            help="Leave out image files that cannot be read (Tiny ImageNet, ImageNet), and say how many.",
            show_default=False,
        ),
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Where the table's folder lies. Default runs/paper.", show_default=False)
    ] = None,
) -> None:
    """Trains a table of the paper's and prints ours beside the paper's.

    SCA and the dense networks are trained; the other methods' figures are the paper's. Each cell is a study of its own.
    Finished cells are kept: the same command goes on with the others.

    **Example**

    `sca-search reproduce 6 --quick --data-dir ~/data`
    """
    figures = figures_of(table)
    _refuse_unusable(quick, hours, epochs, data_dir)
    extent = QUICK[table] if quick else Extent(epochs=epochs)
    cells = of_networks(cells_of(figures), network or ())
    if weights is not None:
        require_one_network(cells, weights)
    remarks().print(f"Table {table}: {TITLES[table]}", style="bold", highlight=False)
    if told := extent.told(full_epochs(cell) for cell in cells):
        remarks().print(f"shortened: {told}", highlight=False, soft_wrap=True)
    folder = (out or _USUAL_OUT) / f"table-{table}{'-quick' if quick else ''}"
    say("loading torch")
    from sca_search.paper.reproduce import Plan

    command = tuple(sys.argv[1:])
    _run(table, Plan(cells, folder.expanduser(), extent, seeds, data_dir, hours, command, skip_unreadable, weights))


def _refuse_unusable(quick: bool, hours: float | None, epochs: int | None, data_dir: Path | None) -> None:
    given = {"--quick": quick, "--hours": hours is not None, "--epochs": epochs is not None}
    asked = [flag for flag, is_given in given.items() if is_given]
    if len(asked) > 1:
        raise SpecError(f"{' and '.join(asked)} cannot be given together: each decides the number of epochs")
    if hours is not None and not 0 < hours < float("inf"):
        raise SpecError(f"--hours must be above 0, got {hours}")
    if epochs is not None and epochs < 1:
        raise SpecError(f"--epochs must be at least 1, got {epochs}")
    if data_dir is not None and not data_dir.expanduser().is_dir():
        raise SpecError(f"--data-dir must be a folder that exists, got {str(data_dir)!r}")


def _run(table: str, plan: "Plan") -> None:
    from sca_search.dashboard import PageWriter
    from sca_search.paper.comparison import rows_of
    from sca_search.paper.reproduce import Reproduced, finished_results, reproduce
    from sca_search.study.progress import StudyDisplay
    from sca_search.training.fit import StopRequestedError

    with stop_on_interrupt() as stop, StudyDisplay(remarks()) as display:
        try:
            done = reproduce(plan, say, [PageWriter(), display], stop)
        except StopRequestedError:
            done = Reproduced(finished_results(plan), stopped=True)
        except DataError:  # of a later cell's data set: what the earlier ones gave is there
            if finished := finished_results(plan):
                _print(table, plan, rows_of(figures_of(table), finished), len(finished))
            raise
    rows = rows_of(figures_of(table), done.results)
    ranks = _print(table, plan, rows, len(done.results))
    answer(
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
        errors().print("Stopped as asked. The same command goes on.")
        raise typer.Exit(stop.exit_code)


def _print(table: str, plan: "Plan", rows: "list[Row]", finished: int) -> "list[RankCorrelation]":
    from sca_search.paper.comparison import rank_correlations

    ranks = rank_correlations(rows)
    results().print(_grid(rows) if table in GRIDS else _list(rows))
    for line in _rank_lines(ranks):
        results().print(line, highlight=False)
    results().print(f"{finished} of {len(plan.cells)} cells, kept in {plan.out}", highlight=False)
    return ranks


def _list(rows: "list[Row]") -> Table:
    """Tables of methods: a row a figure, the other methods' from the paper alone."""
    names = ("data", "network", "method", "weights", "metric", "paper, %", "ours, %", "zeros, %", "epochs", "seeds")
    table = Table(*names)
    for row in rows:
        figure = row.figure
        table.add_row(
            figure.dataset,
            figure.network,
            figure.method,
            figure.weights,
            figure.metric,
            _number(figure.value, figure.sd),
            _ours(row),
            _number(row.sparsity),
            *_amount(row),
        )
    return table


def _grid(rows: "list[Row]") -> Table:
    """Tables over α and λ: sparsity and accuracy of a cell side by side."""
    names = ("λ", "α", "zeros, %: paper", "ours", "accuracy, %: paper", "ours", "epochs", "seeds")
    table = Table(*names)
    sparsities = [row for row in rows if row.figure.metric == "sparsity"]
    accuracies = [row for row in rows if row.figure.metric == "top1"]
    for zeros, correct in zip(sparsities, accuracies, strict=True):
        figure = zeros.figure
        table.add_row(
            f"{figure.strength_lambda:g}",
            f"{figure.alpha:g}",
            _number(figure.value),
            _ours(zeros),
            _number(correct.figure.value),
            _ours(correct),
            *_amount(zeros),
        )
    return table


def _ours(row: "Row") -> str:
    if row.ours is None:
        return f"{row.failed} diverged" if row.failed else ""
    return _number(row.ours, row.ours_sd) + (f", {row.failed} diverged" if row.failed else "")


def _amount(row: "Row") -> tuple[str, str]:
    return ("" if row.epochs is None else str(row.epochs), "" if row.seeds is None else str(row.seeds))


def _number(value: float | None, sd: float | None = None) -> str:
    if value is None:
        return ""
    return f"{value:.2f}" + ("" if sd is None else f" ± {sd:.2f}")


def _rank_lines(ranks: "list[RankCorrelation]") -> list[str]:
    """How well sparsity follows α, a line a λ."""
    lines = []
    for rank in ranks:
        ours = "not enough cells" if rank.ours is None else f"{rank.ours:.3f} in {rank.cells} cells"
        paper = "none" if rank.paper is None else f"{rank.paper:.3f}"
        lines.append(f"λ {rank.strength_lambda:g}: Spearman of sparsity and α: paper {paper}, ours {ours}")
    return lines
