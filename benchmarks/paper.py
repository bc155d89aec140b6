"""The paper's tables next to ours, and which of its claims held, from folders of `sca-search reproduce`.

    python -m benchmarks.paper --table 6 --folder runs/paper/table-6
    python -m benchmarks.paper --table 1 --folder A --table 5 --folder B --table 6 --folder C --readme

It only reads results: an unfinished table is written with the finished cells and can be written again later. Table 5 is
compared with table 2 if both are given. --readme writes the claims to the README and leaves those whose tables are not
given. --spread writes tables of shorter trainings with several seeds to separate sections.
"""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.claims import (
    HELD,
    MEASURES,
    NOT_HELD,
    NOT_RUN,
    RULES,
    UNDECIDED,
    Claim,
    above_others,
    collapse_text,
    covers_range,
    full_epochs_of,
    has_collapsed,
    increases,
    matches,
    matches_dense,
    needs_tanh,
    spread_of,
    verdict,
)
from benchmarks.report import README, RESULTS, provenance, read_table, table, write_section
from sca_search.paper.cells import Cell, cells_of, full_epochs
from sca_search.paper.comparison import Row, rank_correlations, rows_of
from sca_search.paper.figures import GRIDS, TITLES, figures_of
from sca_search.paper.reproduce import Plan, finished_results
from sca_search.paper.result import CellResult
from sca_search.runs.candidates import read_json
from sca_search.runs.folder import RunFolder

SECTION = "claims of the paper"
HEADINGS = ("claim", "the paper", "measured here", "")
SPREAD = ", several seeds of a shorter training"
COLLAPSED = {True: "collapsed", False: "did not collapse", None: "undecided"}


@dataclass(frozen=True)
class Reading:
    """The finished cells of a table's folder."""

    table: str
    folder: Path
    cells: tuple[Cell, ...]
    results: dict[Cell, CellResult]
    rows: list[Row]

    @classmethod
    def of(cls, number: str, folder: Path) -> "Reading":
        figures = figures_of(number)
        cells = cells_of(figures)
        results = finished_results(Plan(cells, folder))
        return cls(number, folder, cells, results, rows_of(figures, results))


def main() -> None:
    arguments = _arguments()
    read = {
        number: Reading.of(number, folder) for number, folder in zip(arguments.table, arguments.folder, strict=True)
    }
    with_tanh = Reading.of("2", arguments.with_tanh) if arguments.with_tanh else read.get("2")
    for reading in read.values():
        text = section_of(reading, with_tanh, SPREAD if arguments.spread else "")
        print(text)
        write_section(RESULTS, f"the paper's table {reading.table}{SPREAD if arguments.spread else ''}", text)
    if arguments.readme:
        rows = {number: read[number].rows if number in read else rows_of(figures_of(number), {}) for number in TITLES}
        claims = claims_of(rows, with_tanh.rows if with_tanh else rows["2"])
        text = claims_text(with_earlier(claims, read_table(README, SECTION)))
        print(text)
        write_section(README, SECTION, text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="append", choices=TITLES, default=[], help="number of a table in the paper")
    parser.add_argument("--folder", action="append", type=Path, default=[], help="folder of its cells, one per table")
    parser.add_argument("--with-tanh", type=Path, help="table 2 with the epochs of table 5, if --table 2 has others")
    parser.add_argument("--spread", action="store_true", help="shorter trainings with several seeds: separate sections")
    parser.add_argument("--readme", action="store_true", help="also write the claims to the README")
    arguments = parser.parse_args()
    if arguments.spread and arguments.readme:
        parser.error(
            "--readme and --spread must not be combined: the README's claims are those of the longest trainings"
        )
    if len(arguments.table) != len(arguments.folder):
        parser.error(f"each --table must have its --folder, got {len(arguments.table)} and {len(arguments.folder)}")
    for folder in [*arguments.folder, *filter(None, [arguments.with_tanh])]:
        if not folder.is_dir():
            parser.error(f"--folder and --with-tanh must be folders that exist, got {str(folder)!r}")
    return arguments


# A table --------------------------------------------------------------------------------------------------------------


