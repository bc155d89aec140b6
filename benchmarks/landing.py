"""How near rounding alone lands to the plan, in the paper's form, whose α stands still while it trains.

    python -m benchmarks.landing --seeds 3

The first trial has only the closed form to go by. After four trials of an ordinary study a fifth is trained at each of
several strengths of the pull, once with what the four reached as a correction and once without; and all of this again
where no weight is rounded for good before the end, as in the paper.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import torch

from benchmarks.report import RESULTS, provenance, table, write_section
from sca_search.config.candidate import Candidate
from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder
from sca_search.study.objective import Listener, Objective, work
from sca_search.study.queue import fill_queue, has_waiting, open_study, rows
from sca_search.study.setup import make_space, make_task, warm_start
from sca_search.study.space import STRENGTH, Space
from sca_search.training.task import Settled
from sca_search.training.train import train_candidate

TARGETS = (0.5, 0.9, 0.97)
STRENGTHS = (STRENGTH[0], 30.0, STRENGTH[1])
# When weights begin to be held, for the fifth trial: at the latest that is searched, or never.
HOLDINGS = {"as searched": 0.9, "nothing held": 1.0}


@dataclass(frozen=True)
class Landing:
    """One training: what it was, and how far off the plan rounding alone left it."""

    what: str
    target: float
    off: float  # share of all weights
    moved: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    landings = [
        landing
        for seed in range(arguments.seeds)
        for holding in HOLDINGS
        for target in TARGETS
        for landing in _landings(seed, target, holding)
    ]
    _report(landings, arguments.seeds)


def _landings(seed: int, target: float, holding: str) -> list[Landing]:
    spec = resolve(None, {"seed": seed, "target_sparsity": target, "form": "paper", "trials": 4})
    if HOLDINGS[holding] == 1.0:
        spec = StudySpec.model_validate(_merged(spec.model_dump(), {"search": {"space": {"hold_from": 1.0}}}))
    task = make_task(spec)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        start = warm_start(run, spec, task)
        space = make_space(run, spec, task, start)
        study = open_study(run, space)
        fill_queue(study, space)
        objective = Objective(run, space, task, start, Listener())
        work(study, objective, lambda: has_waiting(study))
        first = rows(study)[0]
        off = abs(float(first["sparsity_before"]) - target)  # type: ignore[arg-type]
        moved = float(first["moved_share"])  # type: ignore[arg-type]
        found = [Landing(f"{holding}: first trial, strength 100", target, off, moved)]
        for strength in STRENGTHS:
            plain = _with_strength(space, target, strength, HOLDINGS[holding])
            corrected = plain.model_copy(update={"asked": objective.asked(study, plain)})
            for what, candidate in (("closed form", plain), ("corrected", corrected)):
                settled = train_candidate(candidate, task, start)
                found.append(_landing(f"{holding}: fifth trial, strength {strength:g}, {what}", target, settled))
    print(seed, target, [f"{each.what}: {100 * each.off:.2f}" for each in found], flush=True)
    return found


def _merged(table: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    deeper = {key: _merged(table[key], value) for key, value in changes.items() if isinstance(value, dict)}
    return table | changes | deeper


def _with_strength(space: Space, target: float, strength: float, hold_from: float) -> Candidate:
    """The first guess with a late pull and late holding, or none: what drifts most."""
    changed = {"strength": strength, "pull_start": 0.3, "hold_from": hold_from}
    return space.candidate(space.first_guess() | changed, target, seed=12345)


def _landing(what: str, target: float, settled: Settled) -> Landing:
    return Landing(what, target, abs(settled.sparsity_before - target), settled.moved_share)


def _report(landings: list[Landing], seeds: int) -> None:
    kinds = dict.fromkeys(landing.what for landing in landings)
    cells = [
        [what, *(_worst(landings, what, target) for target in TARGETS), f"{_most_moved(landings, what):.3f}"]
        for what in kinds
    ]
    headings = ["training", *(f"off at {target:g}, points" for target in TARGETS), "most moved, %"]
    text = (
        "## Where rounding lands, in the paper's form\n\n"
        f"{table(headings, cells)}\n\n"
        "Digits; distance of the sparsity by rounding alone from the plan, before the exact step, the worst of "
        f"{seeds} seeds. The fifth trial follows four of an ordinary study and pulls from 0.3 of its epochs on. As "
        "searched: weights are rounded for good, the most decided first, from 0.9 of the epochs on, the latest that a "
        "study tries; nothing held: in all five trials none is before the end. Corrected: asked for what those four "
        f"say.  \n{provenance()}"
    )
    write_section(RESULTS, "landing", text)


def _worst(landings: list[Landing], what: str, target: float) -> str:
    return f"{max(100 * each.off for each in landings if (each.what, each.target) == (what, target)):.2f}"


def _most_moved(landings: list[Landing], what: str) -> float:
    return max(100 * each.moved for each in landings if each.what == what)


if __name__ == "__main__":
    main()
