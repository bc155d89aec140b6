"""Results of a study: candidate folders, tables, refits of the chosen candidate, the test split and the summary.

A candidate's folder holds its model, its history and its record. Refits have folders below it.
"""

import contextlib
import csv
import dataclasses
import io
import json
import shutil
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from sca_search.config.candidate import Candidate
from sca_search.config.costs import COST_COLUMNS, TERNARY_SIZE
from sca_search.config.study import StudySpec
from sca_search.errors import CodeError, DivergenceError, LimitError
from sca_search.export.packed.trit_code import encode_trits
from sca_search.export.state_dict import count_zeros, counted_sparsity, load_plain, save_plain
from sca_search.runs.candidates import (
    DISTRIBUTION,
    FEATURES,
    FIGURES,
    HISTORY,
    MODEL,
    RECORD,
    damage_of,
    exported_model,
    records_of,
)
from sca_search.runs.choice import Choice
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import chosen_trial, goal_text
from sca_search.runs.integrity import damage_as_run_error
from sca_search.runs.log import logger, training_environment
from sca_search.runs.trials import front_area, measured, pareto_front, write_csv
from sca_search.study.budgets import Costs
from sca_search.study.events import Emit, Note, RefitEpoch
from sca_search.study.halving import rung_correlation, rung_epochs
from sca_search.study.sampler import derived_seed
from sca_search.system.files import atomic_path, staged_files, write_json_atomic, write_text_atomic
from sca_search.system.machine import versions
from sca_search.system.signals import NEVER, StopToken, StopWhen
from sca_search.ternary.parametrize import zero_counts
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.features import compare_features
from sca_search.training.fit import StopRequestedError
from sca_search.training.task import Epoch, Snapshot, TrainedCandidate
from sca_search.training.train import train_candidate, until_stopped

if TYPE_CHECKING:
    from sca_search.study.setup import StudyContext

# Errors that end a training but not its study.
FAILURES = (CodeError, DivergenceError, LimitError)
# Seeds of refits must differ from those of candidates, which derive from (study seed, candidate).
_REFIT = 1_000_000
_ALWAYS: AbstractContextManager[None] = contextlib.nullcontext()


def write_candidate(
    context: "StudyContext",
    number: int,
    candidate: Candidate,
    trained: TrainedCandidate,
    refit: int = 0,
    publishing: AbstractContextManager[None] = _ALWAYS,
) -> dict[str, Any]:
    """Write a candidate's folder with its measured costs, and return its figures: those that are also the trial's.

    Measuring and writing take long. The files appear in the folder while `publishing`, which may raise, is entered.
    """
    costs = context.costs_of(trained.model)
    # The record comes last: if it exists, the candidate is complete.
    with staged_files(context.run.candidate(number, refit), RECORD, publishing) as folder:
        return _write_files(context, folder, candidate, trained, costs)


def _write_files(
    context: "StudyContext", folder: Path, candidate: Candidate, trained: TrainedCandidate, costs: Costs
) -> dict[str, Any]:
    write_text_atomic(folder / HISTORY, history_csv(trained.history))
    write_text_atomic(folder / DISTRIBUTION, distribution_json(trained.snapshots))
    model_file = folder / MODEL
    save_plain(model_file, trained.model, trained.baked_layers, context.task.data.input, trained.pruned_layers)
    # Counts in the written file.
    state, layers, _ = load_plain(model_file)
    layer_bytes = {name: len(encode_trits(state[f"{name}.weight"].numpy().astype(np.int8))) for name in layers}
    error = trained.score.error
    figures = {
        "sparsity": counted_sparsity(model_file),
        TERNARY_SIZE.key: sum(layer_bytes.values()),
        **({} if error is None else {"metric_error": error}),
        "loss": trained.score.loss,
        "soft_metric": trained.soft_metric,
        "rounded_metric": trained.rounded_metric,
        "adjusted_fraction": trained.adjusted_fraction,
        "sparsity_before": trained.sparsity_before,
        **costs.figures,
    }
    record = {
        "candidate": candidate.model_dump(mode="json"),
        "training_environment": training_environment(torch.get_num_threads()),  # of this command on this machine
        "metric": trained.score.accuracy,
        **figures,
        "strength_unit": trained.unit,
        "alphas": trained.alphas,
        "dead_layers": trained.dead_layers,
        "achieved": trained.achieved,
        "layers": {
            name: dataclasses.asdict(count) | dict(costs.layers.get(name, {})) | {TERNARY_SIZE.key: layer_bytes[name]}
            for name, count in zero_counts(trained.baked_trits()).items()
        },
    }
    write_json_atomic(folder / RECORD, record)
    return figures