def section_of(reading: Reading, with_tanh: Reading | None = None, kind: str = "") -> str:
    """A section of RESULTS.md."""
    parts = [
        f"## The paper's table {reading.table}: {TITLES[reading.table]}{kind}",
        _grid(reading.rows) if reading.table in GRIDS else _list(reading.rows),
        *_findings(reading, with_tanh),
        f"{len(reading.results)} of {len(reading.cells)} cells are trained{_setting(reading)}. Test accuracy; mean ± "
        "standard deviation over seeds, which share the dense network; zeros are counted after rounding. Results of "
        "other methods are in the paper.",
        f"{_made_by(reading)}the tables by:  \n{provenance()}",
    ]
    return "\n\n".join(part for part in parts if part)


def _grid(rows: Sequence[Row]) -> str:
    zeros = [row for row in rows if row.figure.metric == "sparsity"]
    correct = [row for row in rows if row.figure.metric == "top1"]
    headings = ["λ", "α", "zeros, %: paper", "ours", "accuracy, %: paper", "ours", "epochs", "seeds"]
    lines = [
        [
            f"{zero.figure.strength_lambda:g}",
            f"{zero.figure.alpha:g}",
            f"{zero.figure.value:g}",
            ours(zero),
            f"{right.figure.value:.2f}",
            ours(right),
            *_amount(zero),
        ]
        for zero, right in zip(zeros, correct, strict=True)
    ]
    return table(headings, lines)


def _list(rows: Sequence[Row]) -> str:
    headings = ["data", "network", "method", "metric", "paper, %", "ours, %", "zeros, %", "epochs", "seeds"]
    lines = []
    for row in rows:
        figure = row.figure
        if figure.is_ours:
            paper = f"{figure.value:.2f}" + ("" if figure.sd is None else f" ± {figure.sd:.2f}")
            zeros = "" if row.sparsity is None else f"{row.sparsity:.2f}"
            names = [figure.dataset, figure.network, figure.method, figure.metric]
            lines.append([*names, paper, ours(row), zeros, *_amount(row)])
    return table(headings, lines)


def ours(row: Row) -> str:
    """Our result of a row, and the number of diverged seeds."""
    diverged = f"{row.failed} diverged" if row.failed else ""
    return diverged if row.ours is None else ", ".join(filter(None, [spread_of(row), diverged]))


def _amount(row: Row) -> list[str]:
    if row.seeds is None:
        return ["", ""]
    return [f"{row.epochs} of {full_epochs_of(row)}", str(row.seeds)]


def _findings(reading: Reading, with_tanh: Reading | None) -> list[str]:
    """The findings of a table, as text."""
    if reading.table in GRIDS:
        return [_ranks(reading.rows)]
    if reading.table != "5":
        return []
    others = {row.figure.network: row for row in with_tanh.rows if row.figure.method == "SCA"} if with_tanh else {}
    lines = []
    for row in (row for row in reading.rows if row.seeds):
        other = others.get(row.figure.network)
        for measure in MEASURES:
            figures, collapsed = collapse_text(row, other, measure), COLLAPSED[has_collapsed(row, other, measure)]
            lines.append(f"- {measure.label}: {figures}: {collapsed}.")
    return ["\n".join(lines)]


def _ranks(rows: Sequence[Row]) -> str:
    lines = []
    for rank in rank_correlations(rows):
        mine = "not enough cells" if rank.ours is None else f"{rank.ours:.3f} in {rank.cells} cells"
        words = f"Spearman correlation of sparsity and α: paper {rank.paper:.3f}, ours {mine}"
        lines.append(f"- λ {rank.strength_lambda:g}: {words}.")
    return "\n".join(lines)


# How it was made ------------------------------------------------------------------------------------------------------


def _setting(reading: Reading) -> str:
    """Differences from the paper: another network, fewer images."""
    parts = sorted(
        {f"{result.network} instead of {cell.network}" for cell, result in reading.results.items()}
        - {f"{cell.network} instead of {cell.network}" for cell in reading.cells}
    )
    limits = {limit for cell in reading.results if (limit := _train_limit(reading.folder / cell.name))}
    parts += [f"{limit:,} training images" for limit in sorted(limits)]
    return f", with {', '.join(parts)}" if parts else ""


def _train_limit(folder: Path) -> int | None:
    run = RunFolder(folder)
    return run.spec().data.train_limit if run.spec_file.is_file() else None


