"""The end of a study: tables, choice, refit of the chosen candidate, the test split, features and summary."""

import contextlib
import json
import shutil
import statistics
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from sca_search.config.candidate import Candidate
from sca_search.config.costs import COST_COLUMNS
from sca_search.config.study import StudySpec
from sca_search.export.state_dict import count_zeros, counted_sparsity, load_plain
from sca_search.runs.candidates import FEATURES, best_of, records_of
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import aim_of, chosen_trial, limits_of
from sca_search.runs.integrity import damage_refused
from sca_search.runs.trials import front_area, measured, pareto_front, write_csv
from sca_search.study.budgets import CostMeter, Costs
from sca_search.study.candidates import keep
from sca_search.study.halving import rung_correlation, rung_epochs
from sca_search.study.sampler import derived_seed
from sca_search.system.files import atomic_path, write_json_atomic
from sca_search.system.memory import oom_as_limit_error
from sca_search.system.versions import versions
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.features import compare_features
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import Progress, Task, WarmStart
from sca_search.training.train import train_candidate, until_stopped

# A refit's seeds must not meet those of candidates, which derive from (study seed, candidate).
_REFIT = 1_000_000


def write_tables(run: RunFolder, spec: StudySpec, frame: pd.DataFrame) -> None:
    """trials.csv and front.csv, as far as the study has come."""
    chosen = chosen_trial(frame, spec.goal, run.metric)
    front = pareto_front(frame)
    write_csv(frame, run.trials_file)
    write_csv(front.assign(chosen=front["trial"] == chosen), run.front_file)


def refit(
    run: RunFolder,
    number: int,
    task: Task,
    start: WarmStart,
    index: int,
    progress: Progress,
    cost_meter: CostMeter | None = None,
) -> None:
    """Trains a candidate again with another seed; what is there already is not done again."""
    if (run.candidate(number, index) / "candidate.json").exists():
        return
    with damage_refused(run.candidate(number), "trained again"):
        known = Candidate.model_validate(records_of(run, number)[0]["candidate"])
    again = known.model_copy(update={"seed": derived_seed(known.seed, _REFIT + index)})
    with oom_as_limit_error():
        settled = train_candidate(again, task, start, progress)
    costs = cost_meter(settled.model, task) if cost_meter else Costs()
    keep(run, number, again, settled, task, costs, refit=index)


def summarize(
    run: RunFolder,
    spec: StudySpec,
    frame: pd.DataFrame,
    task: Task,
    start: WarmStart,
    seconds: float,
    stop_requested: Callable[[], bool] = lambda: False,
) -> dict[str, object]:
    """Exports the chosen model, reads the test split once, and writes summary.json.

    A study that was stopped has no test figures yet: it may go on, and whoever stopped it does not want to wait.

    The model exported is the best on validation among the chosen candidate and its refits; their mean is what a user
    may expect of the candidate, since the best of many on a small validation set flatters itself.
    """
    metric = task.metric.name
    trial = chosen_trial(frame, spec.goal, metric)
    summary: dict[str, object] = {
        "study": run.path.name,
        "goal": aim_of(spec, metric),
        "metric_name": metric,
        "task": task.data.kind,
        "examples": "images" if task.data.has_images else "examples",
        "target_sparsity": spec.goal.target_sparsity,
        "form": spec.search.form,
        "trials": int((frame["state"] == "complete").sum()),
        "failed": int((frame["state"] == "failed").sum()),
        "paused": int((frame["state"] == "paused").sum()),
        "rungs": _rungs(spec, frame),
        "hypervolume": front_area(pareto_front(frame), start.score.accuracy, metric),
        "seconds": round(seconds, 1),
        "versions": versions(),
        "dense": {"metric": start.score.accuracy},
        "sensitivity": json.loads(run.sensitivity_file.read_text()) if run.sensitivity_file.exists() else [],
        "chosen": None,
    }
    if trial is not None:
        summary |= {"chosen": _chosen(run, frame, trial, limits_of(spec.goal))}
        with contextlib.suppress(StopRequestedError):
            summary = _with_test(run, summary, task, start, stop_requested)
    write_json_atomic(run.summary_file, summary)
    return summary


def _rungs(spec: StudySpec, frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """How well each rung foretold the end."""
    finished = [
        {str(name): value for name, value in row.items() if pd.notna(value)}
        for row in measured(frame).to_dict("records")
    ]
    told = {epoch: rung_correlation(finished, epoch) for epoch in rung_epochs(spec.search.rungs, spec.train.epochs)}
    return {str(epoch): {"rank_correlation": found[0], "trials": found[1]} for epoch, found in told.items() if found}


def _chosen(run: RunFolder, frame: pd.DataFrame, trial: int, limits: Mapping[str, float]) -> dict[str, object]:
    row = frame[frame["trial"] == trial].iloc[0]
    number = int(row["candidate"])
    records = records_of(run, number)
    best = best_of(records, limits)
    with atomic_path(run.chosen_file) as temporary:
        shutil.copyfile(best["folder"] / "model.safetensors", temporary)
    counts = count_zeros(run.chosen_file)
    accuracies = [record["metric"] for record in records]
    return {
        "trial": trial,
        "candidate": number,
        "sparsity": counted_sparsity(run.chosen_file),
        "metric": best["metric"],
        "metric_mean": statistics.fmean(accuracies),
        "metric_spread": statistics.pstdev(accuracies),
        "seeds": len(accuracies),
        "moved_share": best["moved_share"],
        "sparsity_before_exact_step": best["sparsity_before"],
        "dead_layers": best["dead_layers"],
        "layers": {
            name: {"weights": count.weights, "zeros": count.zeros, "sparsity": count.sparsity}
            for name, count in counts.items()
        },
        **{name: best[name] for name in COST_COLUMNS if name in best},
        "file": run.chosen_file.name,
        "size_bytes": run.chosen_file.stat().st_size,
    }


def _with_test(
    run: RunFolder, summary: dict[str, Any], task: Task, start: WarmStart, stop_requested: Callable[[], bool]
) -> dict[str, object]:
    """The summary with what both networks are worth on the test split, and how like each other their features are."""
    if stop_requested():
        raise StopRequestedError
    chosen = summary["chosen"]
    networks = task.model_with(start.state), task.model_with(load_plain(run.chosen_file)[0])
    if task.data.has_images:
        validation = task.data.val.batches(EVALUATION_BATCH)
        features = compare_features(*networks, validation, task.data.name_of, task.ternary_layers)
        write_json_atomic(run.candidate(chosen["candidate"]) / FEATURES, features.as_json())
    test = task.data.read_test()
    dense, ours = (
        task.score(network, until_stopped(test.batches(EVALUATION_BATCH), stop_requested)) for network in networks
    )
    tested = {"test_metric": ours.accuracy, "test_images": len(test)}
    return summary | {"dense": summary["dense"] | {"test_metric": dense.accuracy}, "chosen": chosen | tested}
