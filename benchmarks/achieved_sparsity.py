"""Difference between planned sparsity and the sparsity after rounding, in the paper's form with its constant α.

    python -m benchmarks.achieved_sparsity --seeds 3

The first trial of a study, and trainings with several strengths of the regularizer.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import optuna
import torch

from benchmarks.report import RESULTS, provenance, table, write_section
from sca_search.config.candidate import Candidate
from sca_search.config.load import resolve
from sca_search.runs.folder import RunFolder
from sca_search.study.objective import Objective, work
from sca_search.study.queue import fill_queue, has_waiting, open_study, rows
from sca_search.study.setup import build_context, make_task
from sca_search.study.space import STRENGTHS, Space
from sca_search.training.task import TrainedCandidate
from sca_search.training.train import train_candidate

TARGETS = (0.5, 0.9, 0.97)
TRIED = (STRENGTHS["paper"][0], 30.0, STRENGTHS["paper"][1])


@dataclass(frozen=True)
class RoundingResult:
    """One training, and the distance of its sparsity after rounding from the plan."""

    what: str
    target: float
    error: float  # fraction of all weights
    adjusted: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    results = [result for seed in range(arguments.seeds) for target in TARGETS for result in _results(seed, target)]
    _report(results, arguments.seeds)


def _results(seed: int, target: float) -> list[RoundingResult]:
    spec = resolve(None, {"seed": seed, "target_sparsity": target, "form": "paper", "trials": 1})
    task = make_task(spec)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        context = build_context(run, spec, task)
        space, start = context.space, context.warm_start
        study = open_study(run, space)
        fill_queue(study, space)
        work(study, Objective(context), lambda: has_waiting(study))
        first = rows(study)[0]
        error = abs(float(first["sparsity_before"]) - target)  # type: ignore[arg-type]
        adjusted = float(first["adjusted_fraction"])  # type: ignore[arg-type]
        found = [RoundingResult("first trial, strength 100", target, error, adjusted)]
        for strength in TRIED:
            trained = train_candidate(_with_strength(space, target, strength), task, start)
            found.append(_result(f"strength {strength:g}", target, trained))
    print(seed, target, [f"{each.what}: {100 * each.error:.2f}" for each in found], flush=True)
    return found


def _with_strength(space: Space, target: float, strength: float) -> Candidate:
    """The first guess with a late start of λ, where sparsity drifts most."""
    changed = {"strength": strength, "strength_start": 0.3}
    return space.candidate(space.first_guess() | changed, target, seed=12345)


def _result(what: str, target: float, trained: TrainedCandidate) -> RoundingResult:
    return RoundingResult(what, target, abs(trained.sparsity_before - target), trained.adjusted_fraction)


def _report(results: list[RoundingResult], seeds: int) -> None:
    kinds = dict.fromkeys(result.what for result in results)
    cells = [
        [what, *(_worst(results, what, target) for target in TARGETS), f"{_most_adjusted(results, what):.3f}"]
        for what in kinds
    ]
    headings = ["training", *(f"error at {target:g}, points" for target in TARGETS), "most adjusted, %"]
    text = (
        "## Sparsity after rounding, in the paper's form\n\n"
        f"{table(headings, cells)}\n\n"
        "Digits; difference between the sparsity after rounding, before the exact step, and the planned one, the "
        f"maximum of {seeds} seeds. After the first trial, λ starts after 0.3 of the epochs.  \n{provenance()}"
    )
    write_section(RESULTS, "achieved sparsity", text)


def _worst(results: list[RoundingResult], what: str, target: float) -> str:
    return f"{max(100 * each.error for each in results if (each.what, each.target) == (what, target)):.2f}"


def _most_adjusted(results: list[RoundingResult], what: str) -> float:
    return max(100 * each.adjusted for each in results if each.what == what)


if __name__ == "__main__":
    main()
