"""Which of the paper's claims held here: each with a rule that is said beside it, over results that were read."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sca_search.paper.cells import Cell, full_epochs
from sca_search.paper.comparison import RankCorrelation, Row, rank_correlations
from sca_search.paper.figures import ABLATION, DENSE, SCA

HELD, NOT_HELD, UNDECIDED, NOT_RUN = "held", "not held", "undecided", "not run"
RISES = 0.95
FEWEST_CELLS = 4
LEVEL_POINTS = 0.1
SPAN = 0.9
DENSE_POINTS = 5.0
CHANCE = 10.0  # percent, of CIFAR-10's ten classes
RULES = (
    f"Zeros rise with α: Spearman's rank correlation is at least {RISES:g} at every λ of which at least "
    f"{FEWEST_CELLS} cells are trained. Level: ternary is below dense by at most what the paper itself has between the "
    f"two, and {LEVEL_POINTS:g} points or the spread of seeds besides, whichever is more; undecided where our dense "
    f"network is more than {DENSE_POINTS:g} points below the paper's. Needed: without tanh every seed diverges, or at "
    "most half is left of what the same network with tanh has above chance after as many epochs; undecided where that "
    "one has not twice chance, or was not trained. Above: by more than the spread of either's seeds. Reach: from the "
    f"fewest zeros to the most it is at least {SPAN:g} of the paper's way."
)


@dataclass(frozen=True)
class Claim:
    """One line of the table."""

    claim: str
    paper: str
    here: str = ""
    verdict: str = NOT_RUN

    @property
    def cells(self) -> list[str]:
        return [self.claim, self.paper, self.here, self.verdict]


def verdict(holds: bool) -> str:
    return HELD if holds else NOT_HELD


def rises(table: str, network: str, rows: Sequence[Row]) -> Claim:
    """More α, more zeros."""
    claim = f"zeros rise with α ({network}, table {table})"
    ranks = rank_correlations(rows)
    paper = "Spearman " + ", ".join(_rank(rank.strength_lambda, rank.paper) for rank in ranks)
    known = [rank for rank in ranks if rank.cells >= FEWEST_CELLS]
    if not known:
        return Claim(claim, paper)
    here = "; ".join(f"{_rank(rank.strength_lambda, rank.ours)} ({rank.cells} cells)" for rank in known)
    return Claim(claim, paper, f"{here}; {amount(rows)}", verdict(all(_does_rise(rank) for rank in known)))


def _does_rise(rank: RankCorrelation) -> bool:
    return rank.ours is not None and rank.ours >= RISES


def _rank(strength: float, value: float | None) -> str:
    return f"{'none' if value is None else f'{value:.3f}'} at λ {strength:g}"


def level(dataset: str, network: str, rows: Iterable[Row]) -> Claim:
    """Ternary is as accurate as full precision."""
    mine = [row for row in rows if (row.figure.dataset, row.figure.network) == (dataset, network)]
    ternary, dense = (next(row for row in mine if row.figure.method == method) for method in (SCA, DENSE))
    claim = f"ternary is level with full precision ({network} on {dataset})"
    wanted = ternary.figure.value - dense.figure.value
    paper = f"{ternary.figure.value:.2f} % against {dense.figure.value:.2f} %: {wanted:+.2f} points"
    if ternary.ours is None or dense.ours is None:
        return Claim(claim, paper)
    found = ternary.ours - dense.ours
    here = f"{spread_of(ternary)} % against {dense.ours:.2f} %: {found:+.2f} points; {amount([ternary])}"
    if dense.ours < dense.figure.value - DENSE_POINTS:
        return Claim(claim, paper, here, UNDECIDED)
    return Claim(claim, paper, here, verdict(is_level(found, wanted, ternary.ours_sd)))


def is_level(found: float, wanted: float, spread: float | None) -> bool:
    """Whether a difference of ternary and dense, in points, is no worse than the paper's and the slack."""
    return found >= min(wanted, 0.0) - max(LEVEL_POINTS, spread or 0.0)


def above_others(rows: Iterable[Row], compared: Sequence[dict[str, str]]) -> Claim:
    """SCA is more accurate than the best method with the same weights, by more than either's seeds spread.

    `compared` is the table of another benchmark's, of methods that were trained under equal conditions.
    """
    figures = [row.figure for row in rows if row.figure.metric == "top1"]
    mine = next(figure for figure in figures if figure.method == SCA)
    rivals = [figure for figure in figures if figure.weights == mine.weights and figure.method != SCA]
    claim = f"SCA is above every other method with weights of {mine.weights} (MNIST)"
    best = max(rivals, key=lambda figure: figure.value)
    paper = f"{mine.value:.2f} % against {best.value:.2f} % ({best.method})"
    alike = {line["method"]: _accuracy(line) for line in compared if line["weights"] == mine.weights}
    if SCA.lower() not in alike or len(alike) < 2:
        return Claim(claim, paper)
    ours, spread = alike.pop(SCA.lower())
    rival = max(alike, key=lambda method: alike[method][0])
    theirs, other_spread = alike[rival]
    here = f"{ours:.2f} ± {spread:.2f} % against {theirs:.2f} ± {other_spread:.2f} % ({rival}), under equal conditions"
    return Claim(claim, paper, here, verdict(ours - theirs > max(spread, other_spread)))


