"""Results of the paper with the same network on the same data, as a reference in the figure of a study.

They are test accuracies after at least 200 epochs; those of a study are on its validation split.
"""

from dataclasses import dataclass

from sca_search.paper.figures import GRIDS, LEADING, SCA, figures_of


@dataclass(frozen=True)
class PaperFigures:
    """Points (sparsity, accuracy) where the paper varied α, and its headline accuracy; fractions."""

    points: tuple[tuple[float, float], ...]
    accuracy: float


def paper_figures(data: str, model: str) -> PaperFigures | None:
    """Results for the same network and data; others are not comparable."""

    def results(tables: tuple[str, ...], metric: str) -> list[float]:
        """Those of SCA in the order of the tables: per α and λ a sparsity, then its accuracy."""
        figures = (figure for table in tables for figure in figures_of(table))
        key = (data, model, SCA, metric)
        return [each.value / 100 for each in figures if (each.dataset, each.network, each.method, each.metric) == key]

    led = results(LEADING, "top1")
    if not led:
        return None
    return PaperFigures(tuple(zip(results(GRIDS, "sparsity"), results(GRIDS, "top1"), strict=True)), led[0])
