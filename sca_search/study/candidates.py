"""A candidate's folder, written: its model, its history and its record; refits lie in folders below it."""

import csv
import dataclasses
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from sca_search.config.candidate import Candidate
from sca_search.config.costs import TERNARY_SIZE
from sca_search.export.packed.trit_code import encode_trits
from sca_search.export.state_dict import counted_sparsity, load_plain, save_plain
from sca_search.runs.candidates import DISTRIBUTION, HISTORY, RECORD
from sca_search.runs.folder import RunFolder
from sca_search.runs.provenance import made_with
from sca_search.study.budgets import Costs
from sca_search.system.files import write_json_atomic, write_text_atomic
from sca_search.ternary.histogram import Snapshot
from sca_search.ternary.parametrize import zero_counts
from sca_search.training.task import Epoch, Settled, Task


@dataclass(frozen=True)
class Counted:
    """What was counted in the file written."""

    sparsity: float
    ternary_bytes: int  # of the ternary weights in the packed file
    layer_bytes: dict[str, int]


def facts(settled: Settled) -> dict[str, float]:
    """The figures of a candidate beside its two objectives."""
    error = settled.score.error
    return {
        **({} if error is None else {"metric_error": error}),
        "loss": settled.score.loss,
        "soft_metric": settled.soft_metric,
        "rounded_metric": settled.rounded_metric,
        "moved_share": settled.moved_share,
        "sparsity_before": settled.sparsity_before,
    }


def keep(
    run: RunFolder,
    number: int,
    candidate: Candidate,
    settled: Settled,
    task: Task,
    costs: Costs,
    refit: int = 0,
) -> Counted:
    """Writes a candidate's folder, with what was measured that the network takes, and gives what was counted in the
    file written."""
    folder = run.candidate(number, refit)
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomic(folder / HISTORY, history_csv(settled.history))
    write_text_atomic(folder / DISTRIBUTION, distribution_json(settled.snapshots))
    model_file = folder / "model.safetensors"
    save_plain(model_file, settled.model, settled.baked_layers, task.data.input)
    counted = _counted(model_file)
    record = {
        "candidate": candidate.model_dump(mode="json"),
        "made_with": made_with(torch.get_num_threads()),  # of a run's commands and machines, this one's
        "metric": settled.score.accuracy,
        "sparsity": counted.sparsity,
        TERNARY_SIZE.key: counted.ternary_bytes,
        **facts(settled),
        **costs.figures,
        "strength_unit": settled.unit,
        "alphas": settled.alphas,
        "dead_layers": settled.dead_layers,
        "reached": settled.reached,
        "layers": {
            name: dataclasses.asdict(count)
            | dict(costs.layers.get(name, {}))
            | {TERNARY_SIZE.key: counted.layer_bytes[name]}
            for name, count in zero_counts(settled.baked_trits()).items()
        },
    }
    # The record comes last: where it is, the candidate is whole.
    write_json_atomic(folder / RECORD, record)
    return counted


def history_csv(history: tuple[Epoch, ...]) -> str:
    """A training's epochs as a table."""
    text = io.StringIO()
    writer = csv.DictWriter(text, [*(each.name for each in dataclasses.fields(Epoch)), "gap"])
    writer.writeheader()
    writer.writerows(dataclasses.asdict(epoch) | {"gap": epoch.gap} for epoch in history)
    return text.getvalue()


def distribution_json(snapshots: tuple[Snapshot, ...]) -> str:
    """One line an epoch: the counts are read by programs, and a line a number would take three times the room."""
    lines = [json.dumps(dataclasses.asdict(each), allow_nan=False) for each in snapshots]
    return "[\n" + ",\n".join(lines) + "\n]\n"


def _counted(model_file: Path) -> Counted:
    state, layers, _ = load_plain(model_file)
    trits = {name: state[f"{name}.weight"] for name in layers}
    sizes = {name: len(encode_trits(layer.numpy().astype(np.int8))) for name, layer in trits.items()}
    return Counted(counted_sparsity(model_file), sum(sizes.values()), sizes)
