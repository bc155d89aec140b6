"""`compare`: SCA and competing methods under equal conditions, in one table and page."""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Column, Table

from sca_search.cli.completion import complete_from
from sca_search.cli.options import StudyFile, TrustOption, check_seeds, option, study_options
from sca_search.config.costs import KB
from sca_search.config.load import resolve
from sca_search.config.names import METHODS, SCA
from sca_search.config.references import expand_home
from sca_search.errors import SpecError
from sca_search.system.console import errors, info, print_json, results, say
from sca_search.system.files import write_json_atomic
from sca_search.system.signals import stop_on_interrupt

if TYPE_CHECKING:
    from sca_search.study.compare import Comparison, MethodResult

_TRIALS = 4
_SHARED = ("target_sparsity", "data", "data_dir", "train_limit", "model", "trials", "epochs", "dense_epochs", "batch")


@study_options(
    *_SHARED,
    "threads",
    "seed",
    target_sparsity="Target sparsity of the methods that can choose it. Default: 0.5.",
    trials=f"Number of trials per method and seed. Default: {_TRIALS}.",
    seed="The first seed. Default: 0.",
)
def compare_command(
    flags: dict[str, Any],
    study: StudyFile = None,
    methods: Annotated[
        str, typer.Option(help="all, or names separated by commas: sca,twn,ttq.", autocompletion=complete_from(METHODS))
    ] = "all",
    seeds: Annotated[
        int, typer.Option(callback=check_seeds, help="Number of warm starts and trainings per method.")
    ] = 1,
    out: Annotated[Path | None, option("Folder of the comparison. Default: runs/compare-….")] = None,
    timed: Annotated[
        bool, typer.Option("--time/--no-time", help="Compile and time the C code of every method.")
    ] = True,
    trust: TrustOption = False,
) -> None:
    """Train SCA and other methods from the same warm start with equal epochs, and compare them in one table and page.

    Methods that cannot choose their sparsity keep the one that training gives. The same command continues an
    interrupted comparison.

    **Example**

    `sca-search compare --methods sca,straight-through,twn --target-sparsity 0.9 --seeds 3`
    """
    if study is None and flags["trials"] is None:
        flags = flags | {"trials": _TRIALS}
    base = resolve(study, flags, trust=trust)
    if base.goal.target_sparsity is None or base.goal.budgets or base.recipe is not None:
        raise SpecError("compare needs a target sparsity as its only goal: set --target-sparsity")
    folder = expand_home(out or base.out / f"compare-{base.base_name}")
    say("loading torch")
    from sca_search.study.compare import Comparison, chosen_methods

    _run(Comparison(base, chosen_methods(methods), seeds, folder, tuple(sys.argv[1:])), timed)


def _run(comparison: "Comparison", timed: bool) -> None:
    from sca_search.dashboard import PageWriter, write_page
    from sca_search.study.compare import run_comparison, times_ms
    from sca_search.study.progress import StudyDisplay

    with stop_on_interrupt() as stop, StudyDisplay(info()) as display:
        entries, stopped = run_comparison(comparison, say, [PageWriter(), display], stop)
        times = times_ms(comparison, entries, say) if timed and not stopped else {}
    grouped = {name: [each for each in entries if each.method == name] for name in comparison.methods}
    rows = [_row(name, found, times.get(name)) for name, found in grouped.items() if found]
    results().print(_table(rows))
    page = comparison.folder / "comparison.html"
    document = {"target_sparsity": comparison.base.goal.target_sparsity, "stopped": stopped, "rows": rows}
    if rows:
        write_page(page, [comparison.folder / f"{row['method']}-0" for row in rows])
        write_json_atomic(comparison.folder / "compare.json", document)
        results().print(f"Dashboard: {page}", soft_wrap=True)
    print_json(document | {"folder": comparison.folder, "page": page if rows else None})
    if stopped:
        errors().print("Interrupted. The same command continues.")
        raise typer.Exit(stop.exit_code)


def _row(method: str, entries: "Sequence[MethodResult]", latency_ms: float | None) -> dict[str, Any]:
    """One method: means over its seeds, and sample standard deviations if there are two or more."""
    row: dict[str, Any] = {"method": method, "weights": METHODS[method].weights, "seeds": len(entries)}
    for name in ("metric", "test_metric", "sparsity", "ternary_bytes", "file_bytes"):
        values = [value for each in entries if (value := getattr(each, name)) is not None]
        row[name] = statistics.fmean(values) if values else None
        row[f"{name}_sd"] = statistics.stdev(values) if len(values) > 1 else None
    row["epochs"] = statistics.fmean(each.epochs for each in entries)
    row["failed"] = sum(each.failed for each in entries)
    row["latency_ms"] = latency_ms
    return row


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(Column("method", no_wrap=True), Column("weights", no_wrap=True))
    for heading in ("val, %", "test, %", "sparsity, %", "ternary, KB", "file, KB", "ms"):
        table.add_column(heading, justify="right")
    table.caption = "ternary: ternary or binary weights in the packed file; ms: exported C, one image, one thread"
    for row in rows:
        percents = [_percent(row[name], row[f"{name}_sd"]) for name in ("metric", "test_metric", "sparsity")]
        sizes = [_number(row["ternary_bytes"], 1 / KB, 2), _number(row["file_bytes"], 1 / KB, 1)]
        shown = [row["method"], row["weights"], *percents, *sizes, _number(row["latency_ms"], 1.0, 4)]
        table.add_row(*shown, style="bold" if row["method"] == SCA else None)
    return table


def _percent(value: float | None, spread: float | None) -> str:
    return _number(value, 100.0, 2) + (f" ± {100 * spread:.2f}" if spread else "")


def _number(value: float | None, factor: float, digits: int) -> str:
    return "" if value is None else f"{factor * value:.{digits}f}"
