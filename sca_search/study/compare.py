"""Methods under equal conditions: the same data, warm start, trials and epochs for each, one study a method and seed.

A method that plans its sparsity trains for the one asked for; the others end where they land. Of each study's trials
the best on validation counts, and is read on the test split once. A finished study is a file and is not run again.
"""

import json
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sca_search.config.load import differences
from sca_search.config.names import METHODS, NOT_IMPLEMENTED, SCA
from sca_search.config.study import StudySpec
from sca_search.errors import ExportError, RunError, SpecError, unknown_name
from sca_search.export.graph.records import Graph
from sca_search.export.latency.calibrate import graph_of, sampler_of
from sca_search.export.latency.timing import time_in_turns
from sca_search.export.packed.format import payload_bytes
from sca_search.export.state_dict import load_plain
from sca_search.runs.folder import RunFolder, new_run
from sca_search.runs.provenance import note_command
from sca_search.runs.trials import choose, most_accurate, read_csv
from sca_search.study.budgets import rest_bytes
from sca_search.study.run import make_task, run_study
from sca_search.study.setup import warm_start
from sca_search.study.watching import Watcher
from sca_search.study.workers import threads_of
from sca_search.system.files import write_json_atomic
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.fit import StopRequestedError
from sca_search.training.source import OnceRead
from sca_search.training.task import Progress, Task

SECONDS_A_METHOD = 1.0


@dataclass(frozen=True)
class Contest:
    """Who takes part, for which study, and where it is kept."""

    base: StudySpec  # its goal is the target sparsity
    methods: tuple[str, ...]
    seeds: int
    folder: Path
    command: tuple[str, ...] = ()  # as it was given, to be noted in each study's folder

    def spec_of(self, method: str, seed: int) -> StudySpec:
        """A method's study: the common one, but for its goal and what only SCA has."""
        values = self.base.model_dump()
        target = self.base.goal.target_sparsity
        plans = METHODS[method].plans_sparsity
        values |= {"name": f"{method}-{seed}", "out": self.folder, "seed": self.base.seed + seed}
        values["goal"] = {"target_sparsity": target, "grid": False} if plans else {"front": True}
        values["search"] |= {"method": method, "refits": 0}
        if method != SCA:
            values["search"]["form"] = "sharpened"
        return StudySpec.model_validate(values)


@dataclass(frozen=True)
class Entry:
    """What a method gave with one seed; bytes are None where the network cannot be exported."""

    method: str
    seed: int
    trials: int
    failed: int
    epochs: int  # of all trials
    trial: int | None = None  # the one that counts; None where all failed
    metric: float | None = None
    test_metric: float | None = None
    sparsity: float | None = None
    ternary_bytes: int | None = None  # of the few-valued weights
    file_bytes: int | None = None


_ENTRY = TypeAdapter(Entry)


def chosen_methods(given: str) -> tuple[str, ...]:
    """'all', or names with commas between them; SpecError for one that is not there."""
    if given.strip() == "all":
        return tuple(METHODS)
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    if not names:
        raise SpecError("--methods must be all, or names with commas between them, got none")
    for name in names:
        if name in NOT_IMPLEMENTED:
            raise SpecError(f"--methods: {name} is not done, since {NOT_IMPLEMENTED[name]}")
        if name not in METHODS:
            raise SpecError(f"--methods: {unknown_name('method', name, METHODS)}")
    return names


def run_contest(contest: Contest, watcher: Watcher) -> tuple[list[Entry], bool]:
    """Trains what is missing, seed by seed; the entries there are, and whether it was stopped."""
    source = OnceRead()
    entries: list[Entry] = []
    cells = [(method, seed) for seed in range(contest.seeds) for method in contest.methods]
    for number, (method, seed) in enumerate(cells, start=1):
        spec = contest.spec_of(method, seed)
        known = _read_entry(contest, method, seed)
        if known is None:
            watcher.say(f"{number} of {len(cells)}: {method}, seed {seed}")
            task = make_task(spec, source)
            run = _run_of(contest, spec, task, seed, watcher)
            if run is None:
                return entries, True
            note_command(run, contest.command, threads_of(spec, task))
            with watcher.audience(spec, task) as audience:
                finished = run_study(run, spec, task, replace(audience, stop_requested=watcher.stop_requested))
            if finished.stopped or watcher.stop_requested():
                return entries, True
            known = _measured(run, spec, task, method, seed)
            write_json_atomic(_entry_file(contest, method, seed), asdict(known))
        entries.append(known)
    return entries, False


