"""Test accuracy of methods at several sparsities against a dense network that is trained for as many epochs.

    python -m benchmarks.accuracy studies/digits.toml --targets 0.5 0.9 0.97
    python -m benchmarks.accuracy studies/cifar10.toml --data npz:DIR/cifar10.npz --epochs 12 16 4 --targets 0.5 0.9
    python -m benchmarks.accuracy report

A cell is a complete study in its own run folder below --cells, so an interrupted benchmark continues. Cells of one seed
share one warm start. Results are lines of `benchmarks/measured/accuracy/STUDY.jsonl`; existing lines are not measured
again.
"""

import argparse
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.report import RESULTS, provenance, table, write_section
from benchmarks.significance import HEADINGS, Difference, cells_of, paired_test, spread
from sca_search.config.load import resolve
from sca_search.config.names import PRUNING, SCA, STRAIGHT_THROUGH
from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder, new_run, resumed_run
from sca_search.study.events import DenseEpoch, Event, TrialEpoch
from sca_search.study.session import run_study
from sca_search.study.setup import make_task, warm_start
from sca_search.system.machine import versions
from sca_search.training.evaluate import EVALUATION_BATCH

MEASURED = Path(__file__).parent / "measured" / "accuracy"
DENSE = "dense"
ARMS: dict[str, dict[str, str]] = {
    "decoupled": {"method": SCA, "form": "decoupled"},
    "paper": {"method": SCA, "form": "paper"},
    "straight-through": {"method": STRAIGHT_THROUGH},
    "pruning": {"method": PRUNING},
}
COMPARED = [("decoupled", DENSE), ("paper", DENSE), ("decoupled", "straight-through"), ("decoupled", "paper")]
Line = dict[str, Any]


class Bench:
    """The cells of one study file."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.stem = Path(arguments.study).stem
        self.results = MEASURED / f"{self.stem}.jsonl"

    def spec(self, seed: int, arm: str, target: float | None) -> StudySpec:
        arguments = self.arguments
        values = {"data": arguments.data, "data_dir": arguments.data_dir, "threads": arguments.threads}
        values |= {"trials": arguments.trials, "refits": arguments.refits, "out": arguments.cells, "seed": seed}
        values |= dict(zip(("dense_epochs", "epochs", "frozen_epochs"), arguments.epochs or (), strict=False))
        name = f"{self.stem}-{'-'.join(map(str, arguments.epochs or ()))}-{arm}-{target}-seed{seed}"
        return resolve(
            Path(arguments.study), values | {"target_sparsity": target, "name": name.lower()} | ARMS.get(arm, {})
        )

    def measure(self, seed: int, arm: str, target: float | None) -> None:
        """One cell, unless there is a line of it."""
        spec = self.spec(seed, arm, target)
        epochs = [spec.train.dense_epochs, spec.train.epochs, spec.train.frozen_epochs]
        key = {"arm": arm, "target": target, "seed": seed, "epochs": epochs}
        if any(key.items() <= line.items() for line in read(self.results)):
            return
        line = key | (self._dense(spec) if arm == DENSE else self._ternary(spec)) | {"versions": versions()}
        MEASURED.mkdir(parents=True, exist_ok=True)
        with self.results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)

    def _dense(self, spec: StudySpec) -> Line:
        """The dense network in one training of as many epochs as all others have together."""
        train = spec.train
        total = train.dense_epochs + train.epochs + train.frozen_epochs
        task = make_task(spec)
        run = RunFolder(self.arguments.cells / str(spec.name))
        run.path.mkdir(parents=True, exist_ok=True)
        longer = spec.model_copy(update={"train": train.model_copy(update={"dense_epochs": total})})
        start = warm_start(run, longer, task, Printer().on_event)
        batches = task.data.read_test().batches(EVALUATION_BATCH)
        return {"test": task.score(task.model_with(start.state), batches).accuracy}

    def _ternary(self, spec: StudySpec) -> Line:
        run = RunFolder(self.arguments.cells / str(spec.name))
        if not run.summary_file.exists():
            start = self.arguments.cells / f"{self.stem}-{spec.train.dense_epochs}-start-seed{spec.seed}"
            start.mkdir(parents=True, exist_ok=True)
            run = (resumed_run(spec) if run.path.exists() else None) or new_run(spec)
            copy = partial(_copy, names=("dense.safetensors", "dense.json"))
            copy(start, run.path)
            run_study(run, spec, make_task(spec), [Printer()])
            copy(run.path, start)
        summary = json.loads(run.summary_file.read_text())
        kept = ("sparsity", "sparsity_before_exact_step", "adjusted_fraction")
        chosen = summary["chosen"]
        return {"test": chosen["test_metric"], "start": summary["dense"]["test_metric"]} | {k: chosen[k] for k in kept}


class Printer:
    """Prints epochs."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, DenseEpoch | TrialEpoch):
            print(" ", event.epoch, flush=True)


