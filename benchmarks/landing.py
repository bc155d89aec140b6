"""How near rounding alone lands to the plan, in the paper's form, whose α stands still while it trains.

    python benchmarks/landing.py --seeds 3

The first trial has only the closed form to go by. After four trials of an ordinary study a fifth is trained at each of
several strengths of the pull, once with what the four reached as a correction and once without.
"""

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

import optuna
import torch
from report import RESULTS, provenance, table, write_section

from sca_search.candidate import Candidate
from sca_search.run_folder import RunFolder
from sca_search.search import Listener, Objective, work
from sca_search.space import STRENGTH, Space
from sca_search.spec import resolve
from sca_search.task import Progress, Settled
from sca_search.train import train_candidate
from sca_search.trials import fill_queue, has_waiting, open_study, rows
from sca_search.workshop import make_space, make_task, warm_start

TARGETS = (0.3, 0.5, 0.9, 0.97)
STRENGTHS = (STRENGTH[0], 10.0, 100.0, STRENGTH[1])


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
    landings = [landing for seed in range(arguments.seeds) for target in TARGETS for landing in _landings(seed, target)]
    _report(landings, arguments.seeds)


def _landings(seed: int, target: float) -> list[Landing]:
    spec = resolve(None, {"seed": seed, "target_sparsity": target, "form": "paper", "trials": 4})
    task = make_task(spec)
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder(Path(folder))
        start = warm_start(run, spec, task, Progress())
        space = make_space(run, spec, task, start)
        study = open_study(run, space)
        fill_queue(study, space)
        objective = Objective(run, space, task, start, Listener())
        work(study, objective, lambda: has_waiting(study))
        first = rows(study)[0]
        off = abs(float(first["sparsity_before"]) - target)  # type: ignore[arg-type]
        moved = float(first["moved_share"])  # type: ignore[arg-type]
        found = [Landing("first trial, strength 100", target, off, moved)]
        for strength in STRENGTHS:
            plain = _with_strength(space, target, strength)
            corrected = plain.model_copy(update={"asked": objective.asked(study, plain)})
            for what, candidate in (("closed form", plain), ("corrected", corrected)):
                settled = train_candidate(candidate, task, start, Progress())
                found.append(_landing(f"fifth trial, strength {strength:g}, {what}", target, settled))
    print(seed, target, [f"{each.what}: {100 * each.off:.2f}" for each in found], flush=True)
    return found


def _with_strength(space: Space, target: float, strength: float) -> Candidate:
    """The first guess with a late pull and no holding: what drifts most."""
    changed = {"strength": strength, "pull_start": 0.3, "hold_from": 1.0}
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
        f"{seeds} seeds. The fifth trial follows four of an ordinary study, pulls from 0.3 of its epochs on and holds "
        f"no weight before the end; corrected: asked for what those four say.  \n{provenance()}"
    )
    write_section(RESULTS, "landing", text)


def _worst(landings: list[Landing], what: str, target: float) -> str:
    return f"{max(100 * each.off for each in landings if (each.what, each.target) == (what, target)):.2f}"


def _most_moved(landings: list[Landing], what: str) -> float:
    return max(100 * each.moved for each in landings if each.what == what)


if __name__ == "__main__":
    main()
