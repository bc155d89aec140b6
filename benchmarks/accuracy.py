"""Test accuracy of the chosen model against the dense network of the same run: targets × forms × seeds.

    python -m benchmarks.accuracy studies/digits.toml --targets 0.5 0.9 0.97 --seeds 3
    python -m benchmarks.accuracy studies/mnist.toml --data-dir DIR --targets 0.5 0.9 --seeds 3 --trials 1 --refits 0

Every cell is a complete study in its own run folder below --cells, so an interrupted benchmark can be continued. Cells
of one seed share one dense network.
"""

import argparse
import json
import math
import re
import shutil
import statistics
from pathlib import Path
from typing import Any

from benchmarks.report import README, RESULTS, provenance, table, write_section
from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.dashboard.figures import paper_figures
from sca_search.paper.cells import Cell, full_epochs
from sca_search.runs.folder import RunFolder, new_run, resumed_run
from sca_search.study.events import Event, TrialEnded
from sca_search.study.session import run_study
from sca_search.study.setup import make_task

FORMS = ("decoupled", "paper")
# Studies of a network whose α the paper varied in table 6; the paper's accuracies are shown next to ours.
PAPER = {"mnist": Cell("mnist", "lenet")}


def main() -> None:
    arguments = _arguments()
    cells = []
    for seed in range(arguments.seeds):
        for target in arguments.targets:
            for form in arguments.forms:
                cells.append(_cell(arguments, seed, target, form))
                _report(arguments, cells)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", type=Path)
    parser.add_argument("--targets", type=float, nargs="+", default=[0.5, 0.9, 0.97])
    parser.add_argument("--forms", nargs="+", default=list(FORMS), choices=FORMS)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--refits", type=int)
    parser.add_argument("--strength", type=float, help="a fixed regularization strength")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cells", type=Path, default=Path("benchmarks/cells"))
    parser.add_argument(
        "--section", default="accuracy", help="name of the section in RESULTS.md, if a study has several"
    )
    parser.add_argument("--readme", action="store_true", help="also write the table to the README")
    return parser.parse_args()


def _cell(arguments: argparse.Namespace, seed: int, target: float, form: str) -> dict[str, Any]:
    """The summary of one study; read from its file if the study is finished."""
    spec = resolve(
        arguments.study,
        {
            "seed": seed,
            "target_sparsity": target,
            "form": form,
            "data_dir": arguments.data_dir,
            "trials": arguments.trials,
            "refits": arguments.refits,
            "strength": arguments.strength,
            "threads": arguments.threads,
            "out": arguments.cells,
            "name": f"{_slug(arguments.section)}-{arguments.study.stem}-{form}-s{target:g}-seed{seed}",
        },
    )
    run = RunFolder(arguments.cells / str(spec.name))
    if not run.summary_file.exists():
        _run(spec, run, arguments.cells / f"dense-{arguments.study.stem}-seed{seed}")
    summary: dict[str, Any] = json.loads(run.summary_file.read_text())
    print(f"{run.path.name}: test {summary['chosen']['test_metric']:.4f}, dense {summary['dense']['test_metric']:.4f}")
    epochs = (spec.train.dense_epochs, spec.train.epochs, spec.train.frozen_epochs)
    return summary | {"form": form, "target": target, "seed": seed, "epochs": epochs}


class _TrialPrinter:
    def on_event(self, event: Event) -> None:
        if isinstance(event, TrialEnded) and event.row is not None:
            print(" ", event.trial, event.row.get("metric"))


def _run(spec: StudySpec, run: RunFolder, dense: Path) -> None:
    run = (resumed_run(spec) if run.path.exists() else None) or new_run(spec)
    dense.mkdir(parents=True, exist_ok=True)
    names = ("dense.safetensors", "dense.json")
    _copy(dense, run.path, names)
    run_study(run, spec, make_task(spec), [_TrialPrinter()])
    _copy(run.path, dense, names)


def _copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (source / name).exists() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)


def _report(arguments: argparse.Namespace, cells: list[dict[str, Any]]) -> None:
    rows = []
    for target in sorted(arguments.targets):
        for form in arguments.forms:
            found = [cell for cell in cells if (cell["target"], cell["form"]) == (target, form)]
            if found:
                rows.append([*_row(target, form, found), *_paper(arguments.study.stem, target)])
    headings = [
        "target",
        "form",
        "seeds",
        "dense, %",
        "ternary, %",
        "difference, points",
        "sparsity in the file",
        "error before the exact step, points",
        "adjusted, %",
    ]
    explained = (
        "Test accuracy, mean ± standard deviation over seeds; the error before the exact step and the adjusted weights "
        "are maxima. "
        f"{_epochs(cells)}"
    )
    if arguments.study.stem in PAPER:
        headings.append(f"paper, {full_epochs(PAPER[arguments.study.stem])} epochs, % (at sparsity)")
    text = f"{table(headings, rows)}\n\n{explained}  \n{provenance()}"
    name = f"{arguments.section} on {arguments.study.stem}"
    write_section(RESULTS, name, f"## {name[0].upper()}{name[1:]}\n\n{text}")
    if arguments.readme:
        write_section(README, name, text)


def _epochs(cells: list[dict[str, Any]]) -> str:
    """The numbers of epochs, as a sentence."""
    dense, ternary, frozen = cells[0]["epochs"]
    return f"{dense} epochs for the dense network, then {ternary} + {frozen} (frozen trits) epochs per trial."


def _paper(study: str, target: float) -> list[str]:
    """The paper's accuracy at its sparsity closest to the target, compared by the fraction of non-zeros."""
    if study not in PAPER:
        return []
    known = paper_figures(PAPER[study].dataset, PAPER[study].network)
    assert known is not None
    sparsity, accuracy = min(known.points, key=lambda point: abs(math.log((1.0 - point[0]) / (1.0 - target))))
    return [f"{100 * accuracy:.2f} ({sparsity:.4g})"]


def _row(target: float, form: str, cells: list[dict[str, Any]]) -> list[str]:
    ternary = [100 * cell["chosen"]["test_metric"] for cell in cells]
    dense = [100 * cell["dense"]["test_metric"] for cell in cells]
    gaps = [ours - theirs for ours, theirs in zip(ternary, dense, strict=True)]
    chosen = [cell["chosen"] for cell in cells]
    off = max(100 * abs(each["sparsity_before_exact_step"] - target) for each in chosen)
    return [
        f"{target:g}",
        form,
        str(len(cells)),
        _spread(dense),
        _spread(ternary),
        _spread(gaps, "+"),
        " ".join(sorted({f"{each['sparsity']:.5f}" for each in chosen})),
        f"{off:.2f}",
        f"{max(100 * each['adjusted_fraction'] for each in chosen):.3f}",
    ]


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())


def _spread(values: list[float], sign: str = "") -> str:
    """Mean and standard deviation; a single value has none."""
    mean = f"{statistics.fmean(values):{sign}.2f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.pstdev(values):.2f}"


if __name__ == "__main__":
    main()
