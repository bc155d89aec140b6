"""Compares methods under equal conditions: the same data, warm start, trials and epochs.

Each method and seed has its own study. Methods that plan their sparsity train for the target; the sparsity of others
follows from their training. The best trial of each study on validation is evaluated on the test split once. A finished
study is a file and is not run again.
"""

import contextlib
import json
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from sca_search.config.load import differences
from sca_search.config.names import METHODS, SCA
from sca_search.config.study import StudySpec
from sca_search.errors import ExportError, RunError, SpecError, unknown_name
from sca_search.export.graph.records import Graph
from sca_search.export.latency.calibrate import graph_of, sampler_of
from sca_search.export.latency.timing import time_interleaved
from sca_search.export.packed.format import payload_bytes
from sca_search.export.state_dict import load_plain
from sca_search.runs.choice import choose
from sca_search.runs.folder import RunFolder, new_run
from sca_search.runs.log import note_command
from sca_search.runs.trials import read_csv
from sca_search.study.budgets import rest_bytes
from sca_search.study.events import StudyListener
from sca_search.study.pace import Say
from sca_search.study.session import run_study
from sca_search.study.setup import inputs_of, make_task, threads_of, warm_start
from sca_search.system.files import require_regular, write_json_atomic
from sca_search.system.signals import NEVER, StopToken
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import CachedSource, Task

SECONDS_PER_METHOD = 1.0


@dataclass(frozen=True)
class Comparison:
    """The methods, the study that they share, and the folder of the results."""

    base: StudySpec  # its goal is the target sparsity
    methods: tuple[str, ...]
    seeds: int
    folder: Path
    command: tuple[str, ...] = ()  # recorded in each study's folder

    def spec_of(self, method: str, seed: int) -> StudySpec:
        """A method's study: the common one, except for its goal and settings that only SCA has."""
        values = self.base.model_dump()
        target = self.base.goal.target_sparsity
        plans = METHODS[method].plans_sparsity
        values |= {"name": f"{method}-{seed}", "out": self.folder, "seed": self.base.seed + seed}
        values["goal"] = {"target_sparsity": target, "grid": False} if plans else {"front": True}
        values["search"] |= {"method": method, "refits": 0}
        if method != SCA:
            values["search"]["form"] = "decoupled"
        return StudySpec.model_validate(values)


@dataclass(frozen=True)
class MethodResult:
    """The result of a method with one seed; bytes are None where the network cannot be exported."""

    method: str
    seed: int
    trials: int
    failed: int
    epochs: int  # of all trials
    trial: int | None = None  # the best one; None where all failed
    reason: str = ""  # why this one
    metric: float | None = None
    test_metric: float | None = None
    sparsity: float | None = None
    ternary_bytes: int | None = None  # of the quantized weights
    file_bytes: int | None = None


_RESULT = TypeAdapter(MethodResult)


def chosen_methods(text: str) -> tuple[str, ...]:
    """'all', or names separated by commas; SpecError for an unknown name."""
    if text.strip() == "all":
        return tuple(METHODS)
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise SpecError("--methods must be all, or names separated by commas, got none")
    for name in names:
        if name not in METHODS:
            raise SpecError(f"--methods: {unknown_name('method', name, METHODS)}")
    return names


def run_comparison(
    comparison: Comparison,
    say: Say = lambda _line: None,
    listeners: Sequence[StudyListener] = (),
    stop: StopToken = NEVER,
) -> tuple[list[MethodResult], bool]:
    """Train what is missing, seed by seed; returns the results so far, and whether it was stopped."""
    source = CachedSource()
    results: list[MethodResult] = []
    cells = [(method, seed) for seed in range(comparison.seeds) for method in comparison.methods]
    for number, (method, seed) in enumerate(cells, start=1):
        spec, path = comparison.spec_of(method, seed), comparison.folder / f"{method}-{seed}.json"
        _reject_other(spec)
        if not path.exists():
            say(f"{number} of {len(cells)}: {method}, seed {seed}")
            try:
                result = _trained(comparison, spec, make_task(spec, source), seed, say, listeners, stop)
            except StopRequestedError:
                return results, True
            write_json_atomic(path, asdict(result))
        results.append(read_result(path))
    return results, False


