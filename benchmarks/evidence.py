"""Is the search worth it, and is the default form? Every arm spends the same epochs from the same dense network.

    python -m benchmarks.evidence run cifar10 0.97 --data-dir DIR    # once per core; continues where it was
    python -m benchmarks.evidence report

Pools are single trainings with different seeds: of the first guess (the null of the search), of parameters drawn at
random from the search space, and of straight-through training with the same allocation. Searches are studies of 12
trials. The report compares the network that a search selects on the validation split with the best of 12 from a pool,
drawn many times, and the forms seed by seed. "one parameter" varies each searched parameter alone to the ends of its
range, from the first guess: a parameter without an effect above the noise of seeds does not belong in the search space.

Results are lines of `benchmarks/measured/evidence/DATA-SPARSITY.jsonl`; a line that exists is not measured again.
"""

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import torch
from filelock import FileLock, Timeout

from benchmarks.evidence_report import report
from sca_search.config.candidate import Candidate
from sca_search.config.load import resolve
from sca_search.config.names import STRAIGHT_THROUGH
from sca_search.config.study import StudySpec
from sca_search.export.state_dict import load_plain
from sca_search.runs.folder import RunFolder
from sca_search.study.objective import Objective, work
from sca_search.study.queue import fill_queue, open_study, rows
from sca_search.study.sampler import derived_seed
from sca_search.study.setup import StudyContext, layer_sensitivity, make_task, warm_start
from sca_search.study.space import Space
from sca_search.system.machine import versions
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.task import CachedSource
from sca_search.training.train import train_candidate

RESULTS = Path(__file__).parent / "measured" / "evidence"
TRIALS = 12
# Seeds below this number were used to choose defaults.
FIRST_SEED = 1000

SETTINGS: dict[str, dict[str, dict[str, Any]]] = {
    "digits": {"train": {"dense_epochs": 30, "epochs": 20, "frozen_epochs": 5}},
    "mnist": {
        "data": {"name": "mnist", "train_limit": 20_000},
        "model": {"name": "lenet-medium"},
        "train": {"dense_epochs": 5, "epochs": 3, "frozen_epochs": 1},
    },
    "cifar10": {
        "data": {"name": "npz:DIR/cifar10.npz", "train_limit": 10_000},
        "model": {"name": "resnet20"},
        "train": {"dense_epochs": 12, "epochs": 3, "frozen_epochs": 1},
    },
}


@dataclasses.dataclass(frozen=True)
class Arm:
    """What is trained: single candidates, whose seed and values `draw` returns, or whole searches without it."""

    cells: int
    draw: Callable[[Space, int], tuple[int, dict[str, Any]]] | None = None
    search: dict[str, Any] = dataclasses.field(default_factory=dict)  # changed settings of the study


def first_guess(space: Space, number: int) -> tuple[int, dict[str, Any]]:
    return FIRST_SEED + number, space.first_guess()


def random_values(space: Space, number: int) -> tuple[int, dict[str, Any]]:
    """Uniform over the search space, in each parameter's scale."""
    seed = FIRST_SEED + number
    trial = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
    space.sample(trial, 0.5, seed)
    return seed, dict(trial.params)


def one_parameter(space: Space, number: int) -> tuple[int, dict[str, Any]]:
    """The first guess with one value at an end of its range; of the values per group, those of the first group.

    Each pass over all settings has the seed of one cell of the first guess.
    """
    guess, first_groups = space.first_guess(), {name.partition(".")[0]: name for name in reversed(space.ranges())}
    ends: list[tuple[str, Any]] = [
        (name, end)
        for name, range_ in space.ranges().items()
        if "." not in name or name == first_groups[name.partition(".")[0]]
        for end in range_
    ]
    ends += [(name, option) for name, options in space.choices().items() for option in options]
    settings = [(name, value) for name, value in ends if value != guess[name]]
    passes, index = divmod(number, len(settings))
    return FIRST_SEED + passes, guess | dict([settings[index]])


_STRAIGHT = {"method": STRAIGHT_THROUGH}
ARMS = {
    "first guess": Arm(24, first_guess),
    "straight-through": Arm(24, first_guess, _STRAIGHT),
    "search": Arm(6),
    "search, straight-through": Arm(6, search=_STRAIGHT),
    "random": Arm(24, random_values),
    "random, straight-through": Arm(24, random_values, _STRAIGHT),
    "search, random": Arm(6, search={"sampler": "random"}),
    "search, GP": Arm(6, search={"sampler": "gp"}),
    "one parameter": Arm(400, one_parameter),
}


def study_of(data: str, data_dir: Path | None, sparsity: float, seed: int, search: dict[str, Any]) -> StudySpec:
    """The study of an arm: all trials at one sparsity."""
    values = resolve(None, {"target_sparsity": sparsity, "grid": False, "data_dir": data_dir}).model_dump()
    for table, entries in SETTINGS[data].items():
        values[table] = (values[table] or {}) | entries
    values["data"]["name"] = values["data"]["name"].replace("DIR", str(data_dir))
    values["search"] |= {"trials": TRIALS, "refits": 0} | search
    # The seed of a study also selects the validation split, which all arms share.
    return StudySpec.model_validate(values | {"name": f"evidence-{seed}"})


