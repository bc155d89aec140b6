"""Latency of one layer as a function of its list entries: a fitted line for each shape of a ternary layer."""

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.report import ROOT, table
from benchmarks.size import random_network
from sca_search.export.graph.records import Convolution, Graph, WeightRecord
from sca_search.export.latency.timing import stopwatch, time_interleaved
from sca_search.export.latency.tune import layer_input, layer_models
from sca_search.system.machine import usable_cores

SPARSITIES = (0.0, 0.5, 0.8, 0.9, 0.97)
SECONDS = 4.0  # seconds for all sparsities and kernels of a shape together
COLUMNS = {"lists": 1, "in-place": 1, "combined": 3}  # weights of a kernel row per list entry
_POINTS = 3  # fewer points give no line: large layers of low sparsity cannot be read in place

Cell = dict[str, Any]


def layer_cells(networks: list[str], flags: tuple[str, ...]) -> list[Cell]:
    """Each shape of a ternary layer once, at every sparsity, with every kernel that uses lists."""
    cells = []
    for graph, layer in _shapes(networks):
        measured = _measured(graph, layer, flags)
        print(*measured, sep="\n", flush=True)
        cells += measured
    return cells


def entries(weight: NDArray[np.int8], columns: int) -> int:
    """The number of non-zero groups of adjacent weights in kernel rows, or of channels for 1×1 kernels."""
    if weight.ndim == 2 or columns == 1:
        return int(np.count_nonzero(weight))
    rows = weight if weight.shape[3] > 1 else weight.transpose(0, 2, 3, 1)
    groups = [rows[..., begin : begin + columns].any(axis=-1) for begin in range(0, rows.shape[-1], columns)]
    return int(sum(group.sum() for group in groups))


@dataclass(frozen=True)
class Line:
    """Microseconds without entries, nanoseconds per entry, and the quality of the fit."""

    start: float
    slope: float
    explained: float  # R²: fraction of the variance
    off: float  # largest error relative to the measurement

    @classmethod
    def through(cls, cell: Cell) -> "Line":
        """The line with the smallest relative errors, so that sparse layers count as much as dense ones."""
        x, y = np.array(cell["entries"], dtype=float), np.array(cell["us"])
        slope, start = np.polyfit(x, y, 1, w=1 / y)
        rest = y - (start + slope * x)
        explained = 1 - (rest**2).sum() / ((y - y.mean()) ** 2).sum()
        return cls(float(start), float(1e3 * slope), float(explained), float(np.abs(rest / y).max()))


def layer_report(cells: list[Cell]) -> str:
    """The table and the figure."""
    (ROOT / "docs" / "runtime-layers.svg").write_text(_svg(cells), encoding="utf-8")
    rows = [[cell["shape"], cell["kernel"], f"{cell['cells']:,}", *_fit_cells(cell)] for cell in cells]
    headings = [
        "layer",
        "kernel",
        "cells",
        "µs without entries",
        "ns per entry",
        "additions per cycle",
        "R²",
        "largest error",
    ]
    return (
        f"{table(headings, rows)}\n\nEach layer alone at sparsities {', '.join(f'{s:g}' for s in SPARSITIES)}: tenth "
        "percentile of quiet samples, against the number of list entries; *in-place* only at sparsities at which the "
        "layer supports it. An entry of *lists* and *in-place* is one non-zero weight, an entry of *combined* up to "
        "three adjacent ones; each costs one addition per output position. Lines minimize relative errors.\n\n"
        "![Latency by list entries](../docs/runtime-layers.svg)"
    )


def _fit_cells(cell: Cell) -> list[str]:
    line = Line.through(cell)
    a_cycle = cell["cells"] / (line.slope * cell["clock_ghz"]) if line.slope > 0 else math.nan
    return [f"{line.start:.2f}", f"{line.slope:.3f}", f"{a_cycle:.1f}", f"{line.explained:.4f}", f"{line.off:.1%}"]


def _shapes(networks: list[str]) -> list[tuple[Graph, WeightRecord]]:
    """One layer per shape."""
    found: dict[str, tuple[Graph, WeightRecord]] = {}
    for name in networks:
        graph = random_network(name, 0.0).graph()
        for layer in graph.ternary_layers:
            found.setdefault(f"{name} {_spelled(layer)}", (graph, layer))
    return [(graph, replace(layer)) for graph, layer in found.values()]


def _spelled(layer: WeightRecord) -> str:
    weights = "×".join(map(str, layer.weight.shape))
    if not isinstance(layer, Convolution):
        return weights
    stride = "" if layer.stride == (1, 1) else f" /{layer.stride[0]}"
    return f"{weights}{stride} → {layer.shape[1]}×{layer.shape[2]}"