def history_csv(history: tuple[Epoch, ...]) -> str:
    """The epochs of a training as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*(each.name for each in dataclasses.fields(Epoch)), "gap"])
    writer.writeheader()
    writer.writerows(dataclasses.asdict(epoch) | {"gap": epoch.gap} for epoch in history)
    return text.getvalue()


def distribution_json(snapshots: tuple[Snapshot, ...]) -> str:
    """One line per epoch: programs read the counts, and one line per number would take three times the space."""
    lines = [json.dumps(dataclasses.asdict(each), allow_nan=False) for each in snapshots]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def write_tables(run: RunFolder, spec: StudySpec, frame: pd.DataFrame) -> Choice | None:
    """Write trials.csv and front.csv with the trials so far; returns the chosen one."""
    choice = chosen_trial(frame, spec.goal, run.metric)
    front = pareto_front(frame)
    write_csv(frame, run.trials_file)
    write_csv(front.assign(chosen=front["trial"] == (choice and choice.trial)), run.front_file)
    return choice


def refit(context: "StudyContext", number: int, index: int, emit: Emit, stop: StopToken) -> None:
    """Train a candidate again with another seed, unless an earlier command has done so. A failure is reported."""
    run, name = context.run, f"refit {index} of candidate {number}"
    if damage_of(run.candidate(number, index)) is None:
        return
    with damage_as_run_error(run.candidate(number), "trained again"):
        first = Candidate.model_validate(records_of(run, number)[0]["candidate"])
    again = first.model_copy(update={"seed": derived_seed(first.seed, _REFIT + index)})
    limited = within(context.spec.search.trial_time, stop)
    try:
        trained = train_candidate(
            again, context.task, context.warm_start, lambda epoch: emit(RefitEpoch(index, epoch)), limited
        )
        write_candidate(context, number, again, trained, refit=index)
    except FAILURES as error:
        logger.warning("%s failed", name, exc_info=True)
        emit(Note(f"{name} failed and is left out: {error}"))


def within(seconds: float | None, stop: StopToken) -> StopToken:
    """A stop token that also ends a training that takes longer than a trial may."""
    began = time.monotonic()

    def is_over() -> bool:
        if seconds is not None and time.monotonic() - began > seconds:
            raise LimitError(f"took longer than its {seconds:g} s")
        return stop.is_set()

    return StopWhen(is_over)


def summarize(
    context: "StudyContext", frame: pd.DataFrame, choice: Choice | None, seconds: float, stop: StopToken = NEVER
) -> dict[str, Any]:
    """Copy the chosen model, evaluate it on the test split once, and write summary.json.

    A study that was stopped is not tested yet: it may be resumed, and the user does not want to wait.
    """
    run, spec, task, start = context.run, context.spec, context.task, context.warm_start
    metric = task.metric.name
    summary: dict[str, Any] = {
        "study": run.path.name,
        "goal": goal_text(spec, metric),
        "metric_name": metric,
        "task": task.data.kind,
        "examples": "images" if task.data.input.is_image else "examples",
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
        "sensitivity": json.loads(run.sensitivity_file.read_text(encoding="utf-8"))
        if run.sensitivity_file.exists()
        else [],
        "chosen": None,
    }
    if choice is not None:
        summary |= {"chosen": _chosen(run, spec, frame, choice)}
        with contextlib.suppress(StopRequestedError):
            summary = _with_test(context, summary, stop)
    write_json_atomic(run.summary_file, summary)
    return summary


def _rungs(spec: StudySpec, frame: pd.DataFrame) -> dict[str, dict[str, float]]:
    """How well the loss at each rung predicted the final loss."""
    finished = [
        {str(name): value for name, value in row.items() if pd.notna(value)}
        for row in measured(frame).to_dict("records")
    ]
    found = {epoch: rung_correlation(finished, epoch) for epoch in rung_epochs(spec.search.rungs, spec.train.epochs)}
    return {str(epoch): {"rank_correlation": each[0], "trials": each[1]} for epoch, each in found.items() if each}


def _chosen(run: RunFolder, spec: StudySpec, frame: pd.DataFrame, choice: Choice) -> dict[str, object]:
    row = {str(name): value for name, value in frame[frame["trial"] == choice.trial].iloc[0].items()}
    number = int(row["candidate"])
    best = exported_model(records_of(run, number), row, spec.goal, run.metric)
    with atomic_path(run.chosen_file) as temporary:
        shutil.copyfile(best["folder"] / MODEL, temporary)
    counts = count_zeros(run.chosen_file)
    return {
        "trial": choice.trial,
        "candidate": number,
        "reason": choice.reason,
        "sparsity": counted_sparsity(run.chosen_file),
        **{name: best[name] for name in FIGURES},
        "adjusted_fraction": best["adjusted_fraction"],
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


def _with_test(context: "StudyContext", summary: dict[str, Any], stop: StopToken) -> dict[str, Any]:
    """The summary with both networks' scores on the test split; also writes the comparison of their features."""
    if stop.is_set():
        raise StopRequestedError
    run, task, chosen = context.run, context.task, summary["chosen"]
    networks = task.model_with(context.warm_start.state), task.model_with(load_plain(run.chosen_file)[0])
    if task.data.input.is_image:
        validation = task.data.val.batches(EVALUATION_BATCH)
        features = compare_features(*networks, validation, task.data.name_of, task.ternary_layers)
        write_json_atomic(run.candidate(chosen["candidate"]) / FEATURES, dataclasses.asdict(features))
    test = task.data.read_test()
    dense, ours = (task.score(network, until_stopped(test.batches(EVALUATION_BATCH), stop)) for network in networks)
    tested = {"test_metric": ours.accuracy, "test_images": len(test)}
    return summary | {"dense": summary["dense"] | {"test_metric": dense.accuracy}, "chosen": chosen | tested}