def _entry_file(contest: Contest, method: str, seed: int) -> Path:
    return contest.folder / f"{method}-{seed}.json"


def _read_entry(contest: Contest, method: str, seed: int) -> Entry | None:
    path = _entry_file(contest, method, seed)
    if not path.exists():
        return None
    _refuse_other(contest.spec_of(method, seed))
    return read_entry(path)


def read_entry(path: Path) -> Entry:
    """What a method gave, as an earlier command wrote it."""
    try:
        return _ENTRY.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # pydantic's are ValueErrors
        raise RunError(f"{path}: is not the result of a method; remove it to train it again") from error


def _refuse_other(spec: StudySpec) -> None:
    """A folder of another comparison is not mixed with this one."""
    run = RunFolder(spec.out / str(spec.name))
    if run.spec_file.is_file() and (changed := differences(spec, run.spec())):
        raise RunError(f"{run.path}: holds another study, it differs in {', '.join(changed)}; choose another --out")


def _run_of(contest: Contest, spec: StudySpec, task: Task, seed: int, watcher: Watcher) -> RunFolder | None:
    """The study's folder with the seed's common warm start in it; None where its training was stopped."""
    _refuse_other(spec)
    run = RunFolder(spec.out / str(spec.name))
    common = RunFolder(contest.folder / f"dense-{seed}")
    if not common.dense_scores_file.exists():
        watcher.say(f"the dense network of seed {seed}")
        common.path.mkdir(parents=True, exist_ok=True)
        try:
            warm_start(common, spec, task, Progress(stop_requested=watcher.stop_requested))
        except StopRequestedError:
            return None
    if not run.spec_file.is_file():
        run = new_run(spec)
    if not run.dense_scores_file.exists():
        shutil.copyfile(common.dense_file, run.dense_file)
        shutil.copyfile(common.dense_scores_file, run.dense_scores_file)
    return run


def _measured(run: RunFolder, spec: StudySpec, task: Task, method: str, seed: int) -> Entry:
    frame = read_csv(run.trials_file)
    target = spec.goal.target_sparsity
    trial = most_accurate(frame, 0.0) if target is None else choose(frame, target)
    entry = Entry(
        method,
        seed,
        trials=int((frame["state"] == "complete").sum()),
        failed=int((frame["state"] == "failed").sum()),
        epochs=int(frame["epochs"].sum()),
    )
    if trial is None:
        return entry
    row = frame[frame["trial"] == trial].iloc[0]
    model = task.model_with(load_plain(run.candidate(int(row["candidate"])) / "model.safetensors")[0])
    tested = task.score(model, task.data.read_test().batches(EVALUATION_BATCH))
    packed, whole = _bytes(task, method, model)
    return replace(
        entry,
        trial=trial,
        metric=float(row["metric"]),
        test_metric=tested.accuracy,
        sparsity=float(row["sparsity"]),
        ternary_bytes=packed,
        file_bytes=whole,
    )


def _bytes(task: Task, method: str, model: Any) -> tuple[int | None, int | None]:
    try:
        graph = exported_graph(task, method, model)
    except ExportError:
        return None, None
    payload = sum(payload_bytes(graph).values())
    return payload, payload + rest_bytes(graph)


def exported_graph(task: Task, method: str, model: Any) -> Graph:
    """The records of a trained network; a dense one has no trits."""
    layers = () if METHODS[method].weights == "float" else None
    return graph_of(task, model.eval(), layers)


def times_ms(contest: Contest, entries: Iterable[Entry], watcher: Watcher) -> dict[str, float]:
    """Milliseconds of each method's exported C on one thread, one image, taken in turns: of the first seed."""
    source, samplers = OnceRead(), {}
    for entry in (each for each in entries if each.seed == 0 and each.file_bytes is not None):
        spec = contest.spec_of(entry.method, 0)
        task = make_task(spec, source)
        run = RunFolder(spec.out / str(spec.name))
        frame = read_csv(run.trials_file)
        number = int(frame.loc[frame["trial"] == entry.trial, "candidate"].iloc[0])
        model = task.model_with(load_plain(run.candidate(number) / "model.safetensors")[0])
        watcher.say(f"compiling {entry.method}")
        samplers[entry.method] = sampler_of(exported_graph(task, entry.method, model))
    if not samplers:
        return {}
    watcher.say("timing")
    timed = time_in_turns(samplers, SECONDS_A_METHOD * len(samplers))
    return {name: 1e3 * timing.low for name, timing in timed.each.items()}
