"""Whether a long study grows in memory, and what one trial takes beside a bare PyTorch loop of the same network.

    python -m benchmarks.memory

Each part runs in a process of its own. The study: many short trials on the digits in one process, as the command runs
them; what is in memory is read after each, when garbage is collected and the C library has returned what it had kept.
The trials: the paper's LeNet and ResNet-20 on as many random images as MNIST and CIFAR-10 have, from a dense network to
its trits, each beside a loop in a process that imports torch alone.
"""

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
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
from sca_search.study.run import Audience, run_study
from sca_search.study.setup import make_task
from sca_search.study.space import Space
from sca_search.training.evaluate import EVALUATION_BATCH, answers
from sca_search.training.task import BY_NAME, Task, WarmStart
from sca_search.training.train import train_candidate

# A study may grow by so much between these two trials, and a trial may take so much more than the bare loop.
FIRST_LOOK, MOST_GROWTH, MOST_BESIDE = 20, 0.05, 1.3
EPOCHS = 1

Memory = dict[str, int]
"""Bytes after the imports, and the most since."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--part", choices=["study", *WORKLOADS], help="run one of the processes, which prints JSON")
    arguments = parser.parse_args()
    if arguments.part:
        print(json.dumps(study_part(arguments.trials) if arguments.part == "study" else trial_part(arguments.part)))
        return
    us = [sys.executable, __file__, "--part"]
    growth = printed([*us, "study", "--trials", str(arguments.trials)])
    peaks = {name: (printed([*us, name]), printed(bare_command(name))) for name in WORKLOADS}
    text = f"## Memory\n\n{growth_text(growth)}\n\n{peak_text(peaks)}\n\n{provenance()}"
    print(text)
    write_section(RESULTS, "memory", text)


def bare_command(network: str) -> list[str]:
    program = Path(__file__).with_name("bare_worker.py")
    return [sys.executable, str(program), network, str(WORKLOADS[network].images), str(EPOCHS)]


def printed(command: list[str]) -> Any:
    """The last line that a program prints, as JSON."""
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def study_part(trials: int) -> list[int]:
    """What is in memory after each trial of a study."""
    looks: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        short = {"epochs": 1, "dense_epochs": 1, "train_limit": 200, "refits": 0, "trials": trials, "threads": 1}
        spec = resolve(None, {"front": True, "out": Path(folder), **short})
        listen: Callable[[dict[str, object]], None] = lambda _row: looks.append(resident_bytes())  # noqa: E731
        run_study(new_run(spec), spec, make_task(spec), Audience(on_trial_end=listen))
    return looks


def trial_part(network: str) -> Memory:
    torch.set_num_threads(1)
    base = resident_bytes()
    settings = {"model": network, "epochs": EPOCHS, "batch": WORKLOADS[network].batch, "target_sparsity": 0.9}
    task, candidate, start = trial_of(resolve(None, settings), WORKLOADS[network].images)
    train_candidate(candidate, task, start)
    return {"base": base, "peak": peak_bytes()}


def trial_of(spec: StudySpec, images: int) -> tuple[Task, Candidate, WarmStart]:
    """The study's first guess on a dense network that was never trained: what it knows takes no more room."""
    shape = WORKLOADS[str(spec.model.label)].shape
    train, val = (Split(*random_images(shape, count)) for count in (images, images // 10))
    network = prepared(BY_NAME.maker(spec, 10, train.image_shape), train.image_shape, 10, spec.model)
    data = assemble("images", tuple("0123456789"), train, val, lambda: val)
    task = Task(data, network.make_model, network.choices, spec.train.batch)
    model = task.make_model()
    told = answers(model, train.batches(EVALUATION_BATCH))
    space = Space(spec, task.layer_shapes)
    start = WarmStart(model.state_dict(), task.validate(model), told)
    candidate = space.candidate(space.first_guess(), 0.9, seed=0)
    return task, candidate.model_copy(update={"frozen_epochs": EPOCHS}), start


# What is told --------------------------------------------------------------------------------------------------------


def growth_of(looks: list[int]) -> float:
    """The share that a study has grown by since its first look."""
    return looks[-1] / looks[FIRST_LOOK - 1] - 1.0


def growth_text(looks: list[int]) -> str:
    numbers = sorted({1, FIRST_LOOK, *range(FIRST_LOOK, len(looks), 60), len(looks)})
    told = table(["after trial", "resident, MB"], [[str(number), megabytes(looks[number - 1])] for number in numbers])
    grown = growth_of(looks)
    met = "met" if grown <= MOST_GROWTH else "not met"
    goal = (
        f"From trial {FIRST_LOOK} to trial {len(looks)} a study grows by {grown:.1%}, at most {MOST_GROWTH:.0%}: {met}."
    )
    return f"{told}\n\n{goal} Read after `gc.collect()` and the C library's `malloc_trim`."


def peak_text(peaks: dict[str, tuple[Memory, Memory]]) -> str:
    """The requirement is about the whole process; what is above the imports is told beside it."""
    lines, goals = [], []
    for network, (ours, bare) in peaks.items():
        pairs = [(each["base"], each["peak"], each["peak"] - each["base"]) for each in (ours, bare)]
        lines.append([network, "one trial", *map(megabytes, pairs[0])])
        lines.append([network, "bare loop, torch alone", *map(megabytes, pairs[1])])
        lines.append([network, "ratio", *(f"{mine / other:.2f}" for mine, other in zip(*pairs, strict=True))])
        beside = ours["peak"] / bare["peak"]
        met = "met" if beside <= MOST_BESIDE else "not met"
        images = f"{WORKLOADS[network].images:,} images"
        goals.append(
            f"- {network}, {images}: the peak is {beside:.2f} times the bare loop's, at most {MOST_BESIDE}: {met}."
        )
    told = table(["network", "", "after the imports, MB", "peak, MB", "peak above the imports, MB"], lines)
    return "\n\n".join([told, "\n".join(goals), optional_text()])


def optional_text() -> str:
    """What pandas and Optuna import besides, where it happens to be installed: tens of megabytes."""
    there = [name for name in ("pyarrow", "boto3") if importlib.util.find_spec(name)]
    return f"Optional packages that this environment has and a process imports: {', '.join(there) or 'none'}."


def megabytes(count: int) -> str:
    return f"{count / 2**20:.1f}"


if __name__ == "__main__":
    main()
