"""Is a sparse ternary network better than a narrower int8 network of the same size?

    python -m benchmarks.iso_size run cifar10 0.97 --data-dir DIR    # continues where it was
    python -m benchmarks.iso_size report

Data, seeds and epochs are those of `evidence.py`, whose first guess is the ternary network. The other network has the
same layers with all widths multiplied by one factor, chosen so that its int8 weights and float numbers take as many
bytes as the packed trits and float numbers of the ternary one. It is trained from its initialization for all epochs of
both trainings of the ternary network, dense and ternary, with and without distillation from the dense network, and its
weights are rounded to int8 per output channel.

Results are lines of `benchmarks/iso_size/DATA-SPARSITY.jsonl`; a line that exists is not measured again.
"""

import argparse
import dataclasses
import json
import os
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from scipy import stats
from torch import Tensor, nn

from benchmarks.evidence import FIRST_SEED, SETTINGS, Bench, read_results, study_of
from benchmarks.report import RESULTS, provenance, table, write_section
from sca_search.config.names import SCA
from sca_search.export.latency.calibrate import graph_of
from sca_search.export.model_card import sizes
from sca_search.models.builtin import MODELS
from sca_search.study.sampler import derived_seed
from sca_search.study.space import Space
from sca_search.training.evaluate import EVALUATION_BATCH
from sca_search.training.task import Task
from sca_search.training.train import train_candidate

FOLDER = Path(__file__).parent / "iso_size"
TERNARY, NARROW, DISTILLED = "ternary", "narrow int8", "narrow int8, distilled"
FACTORS = [number / 200 for number in range(8, 301)]


