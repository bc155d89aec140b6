"""What the paper reached with the same network on the same data, for reference beside a study's own points.

They are test accuracies after 200 epochs and more; a study's own are on its validation split.
"""

from dataclasses import dataclass

from sca_search.paper.figures import GRIDS, LEADING, SCA, Figure, figures_of


@dataclass(frozen=True)
class PaperFigures:
    """Points (sparsity, accuracy) where the paper varied α, and the accuracy that it leads with; shares of 1."""

    points: tuple[tuple[float, float], ...]
    accuracy: float


def paper_figures(data: str, model: str) -> PaperFigures | None:
    """Those of the same network on the same data; others could not be compared."""
    led = _of_network(LEADING, data, model, "top1")
    if not led:
        return None
    zeros, correct = (_of_network(GRIDS, data, model, metric) for metric in ("sparsity", "top1"))
    points = tuple((zero.value / 100, top1.value / 100) for zero, top1 in zip(zeros, correct, strict=True))
    return PaperFigures(points, led[0].value / 100)


def _of_network(tables: tuple[str, ...], data: str, model: str, metric: str) -> list[Figure]:
    """SCA's, in the tables' order: at each α and λ a sparsity, then its accuracy."""
    figures = (figure for table in tables for figure in figures_of(table))
    wanted = (data, model, SCA, metric)
    return [each for each in figures if (each.dataset, each.network, each.method, each.metric) == wanted]
