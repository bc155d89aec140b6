"""From a run folder to an export folder, without training again."""

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sca_search.config.study import StudySpec
from sca_search.data import AnySplit, DataSet, InputSpec
from sca_search.errors import DataError, RunError
from sca_search.export.folder import Exported, ExportOptions, check_target, export_network
from sca_search.export.graph.network import Images, Network
from sca_search.export.graph.records import Floats
from sca_search.export.integer.reference import CALIBRATION_IMAGES
from sca_search.export.state_dict import load_plain
from sca_search.models import MODELS, Maker
from sca_search.models.prepare import rebuilt
from sca_search.runs.candidates import FIGURES, exported_model, records_of
from sca_search.runs.folder import RunFolder
from sca_search.runs.goal import chosen_trial, goal_text, unmet
from sca_search.runs.integrity import damage_as_run_error
from sca_search.runs.trials import read_csv
from sca_search.system.machine import versions
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.task import BY_NAME, Source


def export_run(
    path: Path,
    trial: int | None,
    out: Path | None,
    options: ExportOptions,
    source: Source = BY_NAME,
    *,
    trust: bool = False,
) -> Exported:
    """Exports one trial of a run, by default the chosen one, into `out` or the run's own folder of exports."""
    run = RunFolder(path)
    spec = run.spec(trust=trust)
    row = trial_row(run, spec, trial)
    folder = out or run.path / "exports" / f"trial-{row['trial']:03d}"
    check_target(folder, replaced=options.replace)  # before the data is read, which may take a while
    options.say("reading the data")
    validation, training, problem = study_images(spec, source)
    if problem:
        options.say(f"the validation split cannot be read, so only test vectors are compared: {problem}")
    network = replace(found_network(run, spec, row, source), images=validation, training=training)
    return export_network(folder, network, options)


def study_images(spec: StudySpec, source: Source = BY_NAME) -> tuple[Images | None, Images | None, str]:
    """A study's validation split and some of its training split before normalization, or why there are none."""
    try:
        found = source.load(spec)
    except DataError as error:
        return None, None, str(error)
    labels = partial(_labels, found.val) if found.kind == "classes" else None
    count, some = len(found.val), min(len(found.train), CALIBRATION_IMAGES)
    validation = Images(count, partial(_as_given, found, found.val, count), labels)
    return validation, Images(some, partial(_as_given, found, found.train, some)), ""


def _as_given(data: DataSet, split: AnySplit, count: int) -> Iterator[Floats]:
    """The first inputs of a split before normalization."""
    shape = (-1, *[1] * (len(data.input_shape) - 1))
    mean, std = (np.array(values, dtype=np.float32).reshape(shape) for values in (data.input.mean, data.input.std))
    for images, *_ in split.batches(EVALUATION_BATCH):
        yield images.numpy()[:count] * std + mean
        count -= len(images)
        if count <= 0:
            return


def _labels(split: AnySplit) -> NDArray[np.int64]:
    return np.concatenate([labels.numpy() for _, labels, *_ in split.batches(EVALUATION_BATCH)])


def trial_row(run: RunFolder, spec: StudySpec, trial: int | None, to: str = "be exported") -> dict[str, Any]:
    """The trial's line in the table of trials, with `chosen_reason` if the goal selects it.

    RunError if there is none, or it cannot be used.
    """
    if not run.trials_file.is_file():
        raise RunError(f"{run.path}: no trial has finished yet, there is none to {to}")
    frame = read_csv(run.trials_file)
    choice = chosen_trial(frame, spec.goal, run.metric)
    number = trial if trial is not None else choice and choice.trial
    if number is None:
        raise RunError(f"{run.path}: {unmet(frame, spec.goal, run.metric)} Name a trial with --trial.")
    rows = frame[frame["trial"] == number].to_dict("records")
    if not rows:
        known = [str(each) for each in frame["trial"]]
        listed = ", ".join(known) if len(known) <= 40 else f"{known[0]} to {known[-1]}"
        raise RunError(f"{run.path}: there is no trial {number}; there are {listed}")
    row: dict[str, Any] = {str(key): value for key, value in rows[0].items()}
    row["chosen_reason"] = choice.reason if choice and choice.trial == number else ""
    if row["state"] != "complete":
        reason = f" ({row['reason']})" if row["reason"] else ""
        raise RunError(f"{run.path}: trial {number} must be complete to {to}, it is {row['state']}{reason}")
    candidate = row.get("candidate")
    if not isinstance(candidate, int | float) or not 0 <= candidate < 1e9 or candidate % 1:
        raise RunError(f"{run.trials_file}: trial {number} must name its candidate, an integer from 0")
    return row


