"""A candidate's folder, written and read: its model, its history and its record; refits lie in folders below it."""

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sca_search.candidate import Candidate
from sca_search.errors import RunError
from sca_search.export.plain import count_zeros, save_plain
from sca_search.files import write_json_atomic, write_text_atomic
from sca_search.run_folder import RunFolder
from sca_search.task import Epoch, Settled, Task
from sca_search.ternary import total


def facts(settled: Settled) -> dict[str, float]:
    """The figures of a candidate beside its two objectives."""
    return {
        "loss": settled.score.loss,
        "soft_accuracy": settled.soft_accuracy,
        "rounded_accuracy": settled.rounded_accuracy,
        "moved_share": settled.moved_share,
        "sparsity_before": settled.sparsity_before,
    }


def keep(
    run: RunFolder,
    number: int,
    candidate: Candidate,
    settled: Settled,
    task: Task,
    taken: Mapping[str, float],
    refit: int = 0,
) -> float:
    """Writes a candidate's folder, with what was measured that the network takes, and gives its sparsity, counted in
    the file written."""
    folder = run.candidate(number, refit)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomic(folder / "history.csv", history_csv(settled.history))
    model_file = folder / "model.safetensors"
    about = {
        "input_shape": task.data.input_shape,
        "classes": task.data.classes,
        "mean": task.data.mean,
        "std": task.data.std,
    }
    save_plain(model_file, settled.model, task.ternary_layers, about)
    counted = total(count_zeros(model_file)).sparsity
    record = {
        "candidate": candidate.model_dump(mode="json"),
        "accuracy": settled.score.accuracy,
        "sparsity": counted,
        **facts(settled),
        **taken,
        "strength_unit": settled.unit,
        "alphas": settled.alphas,
        "dead_layers": settled.dead_layers,
        "reached": settled.reached,
        "layers": {name: dataclasses.asdict(count) for name, count in settled.counts.items()},
    }
    # The record comes last: where it is, the candidate is whole.
    write_json_atomic(_record_file(folder), record)
    return counted


def history_csv(history: tuple[Epoch, ...]) -> str:
    """A training's epochs as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*(each.name for each in dataclasses.fields(Epoch)), "gap"])
    writer.writeheader()
    writer.writerows(dataclasses.asdict(epoch) | {"gap": epoch.gap} for epoch in history)
    return text.getvalue()


def records_of(run: RunFolder, number: int) -> list[dict[str, Any]]:
    """The records of a candidate and of its refits, each with its `folder`; a refit that was cut short has none."""
    home = run.candidate(number)
    found = [_record(folder) for folder in (home, *sorted(home.glob("refit-*"))) if _record_file(folder).is_file()]
    if not found:
        raise RunError(f"{home}: the candidate's files are missing")
    return found


def best_of(records: Sequence[dict[str, Any]], limits: Mapping[str, float]) -> dict[str, Any]:
    """The best on validation: the record whose model is exported.

    A refit of a candidate that is within all limits may be a little above one: then it is not taken.
    """
    within = [each for each in records if all(each.get(column, math.inf) <= most for column, most in limits.items())]
    return max(within or records, key=lambda record: (record["accuracy"], -record["loss"]))


def _record_file(folder: Path) -> Path:
    return folder / "candidate.json"


def _record(folder: Path) -> dict[str, Any]:
    path = _record_file(folder)
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return {"folder": folder, "loss": math.inf} | {key: record[key] for key in (*record, "accuracy", "layers")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read: {error}") from error