def _copy(source: Path, target: Path, names: tuple[str, ...]) -> None:
    for name in names:
        if (source / name).exists() and not (target / name).exists():
            shutil.copyfile(source / name, target / name)


def read(path: Path) -> list[Line]:
    """The lines of a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def report(path: Path) -> None:
    """Write the section of a study in RESULTS.md."""
    lines = read(path)
    keys = sorted({(sum(line["epochs"]), line["target"] or 0.0, line["arm"], tuple(line["epochs"])) for line in lines})
    rows = [_row(lines, list(epochs), target, arm) for _, target, arm, epochs in keys]
    tests = [
        (f"{sum(epochs)}", f"{target:g}", f"{one} − {other}", paired_test(pairs), pairs)
        for _, target, one, epochs in keys
        for first, other in COMPARED
        if first == one and (pairs := differences(lines, list(epochs), target, one, other))
    ]
    tested = cells_of([each[3] for each in tests])
    compared = [
        [*about, f"{len(pairs)}", *_mean_of_few(test, pairs, cells)]
        for (*about, test, pairs), cells in zip(tests, tested, strict=True)
    ]
    dense, ternary, frozen = max((line["epochs"] for line in lines), key=sum)
    explained = (
        "Test accuracy with the sample standard deviation over seeds. All arms train for the same number of epochs; of "
        f"{dense + ternary + frozen}, those of a ternary network are {dense} of the dense warm start, {ternary} of "
        f"ternary training and {frozen} with frozen trits. Of adjusted weights the maximum is shown. Differences are "
        "paired by seed, p-values corrected by Holm's method:"
    )
    text = "\n\n".join(
        [
            f"## Accuracy at equal epochs on {path.stem}",
            table(["epochs", "target", "arm", "seeds", "test, %", "sparsity in the file", "adjusted, %"], rows),
            explained,
            table(["epochs", "target", "difference", "seeds", *HEADINGS], compared),
            provenance(),
        ]
    )
    write_section(RESULTS, f"accuracy on {path.stem}", text)


def differences(lines: list[Line], epochs: list[int], target: float, one: str, other: str) -> list[float]:
    """In points, seed by seed; the dense network has no target."""
    ours, theirs = (_by_seed(lines, epochs, None if arm == DENSE else target, arm) for arm in (one, other))
    return [100 * (ours[seed]["test"] - theirs[seed]["test"]) for seed in sorted(ours.keys() & theirs.keys())]


def _by_seed(lines: list[Line], epochs: list[int], target: float | None, arm: str) -> dict[int, Line]:
    wanted = {"epochs": epochs, "target": target, "arm": arm}
    return {line["seed"]: line for line in lines if wanted.items() <= line.items()}


def _row(lines: list[Line], epochs: list[int], target: float, arm: str) -> list[str]:
    found = list(_by_seed(lines, epochs, None if arm == DENSE else target, arm).values())
    sparsities = {f"{line['sparsity']:.5f}" for line in found if "sparsity" in line}
    adjusted = [100 * line["adjusted_fraction"] for line in found if "adjusted_fraction" in line]
    return [
        str(sum(epochs)),
        "" if arm == DENSE else f"{target:g}",
        arm,
        str(len(found)),
        spread([100 * line["test"] for line in found]),
        " ".join(sorted(sparsities)),
        f"{max(adjusted):.3f}" if adjusted else "",
    ]


def _mean_of_few(test: Difference | None, pairs: list[float], cells: list[str]) -> list[str]:
    """The mean is shown also where there are too few pairs for a test."""
    return cells if test is not None else [spread(pairs, sign="+"), *cells[1:]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("study", help="a study file, or report")
    parser.add_argument("--targets", type=float, nargs="+", default=[0.5, 0.9])
    parser.add_argument("--arms", nargs="+", default=[DENSE, *ARMS], choices=[DENSE, *ARMS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, nargs=3, metavar=("DENSE", "TERNARY", "FROZEN"))
    parser.add_argument("--data")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--refits", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cells", type=Path, default=Path("benchmarks/cells"))
    arguments = parser.parse_args()
    if arguments.study != "report":
        bench = Bench(arguments)
        for seed in arguments.seeds:
            for arm in arguments.arms:
                for target in [None] if arm == DENSE else arguments.targets:
                    bench.measure(seed, arm, target)
    for path in sorted(MEASURED.glob("*.jsonl")):
        report(path)


if __name__ == "__main__":
    main()