def _accuracy(line: dict[str, str]) -> tuple[float, float]:
    mean, _, spread = line["test, %"].partition(" ± ")
    return float(mean), float(spread or 0.0)


@dataclass(frozen=True)
class Measure:
    """An accuracy of a row's, with and without tanh."""

    told: str
    of: Callable[[Row], float | None]


# The paper rounds and tests. A study then estimates BatchNorm's statistics again, which a network may live by.
AS_ROUNDED = Measure("validation accuracy as rounded", attrgetter("rounded"))
IN_THE_END = Measure("test accuracy with BatchNorm's statistics estimated again", attrgetter("ours"))
MEASURES = (AS_ROUNDED, IN_THE_END)


def needs_tanh(rows: Iterable[Row], with_tanh: Iterable[Row], measure: Measure) -> Claim:
    """Training without tanh comes to nothing."""
    ablated = [row for row in rows if row.figure.method == ABLATION]
    paper = f"without it {', '.join(sorted({f'{row.figure.value:g}' for row in ablated}))} %, chance"
    known = [row for row in ablated if row.seeds]
    claim = f"tanh is needed (CIFAR-10, table 5): {measure.told}"
    if not known:
        return Claim(claim, paper)
    others = {row.figure.network: row for row in with_tanh if row.figure.method == SCA}
    here = "; ".join(collapse_told(row, others.get(row.figure.network), measure) for row in known)
    seen = {has_collapsed(row, others.get(row.figure.network), measure) for row in known}
    found = NOT_HELD if False in seen else UNDECIDED if None in seen else HELD
    return Claim(claim, paper, f"{here}; {amount(known)}", found)


def has_collapsed(row: Row, with_tanh: Row | None, measure: Measure) -> bool | None:
    """Whether training without tanh diverged or fell far behind; None where that cannot be told."""
    if row.ours is None:
        return row.failed > 0
    mine, other = measure.of(row), _comparable(row, with_tanh, measure)
    if mine is None or other is None or other < 2 * CHANCE:
        return None
    return mine - CHANCE <= (other - CHANCE) / 2


def collapse_told(row: Row, with_tanh: Row | None, measure: Measure) -> str:
    """In words."""
    network, mine, other = row.figure.network, measure.of(row), _comparable(row, with_tanh, measure)
    if row.ours is None:
        return f"{network}: {row.failed} of {row.seeds} seeds diverged"
    diverged = f", {row.failed} diverged" if row.failed else ""
    compared = "" if other is None else f" against {other:.2f} % with tanh"
    return f"{network}: {'not noted' if mine is None else f'{mine:.2f} %'}{diverged}{compared}"


def _comparable(row: Row, with_tanh: Row | None, measure: Measure) -> float | None:
    """The accuracy with tanh after as many epochs."""
    return measure.of(with_tanh) if with_tanh is not None and with_tanh.epochs == row.epochs else None


def reaches(table: str, network: str, rows: Iterable[Row]) -> Claim:
    """α alone leads from hardly any zeros to hardly anything else."""
    zeros = [row for row in rows if row.figure.metric == "sparsity"]
    papers = [row.figure.value for row in zeros]
    ours = [row.ours for row in zeros if row.ours is not None]
    claim = f"α reaches any sparsity ({network}, table {table})"
    paper = f"{min(papers):g} to {max(papers):g} % zeros"
    if len(ours) < FEWEST_CELLS:
        return Claim(claim, paper)
    holds = max(ours) - min(ours) >= SPAN * (max(papers) - min(papers))
    here = f"{min(ours):.3g} to {max(ours):.4g} % zeros in {len(ours)} cells; {amount(zeros)}"
    return Claim(claim, paper, here, verdict(holds))


def amount(rows: Iterable[Row]) -> str:
    """How much of the paper's training it was: epochs, and seeds."""
    known = [row for row in rows if row.seeds]
    epochs = sorted({(row.epochs or 0, full_epochs_of(row)) for row in known})
    seeds = sorted({row.seeds or 0 for row in known})
    lengths = ", ".join(f"{few} of {all_of_them}" for few, all_of_them in epochs)
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"{lengths} epochs, {count} seed{'' if seeds == [1] else 's'}"


def full_epochs_of(row: Row) -> int:
    """The paper's."""
    return full_epochs(Cell(row.figure.dataset, row.figure.network))


def spread_of(row: Row) -> str:
    return f"{row.ours:.2f}" + ("" if row.ours_sd is None else f" ± {row.ours_sd:.2f}")
