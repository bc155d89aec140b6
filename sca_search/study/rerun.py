"""Trains a trial again from its run folder and compares the result with the original, bit for bit.

Nothing in the run folder is changed. Identical bits can be expected of the same versions on the same machine with the
same number of threads. Elsewhere sums are computed in another order, and training amplifies rounding differences.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from sca_search.config.candidate import Candidate
from sca_search.errors import RunError
from sca_search.export.run import trial_row
from sca_search.export.state_dict import load_plain, save_plain
from sca_search.runs.candidates import RECORD, read_table, records_of
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import machine
from sca_search.study.halving import rung_epochs
from sca_search.study.setup import make_task, read_warm_start, threads_of
from sca_search.system.machine import versions
from sca_search.system.signals import NEVER, StopToken
from sca_search.training.task import Rungs, Task, TrainedCandidate
from sca_search.training.train import train_candidate

_MOST_THREADS = 1024  # a larger number means a damaged file


@dataclass(frozen=True)
class Difference:
    """A tensor that differs in `values` of its numbers; in all of them if the shape differs."""

    tensor: str
    values: int
    is_ternary: bool


@dataclass(frozen=True)
class Rerun:
    """The original training compared with the new one."""

    trial: int
    refit: int  # 0: the trial itself
    tensors: int
    trits: int
    differences: tuple[Difference, ...]
    metric: str
    accuracy_then: float
    accuracy_now: float
    changed: Mapping[str, tuple[str, str]]  # threads, machine and versions that differ from the run's

    @property
    def trits_differing(self) -> int:
        return sum(each.values for each in self.differences if each.is_ternary)


def rerun(
    path: Path,
    trial: int | None,
    refit: int,
    say: Callable[[str], None],
    stop: StopToken = NEVER,
    *,
    trust: bool = False,
) -> Rerun:
    """Train a trial, by default the chosen one, or one of its refits again."""
    run = RunFolder(path)
    spec = run.spec(trust=trust)
    row = trial_row(run, spec, trial, to="be trained again")
    number = int(row["candidate"])
    record = _record(run, number, refit)
    candidate = _candidate(record)
    then = load_plain(record["folder"] / "model.safetensors")
    start = read_warm_start(run)
    say("reading data and network")
    task = make_task(spec)
    made = training_environment(run, record)
    torch.set_num_threads(made.get("threads") or threads_of(spec, task))
    changed = changed_since(made)
    say(f"training trial {row['trial']}{f', refit {refit}' if refit else ''} again")
    # The evaluation at a rung splits the training, so a trial needs the same rungs again; refits have none.
    rungs = Rungs(() if refit else rung_epochs(spec.search.rungs, spec.train.epochs))
    trained = train_candidate(candidate, task, start, stop=stop, rungs=rungs)
    now = _as_written(trained, task)
    return Rerun(
        trial=int(row["trial"]),
        refit=refit,
        tensors=len(then[0].keys() | now.keys()),
        trits=sum(then[0][f"{layer}.weight"].numel() for layer in then[1]),
        differences=compared(then[0], now, {f"{layer}.weight" for layer in then[1]}),
        metric=task.metric.name,
        accuracy_then=float(record["metric"]),
        accuracy_now=trained.score.accuracy,
        changed=changed,
    )


def compared(then: Mapping[str, Tensor], now: Mapping[str, Tensor], ternary: set[str]) -> tuple[Difference, ...]:
    """The tensors that are not bit-identical."""
    counts = {name: _differing(then.get(name), now.get(name)) for name in sorted(then.keys() | now.keys())}
    return tuple(Difference(name, count, name in ternary) for name, count in counts.items() if count)


def _differing(then: Tensor | None, now: Tensor | None) -> int:
    if then is None or now is None or then.shape != now.shape or then.dtype != now.dtype:
        return max(1, *(each.numel() for each in (then, now) if each is not None))
    # As bytes: NaN != NaN, and -0 == 0.
    one, other = (each.contiguous().reshape(-1, 1).view(torch.uint8) for each in (then, now))
    return int((one != other).any(dim=1).sum())


def _record(run: RunFolder, number: int, refit: int) -> dict[str, Any]:
    records = records_of(run, number)
    folder = run.candidate(number, refit)
    found = next((each for each in records if each["folder"] == folder), None)
    if found is None:
        known = [each["folder"].name.removeprefix("refit-") for each in records[1:]]
        raise RunError(f"{folder}: there is no such refit; the trial has {', '.join(known) or 'none'}")
    return found


def _candidate(record: Mapping[str, Any]) -> Candidate:
    try:
        return Candidate.model_validate(record.get("candidate"))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, ("candidate", *fault["loc"])))
        where = record["folder"] / "candidate.json"
        raise RunError(f"{where}: {place} cannot be used: {fault['msg']}, got {str(fault['input'])[:80]}") from error


def _as_written(trained: TrainedCandidate, task: Task) -> dict[str, Tensor]:
    """The tensors as the trial's file would hold them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_plain(path, trained.model, trained.baked_layers, task.data.input)
        return load_plain(path)[0]


def training_environment(run: RunFolder, record: Mapping[str, Any]) -> dict[str, Any]:
    """Threads, machine and versions of a trial; those of the run's newest command where its record has none."""
    where, made = record["folder"] / RECORD, record.get("training_environment")
    if not isinstance(made, dict):
        where, made = run.about_file, read_table(run.about_file)
    threads = made.get("threads")
    if threads is not None and (type(threads) is not int or not 1 <= threads <= _MOST_THREADS):
        raise RunError(f"{where}: threads must be from 1 to {_MOST_THREADS}, got {str(threads)[:80]}")
    return made


def changed_since(made: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What is recorded of a training and differs now."""
    then: dict[str, Any] = {"threads": made.get("threads")}
    for part in ("machine", "versions"):
        then |= values if isinstance(values := made.get(part), dict) else {}
    now = {"threads": torch.get_num_threads()} | machine() | versions()
    known = {name: (str(then[name]), str(value)) for name, value in now.items() if then.get(name) is not None}
    return {name: both for name, both in known.items() if both[0] != both[1]}