def read_result(path: Path) -> MethodResult:
    """The result of a method that an earlier command wrote."""
    require_regular(path, RunError)
    try:
        return _RESULT.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # pydantic's are ValueErrors
        raise RunError(f"{path}: is not the result of a method; remove it to train it again") from error


def _run_of(spec: StudySpec) -> RunFolder:
    return RunFolder(spec.out / str(spec.name))


def _reject_other(spec: StudySpec) -> None:
    """The folder of another comparison must not be mixed with this one."""
    run = _run_of(spec)
    if run.spec_file.is_file() and (changed := differences(spec, run.spec(trust=True))):
        raise RunError(f"{run.path}: holds another study, it differs in {', '.join(changed)}; choose another --out")


def _trained(
    comparison: Comparison,
    spec: StudySpec,
    task: Task,
    seed: int,
    say: Say,
    listeners: Sequence[StudyListener],
    stop: StopToken,
) -> MethodResult:
    """The result of one study, which starts from the seed's common warm start. Raises StopRequestedError."""
    run, common = _run_of(spec), RunFolder(comparison.folder / f"dense-{seed}")
    if not common.dense_scores_file.exists():
        say(f"the dense network of seed {seed}")
        common.path.mkdir(parents=True, exist_ok=True)
        warm_start(common, spec, task, stop=stop)
    if not run.spec_file.is_file():
        run = new_run(spec)
    if not run.dense_scores_file.exists():
        shutil.copyfile(common.dense_file, run.dense_file)
        shutil.copyfile(common.dense_scores_file, run.dense_scores_file)
    note_command(run, comparison.command, threads_of(spec, task), inputs_of(spec, task))
    finished = run_study(run, spec, task, listeners, stop)
    if finished.stopped or stop.is_set():
        raise StopRequestedError
    return _measured(run, spec, task, seed)


def _measured(run: RunFolder, spec: StudySpec, task: Task, seed: int) -> MethodResult:
    frame, method = read_csv(run.trials_file), spec.search.method
    target = spec.goal.target_sparsity
    choice = choose(frame, target or 0.0, run.metric, or_sparser=target is None)
    result = MethodResult(
        method,
        seed,
        trials=int((frame["state"] == "complete").sum()),
        failed=int((frame["state"] == "failed").sum()),
        epochs=int(frame["epochs"].sum()),
    )
    if choice is None:
        return result
    row = frame[frame["trial"] == choice.trial].iloc[0]
    model = task.model_with(load_plain(run.candidate(int(row["candidate"])) / "model.safetensors")[0])
    tested = task.score(model, task.data.read_test().batches(EVALUATION_BATCH))
    payload = whole = None
    with contextlib.suppress(ExportError):
        graph = exported_graph(task, method, model)
        ternary = sum(payload_bytes(graph).values())
        payload, whole = ternary, ternary + rest_bytes(graph)
    return replace(
        result,
        trial=choice.trial,
        reason=choice.reason,
        metric=float(row["metric"]),
        test_metric=tested.accuracy,
        sparsity=float(row["sparsity"]),
        ternary_bytes=payload,
        file_bytes=whole,
    )


def exported_graph(task: Task, method: str, model: Any) -> Graph:
    """The records of a trained network; a dense one has no trits."""
    layers = () if METHODS[method].weights == "float" else None
    return graph_of(task, model.eval(), layers)


def times_ms(comparison: Comparison, results: Iterable[MethodResult], say: Say) -> dict[str, float]:
    """Milliseconds per image of each method's exported C on one thread, timed interleaved, for the first seed."""
    source, samplers = CachedSource(), {}
    for result in (each for each in results if each.seed == 0 and each.file_bytes is not None):
        spec = comparison.spec_of(result.method, 0)
        task = make_task(spec, source)
        run = _run_of(spec)
        frame = read_csv(run.trials_file)
        number = int(frame.loc[frame["trial"] == result.trial, "candidate"].iloc[0])
        model = task.model_with(load_plain(run.candidate(number) / "model.safetensors")[0])
        say(f"compiling {result.method}")
        samplers[result.method] = sampler_of(exported_graph(task, result.method, model))
    if not samplers:
        return {}
    say("timing")
    timed = time_interleaved(samplers, SECONDS_PER_METHOD * len(samplers))
    return {name: 1e3 * timing.low for name, timing in timed.each.items()}
