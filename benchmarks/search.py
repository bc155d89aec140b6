"""The search against stock Optuna, bisection, thresholding and straight-through training, at equal epochs.

    python -m benchmarks.search front digits --seeds 5
    python -m benchmarks.search targets digits --seeds 5
    python -m benchmarks.search front mnist --data-dir DIR --seeds 3 --hours 1
    python -m benchmarks.search report

`front`: every contender spends the same epochs on the whole range of sparsities and is compared by hypervolume.
`targets`: all epochs of a study are spent on one sparsity; contenders are compared by the test accuracy of the network
selected on validation. A cell is one contender and one seed; finished cells are files below --cells and are not run
again. `--hours` starts no new cell after that time. `report` writes RESULTS.md from all existing cells.
"""

import argparse
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import torch
from optuna.samplers import GPSampler, NSGAIISampler, RandomSampler, TPESampler

from benchmarks.contenders import (
    Bench,
    Contender,
    SpentError,
    bisection,
    no_prior,
    ours,
    rows_of,
    stock,
    straight_through,
    straight_through_labels,
    threshold,
)
from benchmarks.search_report import report
from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder
from sca_search.study.setup import make_task, warm_start
from sca_search.system.files import write_json_atomic
from sca_search.training.evaluate import EVALUATION_BATCH, score

CONTENDERS: dict[str, Contender] = {
    "ours": ours(),
    "ours, paper's form": ours({"search.form": "paper"}),
    "ours, no prior": no_prior,
    "ours, uniform allocation": ours({"search.space.allocation": 0.0}),
    "ours, halving": ours({"search.keep": 0.5}),
    "ours, no frozen phase": ours(moved_to_training=True),
    "ours, random sampler": ours({"search.sampler": "random"}),
    "ours, GP sampler": ours({"search.sampler": "gp"}),
    "stock random": stock(lambda seed: RandomSampler(seed=seed)),
    "stock TPE": stock(lambda seed: TPESampler(seed=seed)),
    "stock NSGA-II": stock(lambda seed: NSGAIISampler(seed=seed)),
    "stock GP": stock(lambda seed: GPSampler(seed=seed)),
    "bisection on α": bisection,
    "threshold + frozen phase": threshold,
    "straight-through": straight_through,
    "straight-through, labels only": straight_through_labels,
}
# Settings per data set, and the epochs that a cell may spend, in trials.
STUDIES: dict[str, tuple[dict[str, Any], int]] = {
    "digits": ({"train": {"dense_epochs": 30, "epochs": 20, "frozen_epochs": 5}}, 14),
    "mnist": (
        {
            "data": {"name": "mnist", "train_limit": 20_000},
            "model": {"name": "lenet-medium"},
            "train": {"dense_epochs": 5, "epochs": 3, "frozen_epochs": 1, "batch": 64},
        },
        7,
    ),
    "cifar10": (
        {
            "data": {"name": "cifar10", "train_limit": 10_000},
            "model": {"name": "resnet20"},
            "train": {"dense_epochs": 12, "epochs": 3, "frozen_epochs": 1, "batch": 64},
        },
        4,
    ),
}
# One sparsity needs fewer trials than the whole range, so each can be longer.
AT_ONE_SPARSITY: dict[str, tuple[dict[str, Any], int]] = {
    "mnist": ({"train": {"epochs": 6, "frozen_epochs": 2}}, 3),
}
TARGETS = (0.9, 0.97, 0.99)


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(arguments.threads)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if arguments.part != "report":
        deadline = time.monotonic() + 3600 * arguments.hours
        for cell in _cells(arguments):
            if time.monotonic() > deadline:
                print("time limit reached; the same command continues")
                break
            cell()
    report(arguments.cells)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["front", "targets", "report"])
    parser.add_argument("data", choices=list(STUDIES), nargs="?", default="digits")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS))
    parser.add_argument("--targets", type=float, nargs="+", default=list(TARGETS))
    parser.add_argument("--trials", type=int, help="epochs that a cell may spend, in trials")
    parser.add_argument("--hours", type=float, default=1e6)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cells", type=Path, default=Path("benchmarks/cells"))
    return parser.parse_args()


def _cells(arguments: argparse.Namespace) -> list[Callable[[], None]]:
    """Ordered by seed, so that an interrupted benchmark has every contender equally often."""
    goals: list[float | None] = list(arguments.targets) if arguments.part == "targets" else [None]
    return [
        lambda seed=seed, goal=goal, name=name: _cell(arguments, seed, goal, name)  # type: ignore[misc]
        for seed in range(arguments.seeds)
        for goal in goals
        for name in arguments.contenders
    ]


def _cell(arguments: argparse.Namespace, seed: int, target: float | None, contender: str) -> None:
    part = "front" if target is None else f"target-{target:g}"
    folder = arguments.cells / "search" / arguments.data / part / contender.replace(" ", "-") / f"seed-{seed}"
    result = folder / "cell.json"
    if result.exists():
        return
    began = time.monotonic()
    trials = arguments.trials or _settings(arguments.data, target)[-1][1]
    # Candidates that are stopped early leave epochs for others.
    spec = study_of(arguments.data, seed, arguments.data_dir, target, 4 * trials)
    task = make_task(spec)
    dense = RunFolder(arguments.cells / "search" / arguments.data / f"dense-{seed}")
    dense.path.mkdir(parents=True, exist_ok=True)
    start = warm_start(dense, spec, task)
    budget = trials * (spec.train.epochs + spec.train.frozen_epochs)
    bench = Bench(spec, task, start, budget, folder / "run")
    with contextlib.suppress(SpentError):
        CONTENDERS[contender](bench)
    dense_test = score(task.model_with(start.state), task.data.read_test().batches(EVALUATION_BATCH)).accuracy
    cell = {
        "data": arguments.data,
        "contender": contender,
        "seed": seed,
        "target": target,
        "budget": budget,
        "dense": start.score.accuracy,
        "dense_test": dense_test,
        "images": len(task.data.val),
        "points": rows_of(bench.points),
    }
    folder.mkdir(parents=True, exist_ok=True)
    write_json_atomic(result, cell)
    best = max((point.accuracy for point in bench.points), default=float("nan"))
    print(
        f"{part} {arguments.data} {contender}, seed {seed}: {len(bench.points)} networks, best {best:.4f}, "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )


def study_of(
    data: str,
    seed: int,
    data_dir: Path | None,
    target: float | None = None,
    trials: int = 16,
    form: str = "sharpened",
) -> StudySpec:
    """The study on a data set, for a target or the whole front."""
    spec = resolve(
        None,
        {
            "seed": seed,
            "target_sparsity": target,
            "front": True if target is None else None,
            "grid": None if target is None else False,  # as for the others, all epochs are spent on the target
            "data_dir": data_dir,
            "trials": trials,
            "form": form,
        },
    )
    merged = spec.model_dump()
    for tables, _ in _settings(data, target):
        for table, entries in tables.items():
            merged[table] |= entries
    return StudySpec.model_validate(merged)


def _settings(data: str, target: float | None) -> list[tuple[dict[str, Any], int]]:
    """The settings of the data set, with those for a single sparsity."""
    return [STUDIES[data], *([AT_ONE_SPARSITY[data]] if target is not None and data in AT_ONE_SPARSITY else [])]


if __name__ == "__main__":
    main()
