"""SCA and other methods, with equal epochs from the same warm starts.

    python -m benchmarks.compare digits --seeds 3
    python -m benchmarks.compare mnist --data-dir DIR --seeds 3

First all methods; those that control their sparsity use --target-sparsity. Then SCA again at the sparsity of each
method with weights {-1,0,+1} that does not control it: only at equal sparsity is a difference due to the method.
Everything is stored below --cells, and an interrupted benchmark continues.
"""

import argparse
import shutil
import statistics
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from benchmarks.report import RESULTS, provenance, table, write_section
from benchmarks.significance import HEADINGS, cells_of, paired_test, spread
from sca_search.config.names import METHODS, SCA
from sca_search.config.study import StudySpec
from sca_search.study.compare import Comparison, MethodResult, run_comparison, times_ms

TRITS = "{-1,0,+1}"
STUDIES = {
    "digits": {"train": {"dense_epochs": 30, "epochs": 20, "frozen_epochs": 5}},
    "mnist": {
        "data": {"name": "mnist", "train_limit": 20_000},
        "model": {"name": "lenet-medium"},
        "train": {"dense_epochs": 5, "epochs": 3, "frozen_epochs": 1, "batch": 64},
    },
}


def main() -> None:
    arguments = _arguments()
    say = partial(print, flush=True)
    contest = _contest(arguments, arguments.target_sparsity, tuple(METHODS), "all")
    entries, _ = run_comparison(contest, say)
    again = {}
    for method in _without_control():
        landed = round(statistics.fmean(_values(entries, method, "sparsity")), 3)
        beside = _contest(arguments, landed, (SCA,), f"at-{landed:g}")
        _copy_warm_starts(contest, beside)
        again[method] = run_comparison(beside, say)[0]
    _report(arguments, contest, entries, again, times_ms(contest, entries, say))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=list(STUDIES))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--target-sparsity", type=float, default=0.9)
    parser.add_argument("--cells", type=Path, default=Path("benchmarks/cells"))
    return parser.parse_args()


def _contest(arguments: argparse.Namespace, target: float, methods: tuple[str, ...], name: str) -> Comparison:
    tables = STUDIES[arguments.data]
    spec = StudySpec.model_validate(
        tables
        | {
            "goal": {"target_sparsity": target},
            "data": tables.get("data", {}) | ({"dir": arguments.data_dir} if arguments.data_dir else {}),
            "search": {"trials": arguments.trials},
        }
    )
    return Comparison(spec, methods, arguments.seeds, arguments.cells / "compare" / arguments.data / name)


def _copy_warm_starts(one: Comparison, other: Comparison) -> None:
    for seed in range(one.seeds):
        target = other.folder / f"dense-{seed}"
        if not target.exists():
            shutil.copytree(one.folder / f"dense-{seed}", target)


def _without_control() -> list[str]:
    return [name for name, method in METHODS.items() if method.weights == TRITS and not method.plans_sparsity]


def _values(entries: Iterable[MethodResult], method: str, name: str) -> list[float]:
    found = [getattr(entry, name) for entry in entries if entry.method == method]
    return [value for value in found if value is not None]


def _mean(values: list[float], factor: float, digits: int) -> str:
    return spread([factor * value for value in values], digits) if values else ""


def _report(
    arguments: argparse.Namespace,
    contest: Comparison,
    entries: list[MethodResult],
    again: dict[str, list[MethodResult]],
    times: dict[str, float],
) -> None:
    rows = [
        [
            method,
            METHODS[method].weights,
            str(len(_values(entries, method, "test_metric"))),
            _mean(_values(entries, method, "metric"), 100, 2),
            _mean(_values(entries, method, "test_metric"), 100, 2),
            _mean(_values(entries, method, "sparsity"), 100, 2),
            _mean(_values(entries, method, "ternary_bytes"), 1 / 1024, 2),
            _mean(_values(entries, method, "file_bytes"), 1 / 1024, 1),
            f"{1000 * times[method]:.1f}" if method in times else "",
        ]
        for method in contest.methods
    ]
    headings = ["method", "weights", "seeds", "validation, %", "test, %", "zeros, %", "weights, KB", "file, KB", "µs"]
    spec = contest.base
    text = f"""## Methods under equal conditions: {arguments.data}

{table(headings, rows)}

{_differences(entries, again)}

Mean ± sample standard deviation over seeds; differences of test accuracy in points, tested by paired t-tests, p-values
corrected by Holm's method. Per seed, every method has the same warm start and {arguments.trials} trials of
{spec.train.epochs} + {spec.train.frozen_epochs} (frozen weights) epochs that search its learning rates, its
distillation and, if it has a regularizer, its strength; SCA also searches its schedules and allocations. The best
trial on validation counts.
Sizes are those of the packed export; µs are those of its C on one thread, for the first seed, timed interleaved.

{provenance()}
"""
    write_section(RESULTS, f"methods on {arguments.data}", text)
    print(text)


def _differences(entries: list[MethodResult], again: dict[str, list[MethodResult]]) -> str:
    """SCA against every other method with weights {-1,0,+1}, per seed, at that method's sparsity."""
    others = [name for name, method in METHODS.items() if method.weights == TRITS and name != SCA]
    tests = [paired_test(_pairs(again.get(method, entries), entries, method)) for method in others]
    rows = [
        [method, _mean(_values(entries, method, "sparsity"), 100, 1), *cells]
        for method, cells in zip(others, cells_of(tests), strict=True)
    ]
    return table(["SCA compared with", "zeros, %", *HEADINGS], rows)


def _pairs(ours: list[MethodResult], theirs: list[MethodResult], method: str) -> list[float]:
    """Differences of the test metric in points, per seed."""
    mine = {entry.seed: entry.test_metric for entry in ours if entry.method == SCA}
    other = {entry.seed: entry.test_metric for entry in theirs if entry.method == method}
    pairs = [(mine[seed], other[seed]) for seed in sorted(mine.keys() & other.keys())]
    return [100 * (one - two) for one, two in pairs if one is not None and two is not None]


if __name__ == "__main__":
    main()
