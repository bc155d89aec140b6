"""The result of a finished cell on the test split, per seed, as a file."""

import json
import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import pandas as pd
import torch
from pydantic import TypeAdapter
from torch import nn

from sca_search.config.study import StudySpec
from sca_search.data import AnySplit
from sca_search.errors import DIVERGED, RunError
from sca_search.export.state_dict import load_plain
from sca_search.runs.folder import RunFolder
from sca_search.runs.trials import measured, read_csv
from sca_search.study.setup import warm_start
from sca_search.system.files import require_regular, write_json_atomic
from sca_search.system.signals import NEVER, StopToken
from sca_search.training.evaluate import EVALUATION_BATCH, logits_of
from sca_search.training.task import Task
from sca_search.training.train import until_stopped


@dataclass(frozen=True)
class CellResult:
    """Fractions, one per seed; `failed` is the number of seeds that diverged.

    `rounded` is the validation accuracy right after rounding, before the BatchNorm statistics are re-estimated for the
    trits: the paper does not mention such a step.
    """

    epochs: int
    network: str
    top1: tuple[float, ...]
    top5: tuple[float, ...]
    sparsity: tuple[float, ...]
    failed: int = 0
    dense_top1: float | None = None
    dense_top5: float | None = None
    rounded: tuple[float, ...] = ()
    dense_is_given: bool = False  # by a file, not trained here

    @property
    def seeds(self) -> int:
        return len(self.top1) + self.failed


_RESULT = TypeAdapter(CellResult)


def read_result(path: Path) -> CellResult | None:
    """The result of a finished cell; None if it is not finished."""
    if not path.exists():
        return None
    require_regular(path, RunError)
    try:
        return _RESULT.validate_python(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # pydantic raises ValueErrors
        raise RunError(f"{path}: is not the result of a cell; remove it to train the cell again") from error


def measure_cell(run: RunFolder, spec: StudySpec, task: Task, path: Path, stop: StopToken = NEVER) -> CellResult:
    """Score every seed on the test split. Nothing was chosen by validation, so there is no selection bias."""
    frame = read_csv(run.trials_file)
    trained = measured(frame)
    diverged = _diverged(run, frame)
    test = task.data.read_test()
    states = [load_plain(run.candidate(int(number)) / "model.safetensors")[0] for number in trained["candidate"]]
    scores = [top_accuracies(task.model_with(state), test, stop) for state in states]
    dense_top1 = dense_top5 = None
    if spec.train.dense_epochs or spec.model.weights is not None:
        dense_top1, dense_top5 = top_accuracies(task.model_with(warm_start(run, spec, task).state), test, stop)
    result = CellResult(
        epochs=spec.train.epochs,
        network=spec.model.label,
        top1=tuple(top1 for top1, _ in scores),
        top5=tuple(top5 for _, top5 in scores),
        sparsity=tuple(map(float, trained["sparsity"])),
        failed=diverged,
        dense_top1=dense_top1,
        dense_top5=dense_top5,
        rounded=tuple(map(float, trained["rounded_metric"])),
        dense_is_given=spec.model.weights is not None,
    )
    write_json_atomic(path, asdict(result))
    return result


def _diverged(run: RunFolder, frame: pd.DataFrame) -> int:
    """How many seeds diverged; RunError if one failed for another reason, which is not a result of the method."""
    failed = frame[frame["state"] == "failed"]
    others = failed[~failed["reason"].fillna("").str.startswith(DIVERGED)]
    if len(others):
        first = others.iloc[0]
        raise RunError(
            f"{run.path}: every seed must be trained or diverge, trial {first['trial']} failed otherwise "
            f"({first['reason']}); remove the folder to train the cell again"
        )
    return len(failed)


def top_accuracies(network: nn.Module, split: AnySplit, stop: StopToken = NEVER) -> tuple[float, float]:
    """Top-1 and top-5 accuracy."""
    outputs = logits_of(network, until_stopped(split.batches(EVALUATION_BATCH), stop))
    labels = torch.cat([targets for _, targets, *_ in split.batches(EVALUATION_BATCH)])
    best = outputs.topk(min(5, outputs.shape[1])).indices == labels.unsqueeze(1)
    return float(best[:, 0].float().mean()), float(best.any(dim=1).float().mean())


def mean_and_sd(fractions: Iterable[float]) -> tuple[float | None, float | None]:
    """Mean and sample standard deviation in percent; None without enough values."""
    values = [100.0 * fraction for fraction in fractions]
    if not values:
        return None, None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None
