"""Whether budgets are met: predicted and measured latency over the whole range, and accuracy within a budget.

    python -m benchmarks.budget latency
    python -m benchmarks.budget accuracy --data-dir DIR --cells DIR

`latency`: ResNet-20 and LeNet, ten budgets from the fastest possible network to the slowest. The solver computes an
allocation for each budget and random layer sensitivities; the layers are filled with random trits and the exported C is
timed. If the measured latency exceeds the budget, the next attempt uses the measured ratio, as a search does.
`accuracy`: LeNet on 20,000 images of MNIST at two budgets, the searched allocation against the uniform one of the same
latency.
"""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.report import RESULTS, provenance, table, write_section
from benchmarks.size import random_network
from sca_search.config.load import resolve
from sca_search.config.study import GoalSpec, StudySpec
from sca_search.export.graph.records import Graph
from sca_search.export.latency.calibrate import CalibrationOptions, calibration_of, measure_ms
from sca_search.export.latency.model import Calibration, latency_model
from sca_search.export.latency.program import with_random_trits
from sca_search.runs.folder import RunFolder
from sca_search.runs.trials import trial_frame
from sca_search.study.budgets import Budgets, latency_limit, prepare_costs
from sca_search.study.session import run_study
from sca_search.study.setup import make_task
from sca_search.ternary.allocation import LayerCost, LayerShape, Limit, allocate_within, least_loss_within, weighting_of
from sca_search.training.sensitivity import GRID

NETWORKS = ("ResNet-20", "LeNet")
BUDGETS = 10
TRIES = 4
STUDY = {"data": "mnist", "model": "lenet", "train_limit": 20_000, "epochs": 3, "dense_epochs": 5, "refits": 0}

Cell = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    if arguments.part == "latency":
        _latency()
    else:
        _accuracy(arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=["latency", "accuracy"])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--trials", type=int, default=2)
    parser.add_argument("--cells", type=Path, default=Path("benchmarks/cells"))
    return parser.parse_args()


def _latency() -> None:
    rows, verdicts = [], []
    for name in NETWORKS:
        graph = random_network(name, 0.5).graph()
        calibration = calibration_of(graph, how=CalibrationOptions(fresh=True))
        cells = _budget_cells(graph, calibration)
        rows += [_row(name, cell) for cell in cells]
        verdicts.append(_verdict(name, calibration, cells))
    headings = ["network", "budget, ms", "predicted, ms", "measured, ms", "measured / predicted", "attempts", "met"]
    explained = (
        "One image on one thread, tenth percentile of quiet samples. Predicted and measured values are those of the "
        "first attempt; a budget is met if one of at most four attempts is within it."
    )
    findings = "\n".join(f"- {line}" for line in verdicts)
    text = f"## Budgets in milliseconds\n\n{table(headings, rows)}\n\n{findings}\n\n{explained}\n\n{provenance()}"
    write_section(RESULTS, "budgets, latency", text)


def _budget_cells(graph: Graph, calibration: Calibration) -> list[Cell]:
    layers = tuple(LayerShape(layer.name, layer.weight.shape) for layer in graph.ternary_layers)
    model = latency_limit(latency_model(calibration), {layer.name: layer.weights for layer in layers})
    fastest, slowest = (
        model.amount({layer.name: density for layer, density in zip(layers, ends, strict=True)})
        for ends in ([layer.least_density for layer in layers], [1.0] * len(layers))
    )
    budgets = np.geomspace(1.1 * fastest, 0.95 * slowest, BUDGETS).tolist()
    return [
        _budget_cell(graph, Budgets(layers, {"latency_ms": model}), budget, seed) for seed, budget in enumerate(budgets)
    ]


def _budget_cell(graph: Graph, budgets: Budgets, budget: float, seed: int) -> Cell:
    goal, costs = GoalSpec(max_latency_ms=budget), _random_costs(budgets.layers, seed)
    tries: list[dict[str, float]] = []
    while len(tries) < TRIES and not any(each["latency_ms"] <= budget for each in tries):
        split = _split(budgets.layers, costs, budgets.limits(goal, _frame(tries)))
        nonzeros = {layer.name: max(1, round((1 - split[layer.name]) * layer.weights)) for layer in budgets.layers}
        measured = measure_ms(with_random_trits(graph, nonzeros, seed=seed))
        tries.append(budgets.predicted(split) | {"latency_ms": measured.latency_ms, "noisy": measured.noisy_fraction})
    return {"budget": budget, "tries": tries}


def _random_costs(layers: Sequence[LayerShape], seed: int) -> list[LayerCost]:
    """Losses that grow as non-zeros are removed, in some layers up to a hundred times as fast as in others."""
    draws = np.random.default_rng(seed)
    factors = 0.001 * 10 ** draws.uniform(-1, 1, len(layers))
    return [
        LayerCost(layer.name, sparsity, float(factor / (1 - sparsity)), 0.0)
        for layer, factor in zip(layers, factors, strict=True)
        for sparsity in GRID
    ]


