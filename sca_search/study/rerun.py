"""A trial trained again from what its run folder holds, and compared with what it gave then, bit for bit.

Nothing in the run folder is changed. The same bits can be expected of the same versions on the same machine with as
many threads; elsewhere sums are added in another order, and a training enlarges the last digit's difference.
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
from sca_search.config.study import StudySpec
from sca_search.errors import RunError
from sca_search.export.run import trial_row
from sca_search.export.state_dict import load_plain, save_plain
from sca_search.runs.candidates import RECORD, read_table, records_of
from sca_search.runs.folder import RunFolder
from sca_search.runs.provenance import machine
from sca_search.study.halving import rung_epochs
from sca_search.study.setup import make_task, read_warm_start
from sca_search.study.workers import threads_of
from sca_search.system.versions import versions
from sca_search.training.task import Progress, Rungs, Settled, Task
from sca_search.training.train import train_candidate

_MOST_THREADS = 1024  # more are a damaged file's


@dataclass(frozen=True)
class Difference:
    """A tensor that came out otherwise; `values` of its numbers differ, all of them where its shape does."""

    tensor: str
    values: int
    is_ternary: bool


@dataclass(frozen=True)
class Rerun:
    """Then and now."""

    trial: int
    refit: int  # 0: the trial itself
    tensors: int
    trits: int
    differences: tuple[Difference, ...]
    metric: str
    accuracy_then: float
    accuracy_now: float
    changed: Mapping[str, tuple[str, str]]  # threads, machine and versions that are not those of the run

    @property
    def same(self) -> bool:
        return not self.differences

    @property
    def trits_differing(self) -> int:
        return sum(each.values for each in self.differences if each.is_ternary)


def rerun(path: Path, trial: int | None, refit: int, say: Callable[[str], None], progress: Progress) -> Rerun:
    """Trains a trial, by default the chosen one, or one of its refits once more."""
    run = RunFolder(path)
    spec = run.spec()
    row = trial_row(run, spec, trial, to="be trained again")
    number = int(row["candidate"])
    record = _record(run, number, refit)
    candidate = _candidate(record)
    then = load_plain(record["folder"] / "model.safetensors")
    start = read_warm_start(run)
    say("reading data and network")
    task = make_task(_without_prior(spec))
    made = made_with(run, record)
    torch.set_num_threads(made.get("threads") or threads_of(spec, task))
    changed = changed_since(made)
    say(f"training trial {row['trial']}{f', refit {refit}' if refit else ''} again")
    # A look at a rung ends a leg of the training, so that a trial is looked at where it was; refits never are.
    rungs = Rungs(() if refit else rung_epochs(spec.search.rungs, spec.train.epochs))
    settled = train_candidate(candidate, task, start, progress, rungs)
    now = _as_written(settled, task)
    return Rerun(
        trial=int(row["trial"]),
        refit=refit,
        tensors=len(then[0].keys() | now.keys()),
        trits=sum(then[0][f"{layer}.weight"].numel() for layer in then[1]),
        differences=compared(then[0], now, {f"{layer}.weight" for layer in then[1]}),
        metric=task.metric.name,
        accuracy_then=float(record["metric"]),
        accuracy_now=settled.score.accuracy,
        changed=changed,
    )


def compared(then: Mapping[str, Tensor], now: Mapping[str, Tensor], ternary: set[str]) -> tuple[Difference, ...]:
    """The tensors that are not the same to the last bit."""
    counts = {name: _differing(then.get(name), now.get(name)) for name in sorted(then.keys() | now.keys())}
    return tuple(Difference(name, count, name in ternary) for name, count in counts.items() if count)


def _differing(then: Tensor | None, now: Tensor | None) -> int:
    if then is None or now is None or then.shape != now.shape or then.dtype != now.dtype:
        return max(1, *(each.numel() for each in (then, now) if each is not None))
    # As bytes: a NaN is unlike itself, and -0 like 0.
    one, other = (each.contiguous().reshape(-1, 1).view(torch.uint8) for each in (then, now))
    return int((one != other).any(dim=1).sum())


def _record(run: RunFolder, number: int, refit: int) -> dict[str, Any]:
    records = records_of(run, number)
    wanted = run.candidate(number, refit)
    found = next((each for each in records if each["folder"] == wanted), None)
    if found is None:
        known = [each["folder"].name.removeprefix("refit-") for each in records[1:]]
        raise RunError(f"{wanted}: there is no such refit; the trial has {', '.join(known) or 'none'}")
    return found


def _candidate(record: Mapping[str, Any]) -> Candidate:
    try:
        return Candidate.model_validate(record.get("candidate"))
    except ValidationError as error:
        fault = error.errors()[0]
        place = ".".join(map(str, ("candidate", *fault["loc"])))
        where = record["folder"] / "candidate.json"
        raise RunError(f"{where}: {place} cannot be used: {fault['msg']}, got {str(fault['input'])[:80]}") from error


def _without_prior(spec: StudySpec) -> StudySpec:
    """What the prior was asked for is in the candidate; its file may be gone."""
    return spec.model_copy(update={"search": spec.search.model_copy(update={"prior": None})})


def _as_written(settled: Settled, task: Task) -> dict[str, Tensor]:
    """The tensors as the trial's file would hold them."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        save_plain(path, settled.model, settled.baked_layers, {"kind": task.data.kind})
        return load_plain(path)[0]


def made_with(run: RunFolder, record: Mapping[str, Any]) -> dict[str, Any]:
    """Threads, machine and versions of a trial; those of the run's newest command where its record has none of them."""
    told = record.get("made_with")
    where, made = (
        (record["folder"] / RECORD, told) if isinstance(told, dict) else (run.about_file, read_table(run.about_file))
    )
    threads = made.get("threads")
    if threads is not None and (type(threads) is not int or not 1 <= threads <= _MOST_THREADS):
        raise RunError(f"{where}: threads must be from 1 to {_MOST_THREADS}, got {str(threads)[:80]}")
    return made


def changed_since(made: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What is said of a training and is not so now; of what is not said, nothing is known."""
    then: dict[str, Any] = {"threads": made.get("threads")}
    for part in ("machine", "versions"):
        then |= told if isinstance(told := made.get(part), dict) else {}
    now = {"threads": torch.get_num_threads()} | machine() | versions()
    known = {name: (str(then[name]), str(value)) for name, value in now.items() if then.get(name) is not None}
    return {name: both for name, both in known.items() if both[0] != both[1]}
