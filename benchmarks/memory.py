"""Memory of a long study, and peak memory of one trial compared with a bare PyTorch loop of the same network.

    python -m benchmarks.memory

Each part runs in its own process. The study: many short trials on the digits in one process, as the command runs them;
resident memory is measured after each trial, after garbage collection and `malloc_trim`. The trials: the paper's LeNet
and ResNet-20 on as many random images as MNIST and CIFAR-10 have, from a dense network to trits, each compared with a
loop in a process that imports only torch.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.bare_worker import WORKLOADS, random_images
from benchmarks.report import RESULTS, provenance, table, write_section
from benchmarks.resident import peak_bytes, resident_bytes
from sca_search.config.candidate import Candidate
from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.data import Split
from sca_search.data.dataset import assemble
from sca_search.models.prepare import prepared
from sca_search.runs.folder import new_run
from sca_search.study.events import Event, TrialEnded
from sca_search.study.run import run_study
from sca_search.study.setup import make_task
from sca_search.study.space import Space
from sca_search.training.evaluate import EVALUATION_BATCH, answers
from sca_search.training.task import BY_NAME, Task, WarmStart
from sca_search.training.train import train_candidate

# Allowed growth of a study after the first measured trial, and allowed peak memory relative to the bare loop.
FIRST_TRIAL, MOST_GROWTH, MOST_RATIO = 20, 0.05, 1.3
EPOCHS = 1

Memory = dict[str, int]
"""Bytes after the imports, and the peak since then."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--part", choices=["study", *WORKLOADS], help="run one of the processes, which prints JSON")
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(study_part(arguments.trials) if arguments.part == "study" else trial_part(arguments.part)))
        return
    us = [sys.executable, "-m", "benchmarks.memory", "--part"]
    growth = printed([*us, "study", "--trials", str(arguments.trials)])
    peaks = {name: (printed([*us, name]), printed(bare_command(name))) for name in WORKLOADS}
    text = f"## Memory\n\n{growth_text(growth)}\n\n{peak_text(peaks)}\n\n{provenance()}"
    print(text)
    write_section(RESULTS, "memory", text)


def bare_command(network: str) -> list[str]:
    return [sys.executable, "-m", "benchmarks.bare_worker", network, str(WORKLOADS[network].images), str(EPOCHS)]


def printed(command: list[str]) -> Any:
    """The last line that a program prints, parsed as JSON."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def study_part(trials: int) -> list[int]:
    """Resident bytes after each trial of a study."""
    resident: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        short = {"epochs": 1, "dense_epochs": 1, "train_limit": 200, "refits": 0, "trials": trials, "threads": 1}
        spec = resolve(None, {"front": True, "out": Path(folder), **short})

        class Listener:
            def on_event(self, event: Event) -> None:
                if isinstance(event, TrialEnded):
                    resident.append(resident_bytes())

        run_study(new_run(spec), spec, make_task(spec), [Listener()])
    return resident


def trial_part(network: str) -> Memory:
    torch.set_num_threads(1)
    base = resident_bytes()
    settings = {"model": network, "epochs": EPOCHS, "batch": WORKLOADS[network].batch, "target_sparsity": 0.9}
    task, candidate, start = trial_of(resolve(None, settings), WORKLOADS[network].images)
    train_candidate(candidate, task, start)
    return {"base": base, "peak": peak_bytes()}


def trial_of(spec: StudySpec, images: int) -> tuple[Task, Candidate, WarmStart]:
    """The first guess of a study on an untrained dense network: training does not change its memory."""
    shape = WORKLOADS[str(spec.model.label)].shape
    train, val = (Split(*random_images(shape, count)) for count in (images, images // 10))
    network = prepared(BY_NAME.maker(spec, 10, train.image_shape), train.image_shape, 10, spec.model)
    data = assemble("images", tuple("0123456789"), train, val, lambda: val)
    task = Task(data, network.make_model, network.choices, spec.train.batch)
    model = task.make_model()
    logits = answers(model, train.batches(EVALUATION_BATCH))
    space = Space(spec, task.layer_shapes)
    start = WarmStart(model.state_dict(), task.validate(model), logits)
    candidate = space.candidate(space.first_guess(), 0.9, seed=0)
    return task, candidate.model_copy(update={"frozen_epochs": EPOCHS}), start


# Report -----------------------------------------------------------------------------------------------------------


def growth_of(resident: list[int]) -> float:
    """Relative growth since the first measured trial."""
    return resident[-1] / resident[FIRST_TRIAL - 1] - 1.0


def growth_text(resident: list[int]) -> str:
    numbers = sorted({1, FIRST_TRIAL, *range(FIRST_TRIAL, len(resident), 60), len(resident)})
    rows = table(
        ["after trial", "resident, MB"], [[str(number), megabytes(resident[number - 1])] for number in numbers]
    )
    grown = growth_of(resident)
    met = "met" if grown <= MOST_GROWTH else "not met"
    goal = f"From trial {FIRST_TRIAL} to {len(resident)} memory grows by {grown:.1%}, limit {MOST_GROWTH:.0%}: {met}."
    return f"{rows}\n\n{goal} Measured after `gc.collect()` and `malloc_trim`."


def peak_text(peaks: dict[str, tuple[Memory, Memory]]) -> str:
    """The requirement is for the whole process; memory above the imports is shown as well."""
    lines, goals = [], []
    for network, (ours, bare) in peaks.items():
        pairs = [(each["base"], each["peak"], each["peak"] - each["base"]) for each in (ours, bare)]
        lines.append([network, "one trial", *map(megabytes, pairs[0])])
        lines.append([network, "bare loop, torch only", *map(megabytes, pairs[1])])
        lines.append([network, "ratio", *(f"{mine / other:.2f}" for mine, other in zip(*pairs, strict=True))])
        ratio = ours["peak"] / bare["peak"]
        met = "met" if ratio <= MOST_RATIO else "not met"
        images = f"{WORKLOADS[network].images:,} images"
        goals.append(
            f"- {network}, {images}: peak memory is {ratio:.2f} times the bare loop's, limit {MOST_RATIO}: {met}."
        )
    rows = table(["network", "", "after the imports, MB", "peak, MB", "peak above the imports, MB"], lines)
    return "\n\n".join([rows, "\n".join(goals), optional_text()])


def optional_text() -> str:
    """Packages that pandas and Optuna import if they are installed: tens of megabytes."""
    there = [name for name in ("pyarrow", "boto3") if importlib.util.find_spec(name)]
    return f"Optional packages that are installed and imported: {', '.join(there) or 'none'}."


def megabytes(count: int) -> str:
    return f"{count / 2**20:.1f}"


if __name__ == "__main__":
    main()