def _split(layers: tuple[LayerShape, ...], costs: list[LayerCost], limits: tuple[Limit, ...]) -> dict[str, float]:
    known = weighting_of(layers, least_loss_within(costs, layers, limits))
    return allocate_within(layers, known, limits)


def _frame(tries: list[dict[str, float]]) -> pd.DataFrame:
    known = ({"trial": number, "state": "complete", "sparsity": 0.5, "metric": 0.5} for number in range(len(tries)))
    return trial_frame(one | other for one, other in zip(known, tries, strict=True))


def _row(name: str, cell: Cell) -> list[str]:
    first = cell["tries"][0]
    predicted, measured = first["predicted_latency_ms"], first["latency_ms"]
    met = any(each["latency_ms"] <= cell["budget"] for each in cell["tries"])
    noisy = " (noisy)" if first["noisy"] > 0.5 else ""
    figures = [f"{cell['budget']:.4f}", f"{predicted:.4f}", f"{measured:.4f}{noisy}", f"{measured / predicted:.3f}"]
    return [name, *figures, str(len(cell["tries"])), "yes" if met else "NO"]


def _verdict(name: str, calibration: Calibration, cells: list[Cell]) -> str:
    ratios = [cell["tries"][0]["latency_ms"] / cell["tries"][0]["predicted_latency_ms"] for cell in cells]
    errors = [abs(ratio - 1) for ratio in ratios]
    met = sum(any(each["latency_ms"] <= cell["budget"] for each in cell["tries"]) for cell in cells)
    return (
        f"{name}: the measured latency differs from the prediction by {statistics.median(errors):.1%} (median) and at "
        f"most {max(errors):.1%} (ratios {min(ratios):.3f} to {max(ratios):.3f}); {met} of {len(cells)} budgets are "
        f"met; {calibration.noisy_samples} of {calibration.samples} calibration samples were noisy."
    )


def _accuracy(arguments: argparse.Namespace) -> None:
    """Runs the missing studies, then writes the table."""
    rows = []
    for position in (0.25, 0.5):
        cells = {allocation: _study_cell(arguments, position, allocation) for allocation in ("searched", "uniform")}
        rows += [
            [
                f"{cell['budget']:.4f}",
                allocation,
                f"{cell['latency_ms']:.4f}",
                f"{cell['sparsity']:.3%}",
                f"{cell['accuracy']:.2%}",
                f"{cell['test_accuracy']:.2%}",
                f"{cell['dense_test']:.2%}",
            ]
            for allocation, cell in cells.items()
        ]
    headings = ["budget, ms", "allocation", "measured, ms", "sparsity", "validation", "test", "dense, test"]
    text = f"## Accuracy within a budget\n\n{table(headings, rows)}\n\n{provenance()}"
    write_section(RESULTS, "budgets, accuracy", text)


def _study_cell(arguments: argparse.Namespace, position: float, allocation: str) -> Cell:
    """A study whose budget is at this position on the log scale from the fastest (0) to the slowest network (1)."""
    folder = RunFolder(arguments.cells / "budget" / f"{allocation}-{position:g}")
    cell_file = folder.path / "cell.json"
    if cell_file.exists():
        return dict(json.loads(cell_file.read_text()))
    spec = _spec(arguments, 1e9, allocation)
    task = make_task(spec)
    calibration = prepare_costs(spec, task, None, print).calibration
    assert calibration is not None
    least = {layer.name: layer.least_nonzeros for layer in task.layer_shapes}
    fastest, slowest = latency_model(calibration).range_us(least)
    budget = math.exp((1 - position) * math.log(fastest) + position * math.log(slowest)) / 1000
    folder.path.mkdir(parents=True, exist_ok=True)
    finished = run_study(folder, replace_goal(spec, budget), task)  # reads the calibration from its cache
    chosen, dense = finished.summary["chosen"], finished.summary["dense"]
    assert isinstance(chosen, dict)
    assert isinstance(dense, dict)
    cell = {"budget": budget, "dense_test": dense["test_metric"]}
    cell |= {name: chosen[name] for name in ("latency_ms", "sparsity")}
    cell |= {"accuracy": chosen["metric"], "test_accuracy": chosen["test_metric"]}
    cell_file.write_text(json.dumps(cell))
    return cell


def _spec(arguments: argparse.Namespace, budget: float, allocation: str) -> StudySpec:
    flags: dict[str, object] = {"max_latency_ms": budget, "grid": False, "trials": arguments.trials, "threads": 1}
    return resolve(
        None, STUDY | flags | {"data_dir": arguments.data_dir, "allocation": 0.0 if allocation == "uniform" else 1.0}
    )


def replace_goal(spec: StudySpec, budget: float) -> StudySpec:
    """The same study with another budget."""
    return StudySpec.model_validate(spec.model_dump() | {"goal": {"max_latency_ms": budget, "grid": False}})


if __name__ == "__main__":
    main()
