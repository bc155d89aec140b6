"""Results of the paper with the same network on the same data, as a reference in the figure of a study.

They are test accuracies after at least 200 epochs; those of a study are on its validation split.
"""

from dataclasses import dataclass

from sca_search.paper.figures import GRIDS, LEADING, SCA, Figure, figures_of


@dataclass(frozen=True)
class PaperFigures:
    """Points (sparsity, accuracy) where the paper varied α, and its headline accuracy; fractions."""

    points: tuple[tuple[float, float], ...]
    accuracy: float


def paper_figures(data: str, model: str) -> PaperFigures | None:
    """Results for the same network and data; others are not comparable."""
    led = _of_network(LEADING, data, model, "top1")
    if not led:
        return None
    zeros, correct = (_of_network(GRIDS, data, model, metric) for metric in ("sparsity", "top1"))
    points = tuple((zero.value / 100, top1.value / 100) for zero, top1 in zip(zeros, correct, strict=True))
    return PaperFigures(points, led[0].value / 100)


def _of_network(tables: tuple[str, ...], data: str, model: str, metric: str) -> list[Figure]:
    """Figures of SCA in the order of the tables: per α and λ a sparsity, then its accuracy."""
    figures = (figure for table in tables for figure in figures_of(table))
    key = (data, model, SCA, metric)
    return [each for each in figures if (each.dataset, each.network, each.method, each.metric) == key]
