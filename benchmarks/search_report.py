"""Cells of `search.py` -> tables and figures in RESULTS.md.

Networks of a contender are selected on the validation split and compared by their test accuracy. The front is therefore
the validation front, and its hypervolume is computed from the test accuracies of its networks, so that overfitting to
the validation split is not rewarded.
"""

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.report import RESULTS, ROOT, provenance, table, write_section
from sca_search.runs.choice import select
from sca_search.runs.trials import hypervolume, pareto_front, trial_frame

Cell = dict[str, Any]
# Reference point of the hypervolume: accuracy below the dense network, and sparsity.
POINTS_BELOW, LEAST_SPARSITY = 0.05, 0.3
FIXED = (0.9, 0.97, 0.99)
BASELINE = "straight-through"
KNOWN_ALLOCATIONS = ("by sensitivity", "uniform", "by layer size")  # in the order in which a study tries them
NAMES = {"digits": "the digits", "mnist": "20,000 images of MNIST", "cifar10": "10,000 images of CIFAR-10"}


def report(cells: Path) -> None:
    """Writes every section that has cells."""
    found: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for file in sorted((cells / "search").glob("*/*/*/seed-*/cell.json")):
        cell = json.loads(file.read_text())
        found[cell["data"], "front" if cell["target"] is None else "targets"].append(cell)
    for (data, part), group in found.items():
        _write(data, part, group)


def _write(data: str, part: str, cells: list[Cell]) -> None:
    if part == "front":
        title = f"Search of the whole front on {NAMES[data]}"
        text = f"{_front_table(cells)}\n\n{_verdicts(cells)}\n\n{_front_text(cells)}\n\n{_figure(data, cells)}"
    else:
        title = f"Search at one sparsity on {NAMES[data]}"
        parts = (_target_table(cells), _target_verdicts(cells), _target_text(cells), _allocations(cells))
        text = "\n\n".join(part for part in parts if part)
    measured = f"Measured by `python -m benchmarks.search {part} {data}`; the tables by:  \n{provenance()}"
    write_section(RESULTS, f"search, {part} on {data}", f"## {title}\n\n{text}\n\n{measured}")


def area(cell: Cell, epochs: float = float("inf"), accuracy: str = "test_accuracy") -> float:
    """The hypervolume in points × sparsity after some epochs, from the named accuracy."""
    points = [point for point in cell["points"] if point["epochs"] <= epochs]
    rows = [
        {
            "trial": number,
            "state": "complete",
            "sparsity": point["sparsity"],
            "metric": point["accuracy"],
            "loss": point["loss"],
        }
        for number, point in enumerate(points)
    ]
    if not rows:
        return 0.0
    named = {name: [point[name] for point in points] for name in ("accuracy", "test_accuracy")}
    front = pareto_front(trial_frame(rows).assign(**named))
    dense = cell["dense_test"] if accuracy == "test_accuracy" else cell["dense"]
    counted = front.assign(metric=front[accuracy].astype(float))
    return 100 * hypervolume(_upper(counted), accuracy=dense - POINTS_BELOW, sparsity=LEAST_SPARSITY)


def _upper(front: pd.DataFrame) -> pd.DataFrame:
    """The part of a validation front that is also a front by the other accuracy."""
    return pareto_front(front.assign(trial=range(len(front)), state="complete", loss=0.0))