def weight_layers(network: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    return [module for module in network.modules() if isinstance(module, nn.Conv2d | nn.Linear)]


def int8_bytes(network: nn.Module) -> int:
    """A byte per weight, and a float32 factor and shift per output channel, with normalizations folded into them."""
    return sum(layer.weight.numel() + 8 * layer.weight.shape[0] for layer in weight_layers(network))


@torch.no_grad()
def round_to_int8(network: nn.Module) -> float:
    """Round all weights, in place, to 255 levels per output channel; the entropy of the codes in bits per weight."""
    bits, layers = 0.0, weight_layers(network)
    for layer in layers:
        weight = layer.weight
        step = weight.abs().flatten(1).amax(1).clamp(min=1e-12).view(-1, *[1] * (weight.ndim - 1)) / 127.0
        codes = (weight / step).round()
        weight.copy_(codes * step)
        bits += entropy(codes) * weight.numel()
    return bits / sum(layer.weight.numel() for layer in layers)


def entropy(codes: Tensor) -> float:
    """Bits per value."""
    fractions = np.unique(codes.numpy(), return_counts=True)[1] / codes.numel()
    return float(-(fractions * np.log2(fractions)).sum())


def narrowed(model: str, factor: float) -> Callable[..., nn.Module]:
    """The builder of a network with all widths multiplied."""
    builder = cast("partial[nn.Module]", MODELS[model])
    widths, *rest = builder.args
    return partial(builder.func, tuple(max(1, round(factor * width)) for width in widths), *rest)


def of_size(task: Task, model: str, size: int) -> tuple[float, Task]:
    """The factor with which the int8 network is closest to a size, and the task with that network."""
    shape, outputs = task.data.input_shape, task.data.num_classes
    makers = {factor: partial(narrowed(model, factor), outputs, shape, 0.0) for factor in FACTORS}
    with torch.device("meta"):
        factor = min(FACTORS, key=lambda each: abs(int8_bytes(makers[each]()) - size))
    return factor, dataclasses.replace(task, make_model=makers[factor])


def tested(task: Task, model: nn.Module) -> float:
    return task.score(model, task.data.read_test().batches(EVALUATION_BATCH)).accuracy


def measure(bench: Bench, number: int) -> list[dict[str, Any]]:
    """The lines of one seed."""
    seed = FIRST_SEED + number
    spec = study_of(bench.data, bench.data_dir, bench.sparsity, seed, {"method": SCA})
    space = Space(spec, bench.task.layer_shapes, bench.sensitivity)
    ternary = space.candidate(space.first_guess(), bench.sparsity, derived_seed(seed))
    trained = train_candidate(ternary, bench.task, bench.start)
    size = sizes(graph_of(bench.task, trained.model.eval()))
    target = size.packed + size.others
    lines = [{"arm": TERNARY, "bytes": target, "test": tested(bench.task, trained.model)}]
    factor, task = of_size(bench.task, spec.model.name, target)
    epochs = spec.train.dense_epochs + spec.train.epochs + spec.train.frozen_epochs
    changed = {"method": "full-precision", "from_dense": False, "epochs": epochs, "frozen_epochs": 0}
    for arm, fraction in ((NARROW, 0.0), (DISTILLED, ternary.distillation)):
        candidate = ternary.model_copy(update=changed | {"distillation": fraction})
        narrow = train_candidate(candidate, task, bench.start).model
        before = tested(task, narrow)
        bits = round_to_int8(narrow)
        about = {"factor": factor, "epochs": epochs, "float_test": before, "bits": bits}
        lines.append({"arm": arm, "bytes": int8_bytes(narrow), "test": tested(task, narrow)} | about)
    return [line | {"number": number} for line in lines]


def report() -> None:
    """Write the section of RESULTS.md."""
    rows = []
    for path in sorted(FOLDER.glob("*.jsonl")):
        lines = read_results(path)
        for arm in (TERNARY, NARROW, DISTILLED):
            rows.append([path.stem, *_row(arm, lines)])
    headings = ["data", "network", "networks", "width", "bytes", "bits per weight", "test, %", "ternary − it, 95 %"]
    text = f"""## A sparse ternary network and a narrower int8 network of the same size

{table(headings, rows)}

Bytes are those of the weights (trits in the packed file's code, or one byte each) and of all other numbers in float32,
without metadata and test vectors. The narrow network has the same layers with all widths multiplied by the factor, int8
weights in all layers, rounded after training, and as many epochs in total; distilled: from the dense network that the
ternary one starts from. Bits per weight: the entropy of the int8 codes per layer, which an entropy code could reach; in
bytes they count eight. Test accuracy with the sample standard deviation; differences in points with Welch's 95 %
interval.

{provenance()}
"""
    write_section(RESULTS, "iso size", text)


def _row(arm: str, lines: list[dict[str, Any]]) -> list[str]:
    own = [line for line in lines if line["arm"] == arm]
    values, ternary = ([100 * line["test"] for line in lines if line["arm"] == each] for each in (arm, TERNARY))
    spread = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
    width, bits = (
        f"{statistics.fmean(line[key] for line in own):.2f}" if arm != TERNARY else "" for key in ("factor", "bits")
    )
    difference = ""
    if arm != TERNARY and len(values) > 1:
        interval = stats.ttest_ind(ternary, values, equal_var=False).confidence_interval(0.95)
        mean = statistics.fmean(ternary) - statistics.fmean(values)
        difference = f"{mean:+.2f} ({interval.low:+.2f} to {interval.high:+.2f})"
    size = f"{statistics.fmean(line['bytes'] for line in own):,.0f}"
    return [arm, str(len(own)), width, size, bits, f"{statistics.fmean(values):.2f}{spread}", difference]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["run", "report"])
    parser.add_argument("data", choices=list(SETTINGS), nargs="?", default="digits")
    parser.add_argument("sparsity", type=float, nargs="*", default=[0.97])
    parser.add_argument("--cells", type=int, default=6, help="seeds")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--work", type=Path, default=Path("benchmarks/cells/evidence"))
    arguments = parser.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if arguments.part == "report":
        report()
        return
    FOLDER.mkdir(exist_ok=True)
    for sparsity in arguments.sparsity:
        bench = Bench(arguments.data, arguments.data_dir, sparsity, arguments.work)
        path = FOLDER / f"{arguments.data}-{sparsity:g}.jsonl"
        done = {line["number"] for line in read_results(path)}
        for number in (number for number in range(arguments.cells) if number not in done):
            lines = measure(bench, number)
            with path.open("a", encoding="utf-8") as file:
                file.writelines(json.dumps(line) + "\n" for line in lines)
            print(*lines, sep="\n", flush=True)


if __name__ == "__main__":
    main()