def _measured(graph: Graph, layer: WeightRecord, flags: tuple[str, ...]) -> list[Cell]:
    sparse = {sparsity: _at(layer, sparsity) for sparsity in SPARSITIES}
    image = layer_input(graph, layer)
    with ThreadPoolExecutor(usable_cores()) as pool:  # compilers run in parallel; nothing is timed yet
        built = list(pool.map(lambda each: layer_models(_with(graph, each), each, flags), sparse.values()))
    samplers = {
        (kind, sparsity): stopwatch().sampler(model, image)
        for sparsity, models in zip(sparse, built, strict=True)
        for kind, model in models.items()
        if kind in COLUMNS
    }
    timings = time_interleaved({str(key): sampler for key, sampler in samplers.items()}, SECONDS)
    return [
        {
            "shape": _spelled(layer),
            "kernel": kind,
            "cells": math.prod(layer.shape[1:]),
            "clock_ghz": timings.clock_hz / 1e9,
            "sparsities": known,
            "entries": [entries(sparse[sparsity].weight, COLUMNS[kind]) for sparsity in known],
            "us": [1e6 * timings.each[str((kind, sparsity))].low for sparsity in known],
            "noisy": [timings.each[str((kind, sparsity))].noisy_fraction for sparsity in known],
        }
        for kind in COLUMNS
        if len(known := [sparsity for sparsity in sparse if (kind, sparsity) in samplers]) >= _POINTS
    ]


def _with(graph: Graph, layer: WeightRecord) -> Graph:
    """The graph with this layer replaced: the available kernels depend on its weights."""
    return replace(graph, records=tuple(layer if each.name == layer.name else each for each in graph.records))


def _at(layer: WeightRecord, sparsity: float) -> WeightRecord:
    """The layer with this fraction of zeros."""
    random = np.random.default_rng(0)
    weight = random.choice(np.array([-1, 1], dtype=np.int8), layer.weight.size)
    weight[random.permutation(weight.size)[: round(sparsity * weight.size)]] = 0
    return replace(layer, weight=weight.reshape(layer.weight.shape))


_COLORS = (
    "#1b6ca8", "#d1495b", "#66a182", "#edae49", "#7a5195", "#8d6e63", "#546e7a",
    "#00897b", "#c2185b", "#9e9d24", "#3949ab", "#f4511e", "#000000", "#00acc1",
)  # fmt: skip
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _LEGEND = 980, 560, 70, 70, 330


def _svg(cells: list[Cell]) -> str:
    """Points and fitted lines on logarithmic axes, drawn without a browser."""
    lists = [cell for cell in cells if cell["kernel"] == "lists"]
    all_x = [math.log10(count) for cell in lists for count in cell["entries"] if count]
    all_y = [math.log10(value) for cell in lists for value in cell["us"]]
    low_x, high_x, low_y, high_y = (f(v) for v in (all_x, all_y) for f in (_floor, _ceiling))
    right, bottom = _WIDTH - _LEGEND, _HEIGHT - _BOTTOM

    def at(count: float, value: float) -> tuple[float, float]:
        across = (math.log10(count) - low_x) / (high_x - low_x)
        up = (math.log10(value) - low_y) / (high_y - low_y)
        return _LEFT + (right - _LEFT) * across, bottom - (bottom - 20) * up

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
    ]
    for power in range(low_x, high_x + 1):
        x, _ = at(10.0**power, 10.0**low_y)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 18}" text-anchor="middle">{10**power:,}</text>')
    for power in range(low_y, high_y + 1):
        _, y = at(10.0**low_x, 10.0**power)
        parts.append(f'<line x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{10.0**power:,g}</text>')
    middle = (_LEFT + right) / 2
    parts.append(f'<text x="{middle}" y="{_HEIGHT - 20}" text-anchor="middle">list entries of a layer</text>')
    parts.append(
        f'<text x="16" y="{bottom / 2}" text-anchor="middle" transform="rotate(-90 16 {bottom / 2})">µs</text>'
    )
    for number, cell in enumerate(lists):
        parts += _curve(cell, _COLORS[number % len(_COLORS)], number, at)
    return "\n".join([*parts, "</svg>", ""])


def _curve(cell: Cell, color: str, number: int, at: Any) -> list[str]:
    line = Line.through(cell)
    counts = np.geomspace(max(1, min(cell["entries"])), max(cell["entries"]), 40)
    times = [(count, line.start + line.slope * count / 1e3) for count in counts]
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(*each) for each in times if each[1] > 0))
    parts = [f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>']
    for count, value in zip(cell["entries"], cell["us"], strict=True):
        if count:
            x, y = at(count, value)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>')
    height, left = 30 + 20 * number, _WIDTH - _LEGEND + 16
    parts.append(f'<circle cx="{left}" cy="{height - 4}" r="4" fill="{color}"/>')
    parts.append(f'<text x="{left + 12}" y="{height}">{cell["shape"]}, R² = {line.explained:.4f}</text>')
    return parts


def _floor(values: list[float]) -> int:
    return math.floor(min(values))


def _ceiling(values: list[float]) -> int:
    return math.ceil(max(values))