class Bench:
    """Data, dense network and layer sensitivity of one setting, which all arms share."""

    def __init__(self, data: str, data_dir: Path | None, sparsity: float, work_dir: Path) -> None:
        self.data, self.data_dir, self.sparsity = data, data_dir, sparsity
        self.folder = work_dir / data
        self.results = RESULTS / f"{data}-{sparsity:g}.jsonl"
        spec = study_of(data, data_dir, sparsity, 0, {})
        self.task = make_task(spec, CachedSource())
        self.common = RunFolder(self.folder / "dense")
        self.common.path.mkdir(parents=True, exist_ok=True)
        with FileLock(self.folder / "dense.lock"):
            self.start = warm_start(self.common, spec, self.task)
            self.sensitivity = tuple(layer_sensitivity(self.common, spec, self.task, self.start))
        self.dense = {"metric": self.start.score.accuracy, "test": self._test(self.start.state)}

    def done(self) -> set[tuple[str, int]]:
        """The cells that are measured."""
        return {(line["arm"], line["number"]) for line in read_results(self.results)}

    def measure(self, name: str, number: int) -> dict[str, Any]:
        """One cell."""
        arm, seed = ARMS[name], FIRST_SEED + number
        spec = study_of(self.data, self.data_dir, self.sparsity, seed, arm.search)
        space = Space(spec, self.task.layer_shapes, self.sensitivity)
        began = time.monotonic()
        if arm.draw is None:
            trials = self._searched(
                space, seed, self.folder / f"{self.sparsity:g}" / name.replace(" ", "-") / str(number)
            )
        else:
            seed, values = arm.draw(space, number)
            changed = {key: value for key, value in values.items() if value != space.first_guess()[key]}
            # Another seed than that of the first trial of a search with the same number.
            candidate = space.candidate(values, self.sparsity, derived_seed(seed, TRIALS))
            trials = [self._trained(candidate) | {"values": changed}]
        about = {"seconds": round(time.monotonic() - began), "versions": versions(), "images": len(self.task.data.val)}
        return {"arm": name, "number": number, "dense": self.dense, "trials": trials} | about

    def _trained(self, candidate: Candidate) -> dict[str, Any]:
        trained = train_candidate(candidate, self.task, self.start)
        test = self.task.score(trained.model, self.task.data.read_test().batches(EVALUATION_BATCH)).accuracy
        last = [epoch for epoch in trained.history if epoch.phase == "ternary"][-1]
        return {
            "metric": trained.score.accuracy,
            "loss": trained.score.loss,
            "test": test,
            "adjusted": trained.adjusted_fraction,
            "agreement": [last.soft_fraction, last.cosine_exact, last.cosine_straight_through],
        }

    def _searched(self, space: Space, seed: int, folder: Path) -> list[dict[str, Any]]:
        """A study; it continues in its folder."""
        run = RunFolder(folder)
        run.path.mkdir(parents=True, exist_ok=True)
        spec = space.spec.model_copy(update={"seed": seed})
        space = dataclasses.replace(space, spec=spec)
        study = open_study(run, space)
        fill_queue(study, space)
        work(study, Objective(StudyContext(run, self.task, self.start, space)))
        states = {trial.number: trial for trial in study.get_trials(deepcopy=False)}
        return [
            {
                "metric": row["metric"],
                "loss": row["loss"],
                "test": self._test(load_plain(run.candidate(int(row["candidate"])) / "model.safetensors")[0]),
                "adjusted": row["adjusted_fraction"],
                "values": states[row["trial"]].params,
            }
            for row in rows(study)
            if row["state"] == "complete"
        ]

    def _test(self, state: dict[str, torch.Tensor]) -> float:
        model = self.task.model_with(state)
        return self.task.score(model, self.task.data.read_test().batches(EVALUATION_BATCH)).accuracy


def read_results(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of results."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def run(bench: Bench, arms: list[str], cells: int | None, deadline: float) -> None:
    """Measure the missing cells, arm by arm in turn; several processes share them."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    most = {name: min(ARMS[name].cells, cells or ARMS[name].cells) for name in arms}
    wanted = [(name, number) for number in range(max(most.values())) for name in arms if number < most[name]]
    for name, number in wanted:
        if time.monotonic() > deadline or (name, number) in bench.done():
            continue
        lock = FileLock(bench.folder / f"{bench.sparsity:g}-{name}-{number}.lock".replace(" ", "-"))
        try:
            with lock.acquire(timeout=0):
                line = json.dumps(bench.measure(name, number))
                with bench.results.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
                print(f"{bench.data} {bench.sparsity:g} {name} {number}: {line[:200]}", flush=True)
        except Timeout:
            continue  # another process measures it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["run", "report"])
    parser.add_argument("data", choices=list(SETTINGS), nargs="?", default="digits")
    parser.add_argument("sparsity", type=float, nargs="*", default=[0.97])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--cells", type=int, help="at most this many cells per arm")
    parser.add_argument("--hours", type=float, default=1e6)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/cells/evidence"))
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    deadline = time.monotonic() + 3600 * arguments.hours
    if arguments.part == "run":
        for sparsity in arguments.sparsity:
            bench = Bench(arguments.data, arguments.data_dir, sparsity, arguments.work)
            run(bench, arguments.arms, arguments.cells, deadline)
    report(RESULTS)


if __name__ == "__main__":
    main()