def _by_contender(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    groups: dict[str, list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell["contender"]].append(cell)
    return groups


def _front_table(cells: list[Cell]) -> str:
    groups = _by_contender(cells)
    stock = _best_stock(groups)
    rows = []
    for name, group in sorted(groups.items(), key=lambda item: -_median(item[1], area)):
        rows.append(
            [
                name,
                str(len(group)),
                _spread([area(cell) for cell in group]),
                _spread([area(cell, accuracy="accuracy") for cell in group]),
                _epochs_needed(group, stock),
                *(_spread([_lost_at(cell, sparsity) for cell in group], "+") for sparsity in FIXED),
            ]
        )
    headings = [
        "contender",
        "seeds",
        "hypervolume, test",
        "hypervolume, validation",
        "epochs to match the best stock sampler",
    ]
    return table([*headings, *(f"points at {sparsity:g}" for sparsity in FIXED)], rows)


def _best_stock(groups: dict[str, list[Cell]]) -> dict[int, float]:
    """The final validation hypervolume of the best stock sampler, by seed."""
    stock = {name: group for name, group in groups.items() if name.startswith("stock")}
    if not stock:
        return {}
    best = max(stock.values(), key=lambda group: _median(group, lambda cell: area(cell, accuracy="accuracy")))
    return {cell["seed"]: area(cell, accuracy="accuracy") for cell in best}


def _epochs_needed(group: list[Cell], stock: dict[int, float]) -> str:
    """The fraction of the epochs after which a contender reaches the final hypervolume of the best stock sampler."""
    fractions = []
    for cell in group:
        if cell["seed"] not in stock:
            continue
        reached = [
            point["epochs"] / cell["budget"]
            for point in cell["points"]
            if area(cell, point["epochs"], "accuracy") >= stock[cell["seed"]]
        ]
        fractions.append(min(reached, default=float("inf")))
    if not fractions:
        return ""
    middle = statistics.median(fractions)
    return "never" if middle == float("inf") else f"{middle:.2f} ({min(fractions):.2f}–{_shown(max(fractions))})"


def _shown(fraction: float) -> str:
    return "never" if fraction == float("inf") else f"{fraction:.2f}"


def _lost_at(cell: Cell, sparsity: float) -> float:
    """Test accuracy minus dense, in points, of the network selected on validation with at least this sparsity."""
    near = [point for point in cell["points"] if point["sparsity"] >= sparsity - 0.001]
    if not near:
        return float("nan")
    return 100 * float(_best(cell, near)["test_accuracy"] - cell["dense_test"])


def _best(cell: Cell, points: list[dict[str, Any]]) -> dict[str, Any]:
    """The network selected on validation, by the rule of a study."""
    frame = pd.DataFrame(points).rename(columns={"accuracy": "metric"})
    frame = frame.assign(trial=range(len(points)), images=cell["images"])
    choice = select(frame)
    assert choice is not None
    return points[choice.trial]


def _verdicts(cells: list[Cell]) -> str:
    """Comparison of ours with the others, as text."""
    groups = _by_contender(cells)
    if "ours" not in groups:
        return ""
    mine = groups["ours"]
    others = {name: group for name, group in groups.items() if not name.startswith("ours")}
    needed = _epochs_needed(mine, _best_stock(groups))
    lines = [f"- Ours matches the final result of the best stock sampler after {needed} of its epochs."]
    for where, accuracy in (("test", "test_accuracy"), ("validation", "accuracy")):
        ours_median = _median(mine, lambda cell, accuracy=accuracy: area(cell, accuracy=accuracy))  # type: ignore[misc]
        above = {
            name: _median(group, lambda cell, accuracy=accuracy: area(cell, accuracy=accuracy))  # type: ignore[misc]
            for name, group in others.items()
        }
        better = [f"{name} ({value:.2f})" for name, value in above.items() if value >= ours_median]
        verdict = (
            f"is not better than {', '.join(better)}" if better else "is better than every stock sampler and baseline"
        )
        lines.append(f"- By median {where} hypervolume, ours ({ours_median:.2f}) {verdict}.")
    if baseline := groups.get(BASELINE):
        for sparsity in FIXED:
            found = [[_lost_at(cell, sparsity) for cell in group] for group in (mine, baseline)]
            lines.append(_against_baseline(sparsity, *found))
    return "\n".join(lines)


def _against_baseline(sparsity: float, mine: list[float], theirs: list[float]) -> str:
    """Ours against straight-through with a uniform allocation; the threshold is the sum of both standard deviations."""
    gap = statistics.fmean(mine) - statistics.fmean(theirs)
    spread = statistics.pstdev(mine) + statistics.pstdev(theirs)
    if min(len(mine), len(theirs)) < 2:
        verdict = f"{gap:+.2f}, a single seed"
    else:
        where = "beyond" if abs(gap) > spread else "within"
        verdict = f"{gap:+.2f}, {where} seed variation{_per_seed(mine, theirs)}"
    dense = "no worse than dense" if statistics.fmean(mine) >= 0 else "below dense"
    return (
        f"- At {sparsity:g}, test: ours {_mean(mine)} points against dense ({dense}), {BASELINE} with a uniform "
        f"allocation {_mean(theirs)}: {verdict}."
    )


def _per_seed(mine: list[float], theirs: list[float]) -> str:
    """The differences for the same warm starts, if both have all seeds."""
    if len(mine) != len(theirs):
        return ""
    return f" (per seed {', '.join(f'{a - b:+.2f}' for a, b in zip(mine, theirs, strict=True))})"


def _front_text(cells: list[Cell]) -> str:
    budget = cells[0]["budget"]
    return (
        f"Each contender spends {budget} epochs in addition to the shared dense warm start. Medians over seeds, "
        "minimum and maximum in parentheses. Hypervolume of the validation front in points × sparsity above (dense − "
        f"{100 * POINTS_BELOW:g} points, s = {LEAST_SPARSITY:g}), from test and from validation accuracies; the epochs "
        "are the fraction after which the validation hypervolume reaches the final one of the best stock sampler; "
        "points at a sparsity are test accuracy minus dense, for the network selected on validation at that sparsity "
        "or above. All contenders use the same teacher, except *labels only*."
    )


def _target_table(cells: list[Cell]) -> str:
    rows = []
    for target in sorted({cell["target"] for cell in cells}):
        groups = _by_contender(cell for cell in cells if cell["target"] == target)
        baseline = {cell["seed"]: _selected(cell) for cell in groups.get(BASELINE, [])}
        for name, group in sorted(groups.items(), key=lambda item: -statistics.fmean(map(_selected, item[1]))):
            gaps = [_selected(cell) - baseline[cell["seed"]] for cell in group if cell["seed"] in baseline]
            rows.append(
                [
                    f"{target:g}",
                    name,
                    str(len(group)),
                    _mean([_selected(cell) for cell in group]),
                    _mean([_average(cell) for cell in group]),
                    _mean(gaps) if gaps else "",
                    f"{_worst(group, lambda point, target: abs(point['before'] - target)):.2f}",
                    f"{_worst(group, lambda point, _: point['moved']):.3f}",
                ]
            )
    headings = [
        "target",
        "contender",
        "seeds",
        "selected network, points",
        "all networks, points",
        "selected, against straight-through",
        "error before the exact step, points",
        "adjusted, %",
    ]
    return table(headings, rows)


def _target_verdicts(cells: list[Cell]) -> str:
    lines = []
    for target in sorted({cell["target"] for cell in cells}):
        groups = _by_contender(cell for cell in cells if cell["target"] == target)
        if "ours" in groups and BASELINE in groups:
            lines.append(
                _against_baseline(target, *([_selected(cell) for cell in groups[name]] for name in ("ours", BASELINE)))
            )
    return "\n".join(lines)


def _allocations(cells: list[Cell]) -> str:
    """Results of the known allocations, which a study at one sparsity tries first and which differ in nothing else."""
    rows = []
    for target in sorted({cell["target"] for cell in cells}):
        group = [cell for cell in cells if cell["target"] == target and cell["contender"] == "ours"]
        for number, name in enumerate(KNOWN_ALLOCATIONS):
            known = [cell for cell in group if len(cell["points"]) > number]
            if known:
                points = [cell["points"][number] for cell in known]
                validation = [100 * (p["accuracy"] - cell["dense"]) for p, cell in zip(points, known, strict=True)]
                test = [100 * (p["test_accuracy"] - cell["dense_test"]) for p, cell in zip(points, known, strict=True)]
                losses = [point["loss"] for point in points]
                loss = f"{statistics.fmean(losses):.4f} ± {statistics.pstdev(losses):.4f}"
                rows.append([f"{target:g}", name, str(len(known)), loss, _mean(validation), _mean(test)])
    if not rows:
        return ""
    headings = ["target", "allocation", "seeds", "validation loss", "validation, points", "test, points"]
    text = "The first trials of ours at each sparsity, which differ only in allocation and seed:"
    return f"{text}\n\n{table(headings, rows)}\n\n{_allocation_verdicts(cells)}"


def _allocation_verdicts(cells: list[Cell]) -> str:
    """The allocation by sensitivity against the uniform one, by test accuracy."""
    lines = []
    for target in sorted({cell["target"] for cell in cells}):
        both = [cell for cell in cells if (cell["target"], cell["contender"]) == (target, "ours")]
        found, uniform = ([100 * cell["points"][n]["test_accuracy"] for cell in both] for n in (0, 1))
        gap = statistics.fmean(found) - statistics.fmean(uniform)
        gaps = [mine - theirs for mine, theirs in zip(found, uniform, strict=True)]
        beats = len(gaps) > 1 and gap > statistics.pstdev(gaps)
        verdict = "is better" if beats else "is not better"
        lines.append(
            f"- At {target:g} the allocation by sensitivity {verdict} than the uniform one beyond seed variation: "
            f"{_mean(gaps)} points on the test split, per seed."
        )
    return "\n".join(lines)


def _target_text(cells: list[Cell]) -> str:
    return (
        f"Each contender spends all epochs on one sparsity ({cells[0]['budget']} epochs per study, without grid "
        "trials). Test accuracy minus that of the dense network in points, mean ± standard deviation over seeds: of "
        "the network selected on validation, and of all networks at the target. The last two columns are maxima."
    )


def _worst(cells: list[Cell], of: Callable[[dict[str, Any], float], float]) -> float:
    return 100 * max(of(point, cell["target"]) for cell in cells for point in _at_target(cell))


def _at_target(cell: Cell) -> list[dict[str, Any]]:
    return [point for point in cell["points"] if abs(point["sparsity"] - cell["target"]) <= 0.001]


def _selected(cell: Cell) -> float:
    return 100 * float(_best(cell, _at_target(cell))["test_accuracy"] - cell["dense_test"])


def _average(cell: Cell) -> float:
    return statistics.fmean(100 * (point["test_accuracy"] - cell["dense_test"]) for point in _at_target(cell))


def _median(cells: list[Cell], of: Callable[[Cell], float]) -> float:
    return statistics.median(map(of, cells))


def _spread(values: list[float], sign: str = "") -> str:
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "none"
    return f"{statistics.median(known):{sign}.2f} ({min(known):{sign}.2f}–{max(known):{sign}.2f})"


def _mean(values: list[float]) -> str:
    return f"{statistics.fmean(values):+.2f} ± {statistics.pstdev(values):.2f}"


def _figure(data: str, cells: list[Cell]) -> str:
    """Median hypervolume over epochs with its range shaded, as an SVG drawn without a browser."""
    file = ROOT / "docs" / f"search-{data}.svg"
    file.write_text(_svg(_by_contender(cells), cells[0]["budget"]), encoding="utf-8")
    return f"![Hypervolume over epochs](../docs/{file.name})"


_COLORS = (
    "#1b6ca8",
    "#d1495b",
    "#66a182",
    "#edae49",
    "#7a5195",
    "#8d6e63",
    "#546e7a",
    "#00897b",
    "#c2185b",
    "#9e9d24",
)
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _LEGEND = 860, 430, 60, 60, 230


def _svg(groups: dict[str, list[Cell]], budget: int) -> str:
    steps = [budget * step / 50 for step in range(51)]
    curves = {
        name: [sorted(area(cell, epochs, "accuracy") for cell in group) for epochs in steps]
        for name, group in groups.items()
    }
    top = max(values[-1] for curve in curves.values() for values in curve) * 1.05
    ranked = sorted(curves, key=lambda name: -statistics.median(curves[name][-1]))
    right = _WIDTH - _LEGEND

    def x(epochs: float) -> float:
        return _LEFT + (right - _LEFT) * epochs / budget

    def y(value: float) -> float:
        return (_HEIGHT - _BOTTOM) * (1 - value / top) + 10

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for tick in range(5):
        value = top * tick / 4
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y(value):.1f}" y2="{y(value):.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.2f}</text>')
        epochs = budget * tick / 4
        parts.append(f'<text x="{x(epochs):.1f}" y="{y(0) + 16:.1f}" text-anchor="middle">{epochs:.0f}</text>')
    parts.append(f'<text x="{(_LEFT + right) / 2}" y="{_HEIGHT - 6}" text-anchor="middle">epochs spent</text>')
    for number, name in enumerate(ranked):
        color = _COLORS[number % len(_COLORS)]
        low = [(x(epochs), y(values[0])) for epochs, values in zip(steps, curves[name], strict=True)]
        high = [(x(epochs), y(values[-1])) for epochs, values in zip(steps, curves[name], strict=True)]
        middle = [(x(e), y(statistics.median(values))) for e, values in zip(steps, curves[name], strict=True)]
        parts.append(f'<polygon points="{_points(low + high[::-1])}" fill="{color}" opacity="0.10"/>')
        dash = "" if number < len(_COLORS) else ' stroke-dasharray="5 3"'
        parts.append(f'<polyline points="{_points(middle)}" fill="none" stroke="{color}" stroke-width="2"{dash}/>')
        height, from_x = 20 + 18 * number, right + 12
        parts.append(
            f'<line x1="{from_x}" x2="{from_x + 20}" y1="{height}" y2="{height}" stroke="{color}" '
            f'stroke-width="3"{dash}/>'
        )
        parts.append(f'<text x="{right + 38}" y="{height + 4}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _points(corners: list[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