def _made_by(reading: Reading) -> str:
    """Command, machine and versions of the cells, if recorded."""
    for cell in reading.results:
        about: dict[str, Any] = read_json(RunFolder(reading.folder / cell.name).about_file, {})
        if about.get("commands"):
            machine, versions = about["machine"], about["versions"]
            used = ", ".join(f"{name} {version}" for name, version in versions.items())
            where = f"{machine['processor']}, {machine['cores']} cores, Python {machine['python']}, {used}"
            return f"Measured by `{without_paths(about['commands'][-1]['command'])}` ({where}); "
    return f"Measured by `{_likely_command(reading)}`; " if reading.results else ""


def without_paths(command: str) -> str:
    """Replaces local paths, which mean nothing to others."""
    return shlex.join("PATH" if Path(word).is_absolute() else word for word in shlex.split(command))


def _likely_command(reading: Reading) -> str:
    """The command inferred from the results, if none was recorded."""
    epochs = {result.epochs for result in reading.results.values()}
    seeds = max(result.seeds for result in reading.results.values())
    is_whole = all(result.epochs == full_epochs(cell) for cell, result in reading.results.items())
    words = ["sca-search", "reproduce", reading.table]
    if reading.folder.name.endswith("-quick"):
        words.append("--quick")
    elif not is_whole:
        words += ["--epochs", str(epochs.pop())] if len(epochs) == 1 else ["--hours", "N"]
    words += ["--seeds", str(seeds)] if seeds > 1 else []
    return shlex.join([*words, "--data-dir", "PATH"])


# The claims -----------------------------------------------------------------------------------------------------------


def claims_of(rows: dict[str, list[Row]], with_tanh: Sequence[Row]) -> list[Claim]:
    """Every claim, including those whose table was not trained."""
    return [
        increases("6", "LeNet on MNIST", rows["6"]),
        increases("7", "VGG-S on CIFAR-10", rows["7"]),
        covers_range("6", "LeNet on MNIST", rows["6"]),
        covers_range("7", "VGG-S on CIFAR-10", rows["7"]),
        matches_dense("mnist", "lenet", rows["1"]),
        *_studies_match(),
        *(matches_dense(*pair, rows[number]) for number in ("2", "3", "4") for pair in _pairs(rows[number])),
        above_others(rows["1"], read_table(RESULTS, "methods on mnist")),
        *(needs_tanh(rows["5"], with_tanh, measure) for measure in MEASURES),
    ]


def _pairs(rows: Sequence[Row]) -> list[tuple[str, str]]:
    """The distinct pairs of data set and network of a table, in order."""
    return list(dict.fromkeys((row.figure.dataset, row.figure.network) for row in rows))


def _studies_match() -> list[Claim]:
    """The same for the first guesses of studies, measured by another benchmark."""
    claims = []
    for line in read_table(RESULTS, "accuracy on mnist"):
        points, _, spread = line["difference, points"].partition(" ± ")
        here = f"{line['ternary, %']} % against {line['dense, %']} %: {line['difference, points']} points"
        claims.append(
            Claim(
                f"the same for a study in the {line['form']} form at sparsity {line['target']}",
                "",
                f"{here}; {line['seeds']} seeds",
                verdict(matches(float(points), 0.0, float(spread or 0.0))),
            )
        )
    return claims


def with_earlier(claims: Sequence[Claim], written: Sequence[dict[str, str]]) -> list[Claim]:
    """Claims whose table is not given, as written by an earlier run."""
    earlier = {line[HEADINGS[0]]: Claim(*(line[heading] for heading in HEADINGS)) for line in written}
    return [earlier.get(claim.claim, claim) if claim.verdict == NOT_RUN else claim for claim in claims]


def claims_text(claims: Sequence[Claim]) -> str:
    """The README's section."""
    run = [claim for claim in claims if claim.verdict != NOT_RUN]
    counts = {kind: sum(claim.verdict == kind for claim in run) for kind in (HELD, NOT_HELD, UNDECIDED)}
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    others = "; ".join(claim.claim for claim in claims if claim.verdict == NOT_RUN)
    return (
        f"### Which of the paper's claims held here\n\n{len(run)} claims were tested: {summary}.\n\n"
        f"{table(list(HEADINGS), [claim.cells for claim in run])}\n\nNot run here: {others or 'none'}.\n\n"
        f"{RULES} Trainings shorter than the paper's are scaled by [a rule](docs/the-paper.md#shorter-runs). Claims "
        "of tables that are not named below were written by an earlier run of the same program.  \n"
        f"{provenance()}"
    )


if __name__ == "__main__":
    main()
