"""Draws the figures of how-the-prior-works.md and decoupled-wdr.md, in about half a minute of training on the digits.

    python docs/figures.py [--out docs]

One seed and one thread: the same machine and versions give the same files.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import torch

from sca_search.config.candidate import Candidate, FromPrior, Ramp
from sca_search.config.study import StudySpec
from sca_search.study.setup import make_task
from sca_search.ternary.parametrize import TernaryWeight, latent_of_dense
from sca_search.ternary.prior import alpha_for_sparsity
from sca_search.training.task import TrainedCandidate, WarmStart
from sca_search.training.train import train_candidate, train_dense

Points = list[tuple[float, float]]

SPREAD = 0.6  # root mean square of Θ at the start, as in the first guess of a study
LAYERS = ("conv2", "fc1")  # the ternary layers of the small LeNet
ALPHAS = (0.0, 0.5, 1.0, 1.5, 2.0)
SPARSITIES = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)
STRONG, WEAK = 30.0, 0.1  # dimensionless λ
TIMES = (0.0, 1.0, 3.0, 10.0)  # u = 4αλ


@dataclass(frozen=True)
class Curve:
    """Points connected by a line, optionally with markers."""

    name: str
    points: Points
    marked: bool = False


@dataclass(frozen=True)
class Chart:
    """A figure: title, axis labels, curves."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]


# The data


def regularizer_curves() -> tuple[Curve, ...]:
    """The contribution of one weight W to R, (α − W²)·W², for several α."""
    steps = [step / 100 for step in range(-100, 101)]
    return tuple(Curve(f"α = {alpha:g}", [(w, (alpha - w * w) * w * w) for w in steps]) for alpha in ALPHAS)


def flow_curves() -> tuple[Curve, ...]:
    """W against Θ after a flow of several lengths, for α = ½."""
    layer, latent, curves = TernaryWeight("decoupled"), torch.linspace(-2.0, 2.0, 401), []
    layer.set_alpha(0.5)
    for time in TIMES:
        layer.wdr_strength = time / (4 * layer.alpha)
        curves.append(Curve(f"u = {time:g}", list(zip(latent.tolist(), layer.soft(latent).tolist(), strict=True))))
    return tuple(curves)


def alpha_curves(start: WarmStart) -> tuple[Curve, ...]:
    """α(s) of each ternary layer of the dense network, with Θ rescaled as in training."""
    sparsities = [step / 200 for step in range(200)]
    latents = {layer: latent_of_dense(start.state[f"{layer}.weight"], SPREAD) for layer in LAYERS}
    return tuple(
        Curve(layer, [(sparsity, alpha_for_sparsity(latent, sparsity)) for sparsity in sparsities])
        for layer, latent in latents.items()
    )


def weight_curves(trained: TrainedCandidate) -> tuple[Curve, ...]:
    """Histograms of tanh Θ before the first epoch and after the last, in percent of the weights."""
    first, last = trained.snapshots[0], trained.snapshots[-1]
    return tuple(
        Curve(when, _histogram(snapshot.tanh))
        for when, snapshot in (("before training", first), ("after training", last))
    )


def _histogram(counts: Sequence[int]) -> Points:
    width = 2 / len(counts)
    return [(-1 + (place + 0.5) * width, 100 * count / sum(counts)) for place, count in enumerate(counts)]


def achieved_curves(train: Callable[[Candidate], TrainedCandidate]) -> tuple[Curve, ...]:
    """Achieved minus planned sparsity of the first ternary layer in points, before the exact step."""

    def error(strength: float, sparsity: float) -> float:
        return 100 * (train(papers_candidate(strength, sparsity)).achieved[LAYERS[0]] - sparsity)

    return tuple(
        Curve(name, [(sparsity, error(strength, sparsity)) for sparsity in SPARSITIES], marked=True)
        for name, strength in (("large λ", STRONG), ("small λ", WEAK))
    )


def papers_candidate(strength: float, sparsity: float) -> Candidate:
    """The paper's form: constant α from the closed form, λ increases over the first half."""
    return Candidate(
        sparsity=sparsity,
        form="paper",
        spread=SPREAD,
        alpha=FromPrior(),
        strength=Ramp(first=0.0, last=strength, stop=0.5),
        learning_rate=0.01,
        latent_learning_rate=0.02,
        epochs=6,
        frozen_epochs=0,
        frozen_learning_rate=0.0,
        seed=1,
    )


