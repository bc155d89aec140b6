"""Which of the paper's claims held here: one rule per claim, applied to stored results."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from sca_search.paper.cells import Cell, full_epochs
from sca_search.paper.comparison import RankCorrelation, Row, rank_correlations
from sca_search.paper.figures import ABLATION, DENSE, SCA

HELD, NOT_HELD, UNDECIDED, NOT_RUN = "held", "not held", "undecided", "not run"
LEAST_CORRELATION = 0.95
FEWEST_CELLS = 4
MATCH_POINTS = 0.1
SPAN = 0.9
DENSE_POINTS = 5.0
CHANCE = 10.0  # percent, of CIFAR-10's ten classes
RULES = (
    f"Sparsity increases with α: Spearman's rank correlation is at least {LEAST_CORRELATION:g} for every λ with at "
    f"least {FEWEST_CELLS} trained cells. Matches: ternary is below dense by at most the difference in the paper plus "
    f"{MATCH_POINTS:g} points or the standard deviation over seeds, whichever is larger; undecided if our dense "
    f"network is more than {DENSE_POINTS:g} points below the paper's. Needed: without tanh every seed diverges, or the "
    "accuracy above chance is at most half of that with tanh after the same number of epochs; undecided if the latter "
    "is below twice chance or was not trained. More accurate: by more than the standard deviation of either over "
    f"seeds. Covers: the range from the lowest to the highest sparsity is at least {SPAN:g} of the paper's."
)


@dataclass(frozen=True)
class Claim:
    """One row of the table."""

    claim: str
    paper: str
    here: str = ""
    verdict: str = NOT_RUN

    @property
    def cells(self) -> list[str]:
        return [self.claim, self.paper, self.here, self.verdict]


def verdict(holds: bool) -> str:
    return HELD if holds else NOT_HELD


def increases(table: str, network: str, rows: Sequence[Row]) -> Claim:
    """A larger α gives more zeros."""
    claim = f"sparsity increases with α ({network}, table {table})"
    ranks = rank_correlations(rows)
    paper = "Spearman " + ", ".join(_rank(rank.strength_lambda, rank.paper) for rank in ranks)
    known = [rank for rank in ranks if rank.cells >= FEWEST_CELLS]
    if not known:
        return Claim(claim, paper)
    here = "; ".join(f"{_rank(rank.strength_lambda, rank.ours)} ({rank.cells} cells)" for rank in known)
    return Claim(claim, paper, f"{here}; {amount(rows)}", verdict(all(_increases(rank) for rank in known)))


def _increases(rank: RankCorrelation) -> bool:
    return rank.ours is not None and rank.ours >= LEAST_CORRELATION


def _rank(strength: float, value: float | None) -> str:
    return f"{'none' if value is None else f'{value:.3f}'} at λ {strength:g}"


def matches_dense(dataset: str, network: str, rows: Iterable[Row]) -> Claim:
    """Ternary matches full precision."""
    mine = [row for row in rows if (row.figure.dataset, row.figure.network) == (dataset, network)]
    ternary, dense = (next(row for row in mine if row.figure.method == method) for method in (SCA, DENSE))
    claim = f"ternary matches full precision ({network} on {dataset})"
    expected = ternary.figure.value - dense.figure.value
    paper = f"{ternary.figure.value:.2f} % against {dense.figure.value:.2f} %: {expected:+.2f} points"
    if ternary.ours is None or dense.ours is None:
        return Claim(claim, paper)
    found = ternary.ours - dense.ours
    here = f"{spread_of(ternary)} % against {dense.ours:.2f} %: {found:+.2f} points; {amount([ternary])}"
    if dense.ours < dense.figure.value - DENSE_POINTS:
        return Claim(claim, paper, here, UNDECIDED)
    return Claim(claim, paper, here, verdict(matches(found, expected, ternary.ours_sd)))


def matches(found: float, expected: float, deviation: float | None) -> bool:
    """Whether ternary minus dense, in points, is no worse than in the paper, within the tolerance."""
    return found >= min(expected, 0.0) - max(MATCH_POINTS, deviation or 0.0)


def above_others(rows: Iterable[Row], compared: Sequence[dict[str, str]]) -> Claim:
    """SCA is more accurate than the best method with the same weights, by more than the seeds' standard deviation.

    `compared` is the table of another benchmark, with methods trained under equal conditions.
    """
    figures = [row.figure for row in rows if row.figure.metric == "top1"]
    mine = next(figure for figure in figures if figure.method == SCA)
    rivals = [figure for figure in figures if figure.weights == mine.weights and figure.method != SCA]
    claim = f"SCA is more accurate than every other method with weights {mine.weights} (MNIST)"
    best = max(rivals, key=lambda figure: figure.value)
    paper = f"{mine.value:.2f} % against {best.value:.2f} % ({best.method})"
    alike = {line["method"]: _accuracy(line) for line in compared if line["weights"] == mine.weights}
    if SCA.lower() not in alike or len(alike) < 2:
        return Claim(claim, paper)
    ours, deviation = alike.pop(SCA.lower())
    rival = max(alike, key=lambda method: alike[method][0])
    theirs, other_deviation = alike[rival]
    results = f"{ours:.2f} ± {deviation:.2f} % against {theirs:.2f} ± {other_deviation:.2f} %"
    here = f"{results} ({rival}), under equal conditions"
    return Claim(claim, paper, here, verdict(ours - theirs > max(deviation, other_deviation)))


def _accuracy(line: dict[str, str]) -> tuple[float, float]:
    mean, _, deviation = line["test, %"].partition(" ± ")
    return float(mean), float(deviation or 0.0)


@dataclass(frozen=True)
class Measure:
    """An accuracy that is compared with and without tanh."""

    label: str
    of: Callable[[Row], float | None]


# The paper tests right after rounding. A study re-estimates BatchNorm statistics first, which can recover a network.
AFTER_ROUNDING = Measure("validation accuracy after rounding", attrgetter("rounded"))
FINAL = Measure("test accuracy with re-estimated BatchNorm statistics", attrgetter("ours"))
MEASURES = (AFTER_ROUNDING, FINAL)


def needs_tanh(rows: Iterable[Row], with_tanh: Iterable[Row], measure: Measure) -> Claim:
    """Training without tanh fails."""
    ablated = [row for row in rows if row.figure.method == ABLATION]
    paper = f"without it {', '.join(sorted({f'{row.figure.value:g}' for row in ablated}))} %, chance"
    known = [row for row in ablated if row.seeds]
    claim = f"tanh is needed (CIFAR-10, table 5): {measure.label}"
    if not known:
        return Claim(claim, paper)
    others = {row.figure.network: row for row in with_tanh if row.figure.method == SCA}
    here = "; ".join(collapse_text(row, others.get(row.figure.network), measure) for row in known)
    collapsed = {has_collapsed(row, others.get(row.figure.network), measure) for row in known}
    found = NOT_HELD if False in collapsed else UNDECIDED if None in collapsed else HELD
    return Claim(claim, paper, f"{here}; {amount(known)}", found)


def has_collapsed(row: Row, with_tanh: Row | None, measure: Measure) -> bool | None:
    """Whether training without tanh diverged or is far less accurate; None if this cannot be decided."""
    if row.ours is None:
        return row.failed > 0
    mine, other = measure.of(row), _comparable(row, with_tanh, measure)
    if mine is None or other is None or other < 2 * CHANCE:
        return None
    return mine - CHANCE <= (other - CHANCE) / 2


def collapse_text(row: Row, with_tanh: Row | None, measure: Measure) -> str:
    """The figures behind `has_collapsed`, as text."""
    network, mine, other = row.figure.network, measure.of(row), _comparable(row, with_tanh, measure)
    if row.ours is None:
        return f"{network}: {row.failed} of {row.seeds} seeds diverged"
    diverged = f", {row.failed} diverged" if row.failed else ""
    compared = "" if other is None else f" against {other:.2f} % with tanh"
    return f"{network}: {'not recorded' if mine is None else f'{mine:.2f} %'}{diverged}{compared}"


def _comparable(row: Row, with_tanh: Row | None, measure: Measure) -> float | None:
    """The accuracy with tanh after the same number of epochs."""
    return measure.of(with_tanh) if with_tanh is not None and with_tanh.epochs == row.epochs else None


def covers_range(table: str, network: str, rows: Iterable[Row]) -> Claim:
    """α alone covers the range from almost no zeros to almost only zeros."""
    zeros = [row for row in rows if row.figure.metric == "sparsity"]
    papers = [row.figure.value for row in zeros]
    ours = [row.ours for row in zeros if row.ours is not None]
    claim = f"α covers the range of sparsities ({network}, table {table})"
    paper = f"{min(papers):g} to {max(papers):g} % zeros"
    if len(ours) < FEWEST_CELLS:
        return Claim(claim, paper)
    holds = max(ours) - min(ours) >= SPAN * (max(papers) - min(papers))
    here = f"{min(ours):.3g} to {max(ours):.4g} % zeros in {len(ours)} cells; {amount(zeros)}"
    return Claim(claim, paper, here, verdict(holds))


def amount(rows: Iterable[Row]) -> str:
    """Epochs as a part of the paper's, and seeds."""
    known = [row for row in rows if row.seeds]
    epochs = sorted({(row.epochs or 0, full_epochs_of(row)) for row in known})
    seeds = sorted({row.seeds or 0 for row in known})
    lengths = ", ".join(f"{few} of {all_of_them}" for few, all_of_them in epochs)
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    return f"{lengths} epochs, {count} seed{'' if seeds == [1] else 's'}"


def full_epochs_of(row: Row) -> int:
    """The paper's number of epochs."""
    return full_epochs(Cell(row.figure.dataset, row.figure.network))


def spread_of(row: Row) -> str:
    return f"{row.ours:.2f}" + ("" if row.ours_sd is None else f" ± {row.ours_sd:.2f}")
