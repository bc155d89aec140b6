"""The paper's figures next to ours, as rows; and the rank correlation of sparsity and α in both."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from scipy.stats import spearmanr

from sca_search.paper.cells import Cell, cell_of
from sca_search.paper.figures import DENSE, Figure
from sca_search.paper.result import CellResult, mean_and_sd


@dataclass(frozen=True)
class Row:
    """One figure of the paper, and ours if it was trained, in percent."""

    figure: Figure
    ours: float | None = None
    ours_sd: float | None = None
    sparsity: float | None = None  # ours, mean over seeds
    epochs: int | None = None
    seeds: int | None = None
    failed: int = 0
    rounded: float | None = None  # our validation accuracy right after rounding, mean over seeds

    def as_json(self) -> dict[str, object]:
        """The fields of the figure, under the names that users read, and of the row."""
        names = {"strength_lambda": "lambda", "value": "paper", "sd": "paper_sd"}
        fields = {names.get(name, name): value for name, value in (vars(self.figure) | vars(self)).items()}
        return {name: value for name, value in fields.items() if name not in {"table", "figure"}}


@dataclass(frozen=True)
class RankCorrelation:
    """Spearman correlation of sparsity and α at one λ; None with fewer than two different cells."""

    strength_lambda: float
    paper: float | None
    ours: float | None
    cells: int  # number of ours


def rows_of(figures: Iterable[Figure], results: Mapping[Cell, CellResult]) -> list[Row]:
    """One row per figure."""
    return [_row(figure, cell_of(figure, results), results) for figure in figures]


def _row(figure: Figure, cell: Cell | None, results: Mapping[Cell, CellResult]) -> Row:
    if cell is None:
        return Row(figure)
    result = results[cell]
    if figure.method == DENSE:
        dense = {"top1": result.dense_top1, "top5": result.dense_top5}[figure.metric]
        if dense is None:
            return Row(figure)
        length = {} if result.dense_is_given else {"epochs": result.epochs, "seeds": 1}
        return Row(figure, 100.0 * dense, **length)
    values = {"top1": result.top1, "top5": result.top5, "sparsity": result.sparsity}[figure.metric]
    mean, sd = mean_and_sd(values)
    sparsity, rounded = (mean_and_sd(fractions)[0] for fractions in (result.sparsity, result.rounded))
    return Row(figure, mean, sd, sparsity, result.epochs, result.seeds, result.failed, rounded)


def rank_correlations(rows: Iterable[Row]) -> list[RankCorrelation]:
    """One per λ of a table that varies α."""
    sparsities = [row for row in rows if row.figure.metric == "sparsity"]
    found = []
    for strength in dict.fromkeys(row.figure.strength_lambda for row in sparsities):
        here = [row for row in sparsities if row.figure.strength_lambda == strength]
        ours = [(row.figure.alpha, row.ours) for row in here if row.ours is not None]
        paper = [(row.figure.alpha, row.figure.value) for row in here]
        found.append(RankCorrelation(strength or 0.0, _spearman(paper), _spearman(ours), len(ours)))
    return found


def _spearman(pairs: list[tuple[float | None, float]]) -> float | None:
    alphas, sparsities = {alpha for alpha, _ in pairs}, {sparsity for _, sparsity in pairs}
    if len(alphas) < 2 or len(sparsities) < 2:
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)