def charts() -> dict[str, Chart]:
    """All figures by file name."""
    torch.set_num_threads(1)
    task = make_task(StudySpec())
    start = train_dense(task, epochs=10, learning_rate=0.01, seed=0)

    def train(candidate: Candidate) -> TrainedCandidate:
        return train_candidate(candidate, task, start)

    example = train(papers_candidate(STRONG, 0.5))
    return {
        "prior-regularizer.svg": Chart(
            "Contribution of one weight to the regularizer", "weight W = tanh Θ", "(α − W²) · W²", regularizer_curves()
        ),
        "decoupled-flow.svg": Chart("Soft weight after the flow, α = 0.5", "latent Θ", "W", flow_curves()),
        "prior-alpha.svg": Chart(
            "α required for a sparsity, per layer", "sparsity s", "α(s) = 2 tanh²(Q)", alpha_curves(start)
        ),
        "prior-weights.svg": Chart(
            "The regularizer creates three peaks (sparsity 0.5)",
            "tanh Θ",
            "% of the weights",
            weight_curves(example),
        ),
        "prior-landing.svg": Chart(
            f"Achieved sparsity before the exact step ({LAYERS[0]})",
            "planned sparsity",
            "achieved − planned, points",
            achieved_curves(train),
        ),
    }


# The drawing

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 360, 62, 14, 64, 46
_COLORS = ("#1b6ca8", "#d1495b", "#2f8f5b", "#b7791f", "#7a5195")


def svg(chart: Chart) -> str:
    """The chart as an SVG file, with a white background for dark pages."""
    xs = [x for curve in chart.curves for x, _ in curve.points]
    ys = [y for curve in chart.curves for _, y in curve.points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return _LEFT + across * (_WIDTH - _LEFT - _RIGHT), _HEIGHT - _BOTTOM - up * (_HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" font-family="sans-serif" font-size="12" fill="#222" role="img">',
        f"<title>{escape(chart.title)}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="15" font-weight="bold">{escape(chart.title)}</text>',
        *_axes(chart, x_ticks, y_ticks, place),
    ]
    at = float(_LEFT)
    for color, curve in zip(_COLORS, chart.curves, strict=False):
        parts += _curve(curve, color, place)
        parts.append(f'<rect x="{at:.0f}" y="37" width="16" height="4" fill="{color}"/>')
        parts.append(f'<text x="{at + 21:.0f}" y="44">{escape(curve.name)}</text>')
        at += 45 + 6.6 * len(curve.name)
    return "\n".join([*parts, "</svg>", ""])


def ticks(low: float, high: float) -> list[float]:
    """Round numbers that enclose the range."""
    step = next(size for size in (0.1, 0.2, 0.25, 0.5, 1, 2, 5, 10, 20, 50) if (high - low) / size <= 8)
    first = int(low // step)
    last = int(-(-high // step))
    return [round(number * step, 6) for number in range(first, last + 1)]


def _axes(
    chart: Chart, x_ticks: list[float], y_ticks: list[float], place: Callable[[float, float], tuple[float, float]]
) -> list[str]:
    lines = []
    for tick in y_ticks:
        x, y = place(x_ticks[0], tick)
        color = "#888" if tick == 0 else "#ddd"
        lines.append(f'<line x1="{x:.1f}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{color}"/>')
        lines.append(f'<text x="{x - 7:.1f}" y="{y + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for tick in x_ticks:
        x, y = place(tick, y_ticks[0])
        lines.append(f'<text x="{x:.1f}" y="{y + 17:.1f}" text-anchor="middle">{tick:g}</text>')
    middle = (_HEIGHT + _TOP - _BOTTOM) / 2
    lines.append(f'<text x="{(_WIDTH + _LEFT) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">{escape(chart.x)}</text>')
    lines.append(f'<text transform="translate(15 {middle}) rotate(-90)" text-anchor="middle">{escape(chart.y)}</text>')
    return lines


def _curve(curve: Curve, color: str, place: Callable[[float, float], tuple[float, float]]) -> list[str]:
    corners = [place(x, y) for x, y in curve.points]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in corners)
    lines = [f'<polyline points="{joined}" fill="none" stroke="{color}" stroke-width="2"/>']
    if curve.marked:
        lines += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}"/>' for x, y in corners]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    folder = parser.parse_args().out
    for name, chart in charts().items():
        (folder / name).write_text(svg(chart), encoding="utf-8")


if __name__ == "__main__":
    main()