def found_network(run: RunFolder, spec: StudySpec, row: dict[str, Any], source: Source = BY_NAME) -> Network:
    """The network of a trial or of its refit, as a study's summary selects it."""
    records = records_of(run, int(row["candidate"]))
    with damage_as_run_error(run.path, "exported"):
        best = exported_model(records, row, spec.goal, run.metric)
    state_file = best["folder"] / "model.safetensors"
    state, layers, inputs = load_plain(state_file)
    return Network(
        model=built(spec, inputs, state, best["folder"], source),
        input=inputs,
        ternary_layers=layers,
        claim={name: (count["zeros"], count["weights"]) for name, count in best["layers"].items()},
        about=_about(run, spec, row, best),
        study_toml=spec.to_toml(),
        state_file=state_file,
    )


def built(
    spec: StudySpec, inputs: InputSpec, state: dict[str, Any], where: Path, source: Source = BY_NAME
) -> nn.Module:
    """The study's network with a state; `where` is its location for error messages."""
    make = source.maker(spec, len(inputs.classes), inputs.input_shape)
    try:
        if source.model is None and spec.model.name in MODELS:
            _reject_larger(make, state)
        return rebuilt(make, state)
    except (RuntimeError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise RunError(f"{where}: the state is not that of a {spec.model.label}: {reason}") from error


def _reject_larger(make: Maker, state: dict[str, Any]) -> None:
    """RuntimeError if the network would be much larger than its state. The shape of its input comes from a file: a huge
    one would fill the memory before the two are compared."""
    try:
        with torch.device("meta"):
            required = sum(parameter.numel() for parameter in make().parameters())
    except TypeError as error:  # for sizes beyond 64 bits, with a long stack of addresses
        raise RuntimeError("its input has a size that no tensor can have") from error
    stored = sum(value.numel() for value in state.values())
    if required > 2 * stored:
        raise RuntimeError(f"for its input it would have {required:,} parameters, the state has {stored:,}")


def _about(run: RunFolder, spec: StudySpec, row: dict[str, Any], best: dict[str, Any]) -> dict[str, Any]:
    kind, colon, path = spec.data.name.partition(":")
    about: dict[str, Any] = {
        "study": run.path.resolve().name,
        "trial": int(row["trial"]),
        "seed_of_the_study": spec.seed,
        "goal": goal_text(spec, run.metric),
        "metric": run.metric,
        # without the folders of the user
        "data": f"{Path(kind).name}:{Path(path).name}" if colon else kind,
        "network": spec.model.label,
        "form": spec.search.form,
        "reason": row["chosen_reason"],
        **{name.replace("metric", "accuracy"): best[name] for name in FIGURES},
        "versions": versions(),
    }
    # Known at the end of a study: the dense network's metric, and the chosen trial's on the test split.
    try:
        summary = json.loads(run.summary_file.read_text(encoding="utf-8"))
        chosen, dense = summary["chosen"], summary["dense"]
        known = {"dense_accuracy": dense["metric"]}
        if chosen and chosen["trial"] == about["trial"]:
            if "test_metric" in chosen and chosen.get("refit") == about["refit"]:
                known |= {"test_metric": chosen["test_metric"], "test_images": chosen["test_images"]}
            known["examples"] = summary.get("examples", "images")
    except (OSError, ValueError, KeyError, TypeError):
        return about  # a study that is still running has none
    return about | known
