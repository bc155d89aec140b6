"""Ablations: changes of the first guess at equal epochs, compared on validation only.

    python -m benchmarks.variants digits --seeds 5 --sparsities 0.9 0.97 0.99
    python -m benchmarks.variants mnist --data-dir DIR --seeds 2 --sparsities 0.99 --variants "first guess" "no teacher"

Every training is stored below --cells and not repeated.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import RESULTS, provenance, table, write_section
from benchmarks.search import STUDIES, study_of
from sca_search.config.candidate import Candidate
from sca_search.config.study import StudySpec
from sca_search.runs.folder import RunFolder
from sca_search.study.setup import layer_sensitivity, make_task, warm_start
from sca_search.study.space import Space
from sca_search.system.files import write_json_atomic
from sca_search.ternary.allocation import allocate, least_loss_weighting
from sca_search.training.evaluate import EVALUATION_BATCH, score
from sca_search.training.task import Task, WarmStart
from sca_search.training.train import train_candidate

# β increases slowly and the gradient is that of the function itself: the first guess of an earlier version.
SLOW: dict[str, Any] = {"gradient_sharpness": 1e9, "sharpness": 300.0, "sharpness_first": 2.0}
# Name -> parameters and candidate fields that differ from the first guess; `form` is that of the study.
VARIANTS: dict[str, dict[str, Any]] = {
    "first guess": {},
    "uniform allocation": {"allocation": {}},
    "half-way to the uniform allocation": {"allocation_fraction": 0.5},
    "real gradient, β from 2 to 300, increasing sparsity": SLOW | {"rise": 0.5},
    "real gradient, β from 2 to 300": SLOW,
    "real gradient, β from 2 to 100": SLOW | {"sharpness": 100.0},
    "real gradient, β from 2 to 30": SLOW | {"sharpness": 30.0},
    "real gradient, β from 5 to 300, from 0.3 on": SLOW | {"sharpness_first": 5.0, "sharpness_start": 0.3},
    "real gradient, Θ learning rate 0.1": SLOW | {"latent_learning_rate": 0.1},
    "real gradient, Θ learning rate 0.1, no frozen epochs": SLOW
    | {"latent_learning_rate": 0.1, "frozen_fraction": 0.0},
    "real gradient, Θ learning rate 0.2, no frozen epochs": SLOW
    | {"latent_learning_rate": 0.2, "frozen_fraction": 0.0},
    "real gradient, Θ learning rate 0.1, no frozen epochs, spread 0.3": SLOW
    | {"latent_learning_rate": 0.1, "frozen_fraction": 0.0, "spread": 0.3},
    "gradient at 2, β from 2 to 300": SLOW | {"gradient_sharpness": 2.0},
    "gradient at 2, β from 2 to 300, increasing sparsity": SLOW | {"gradient_sharpness": 2.0, "rise": 0.5},
    "gradient at 2, β from 2 to 300, Θ learning rate 0.05": SLOW
    | {"gradient_sharpness": 2.0, "latent_learning_rate": 0.05},
    "gradient at 5": {"gradient_sharpness": 5.0},
    "β to 300": {"sharpness": 300.0},
    "increasing sparsity": {"rise": 0.5},
    "Θ learning rate 0.01": {"latent_learning_rate": 0.01},
    "Θ learning rate 0.05": {"latent_learning_rate": 0.05},
    "spread 0.3": {"spread": 0.3},
    "spread 0.9": {"spread": 0.9},
    "no teacher": {"distillation": 0.0},
    "only the teacher": {"distillation": 1.0},
    "temperature 8": {"temperature": 8.0},
    "one third frozen epochs": {"frozen_fraction": 1 / 3},
    "one tenth frozen epochs": {"frozen_fraction": 0.1},
    "no frozen epochs": {"frozen_fraction": 0.0},
    "additional regularizer, strength 0.1": {"strength": {"kind": "ramp", "first": 0.0, "last": 0.1}},
    "straight-through": {"form": "straight-through"},
    "straight-through, Θ learning rate 0.05": {"form": "straight-through", "latent_learning_rate": 0.05},
    "straight-through, no frozen epochs": {"form": "straight-through", "frozen_fraction": 0.0},
    "straight-through, uniform allocation": {"form": "straight-through", "allocation": {}},
    "straight-through, uniform allocation, no teacher": {
        "form": "straight-through",
        "allocation": {},
        "distillation": 0.0,
    },
    "paper's form": {"form": "paper"},
    "paper's form, strength 10": {"form": "paper", "strength": 10.0},
    "paper's form, strength 1000": {"form": "paper", "strength": 1000.0},
    "paper's form, late λ": {"form": "paper", "strength_start": 0.5},
}


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    for seed in range(arguments.seeds):
        for sparsity in arguments.sparsities:
            for name in arguments.variants:
                _cell(arguments, seed, sparsity, name)
        _report(arguments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sparsities", type=float, nargs="+", default=[0.9, 0.97, 0.99])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cells", type=Path, default=Path("benchmarks/cells"))
    return parser.parse_args()


def _file(arguments: argparse.Namespace, seed: int, sparsity: float, name: str) -> Path:
    folder = arguments.cells / "variants" / arguments.data / f"s{sparsity:g}" / f"seed-{seed}"
    return Path(folder / f"{name.replace(' ', '-')}.json")


def _cell(arguments: argparse.Namespace, seed: int, sparsity: float, name: str) -> None:
    file = _file(arguments, seed, sparsity, name)
    if file.exists():
        return
    spec = study_of(arguments.data, seed, arguments.data_dir, form=VARIANTS[name].get("form", "sharpened"))
    task = make_task(spec)
    dense = RunFolder(arguments.cells / "search" / arguments.data / f"dense-{seed}")
    dense.path.mkdir(parents=True, exist_ok=True)
    start = warm_start(dense, spec, task)
    file.parent.mkdir(parents=True, exist_ok=True)
    write_json_atomic(file, _measured(spec, task, start, dense, sparsity, name))


def _measured(
    spec: StudySpec, task: Task, start: WarmStart, dense: RunFolder, sparsity: float, name: str
) -> dict[str, Any]:
    space = Space(spec, task.layer_shapes, tuple(layer_sensitivity(dense, spec, task, start)))
    trained = train_candidate(_candidate(space, sparsity, VARIANTS[name]), task, start)
    test = task.data.read_test().batches(EVALUATION_BATCH)
    found = {
        "variant": name,
        "loss": trained.score.loss,
        "accuracy": trained.score.accuracy - start.score.accuracy,
        "rounding_gap": trained.soft_metric - trained.rounded_metric,
        "test_accuracy": score(trained.model, test).accuracy - score(task.model_with(start.state), test).accuracy,
    }
    print(sparsity, name, f"validation loss {trained.score.loss:.4f}", flush=True)
    return found


def _candidate(space: Space, sparsity: float, changed: dict[str, Any]) -> Candidate:
    guess = space.first_guess()
    values = {name: value for name, value in changed.items() if name in guess}
    fields = {name: value for name, value in changed.items() if name not in guess and not name.endswith("_fraction")}
    candidate = space.candidate(guess | values, sparsity, seed=1000 + space.spec.seed)
    if "frozen_fraction" in changed:
        epochs = candidate.epochs + candidate.frozen_epochs
        frozen = round(changed["frozen_fraction"] * epochs)
        fields |= {"epochs": epochs - frozen, "frozen_epochs": frozen}
    if "allocation_fraction" in changed:
        weighting = least_loss_weighting(space.costs, space.layers, sparsity)
        part = {layer: changed["allocation_fraction"] * value for layer, value in weighting.items()}
        fields["allocation"] = allocate(space.layers, part, sparsity)
    return Candidate.model_validate(candidate.model_dump() | fields)


def _report(arguments: argparse.Namespace) -> None:
    blocks = []
    for sparsity in arguments.sparsities:
        rows = {name: _read(arguments, sparsity, name) for name in arguments.variants}
        known = {name: cells for name, cells in rows.items() if cells}
        ranked = sorted(known.items(), key=lambda item: statistics.fmean(cell["loss"] for cell in item[1]))
        lines = [[name, str(len(cells)), *_figures(cells)] for name, cells in ranked]
        headings = [
            "variant",
            "seeds",
            "validation loss",
            "validation, points",
            "lost by rounding, points",
            "test, points",
        ]
        blocks.append(f"At sparsity {sparsity:g}:\n\n{table(headings, lines)}")
    name = f"variants on {arguments.data}"
    explained = (
        "Changes of the first guess at equal epochs, sorted by validation loss; mean ± standard deviation over seeds; "
        "accuracy minus that of the dense network, in points. Lost by rounding: soft minus rounded accuracy at the end "
        "of training, before the frozen phase."
    )
    text = f"## Ablations of the first guess: {arguments.data}\n\n{explained}\n\n" + "\n\n".join(blocks)
    write_section(RESULTS, name, f"{text}\n\n{provenance()}")


def _read(arguments: argparse.Namespace, sparsity: float, name: str) -> list[dict[str, Any]]:
    files = [_file(arguments, seed, sparsity, name) for seed in range(arguments.seeds)]
    return [json.loads(file.read_text()) for file in files if file.exists()]


def _figures(cells: list[dict[str, Any]]) -> list[str]:
    losses = [cell["loss"] for cell in cells]
    points = [[100 * cell[key] for cell in cells] for key in ("accuracy", "rounding_gap", "test_accuracy")]
    return [
        f"{statistics.fmean(losses):.4f} ± {statistics.pstdev(losses):.4f}",
        *(f"{statistics.fmean(values):+.2f} ± {statistics.pstdev(values):.2f}" for values in points),
    ]


if __name__ == "__main__":
    main()
