"""The figures of the paper's seven tables, as printed there: fractions in percent."""

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sca_search.errors import SpecError, unknown_name

TITLES = {
    "1": "MNIST",
    "2": "CIFAR-10",
    "3": "ImageNet",
    "4": "CIFAR-100 and Tiny ImageNet",
    "5": "CIFAR-10 without tanh",
    "6": "sparsity and accuracy over α and λ, LeNet on MNIST",
    "7": "sparsity and accuracy over α and λ, VGG-S on CIFAR-10",
}
SCA, ABLATION, DENSE = "SCA", "SCA-without-tanh", "full-precision"
# Tables that compare SCA with other methods.
LEADING = ("1", "2", "3", "4")
# Tables that vary α: their cells have a sparsity and an accuracy.
GRIDS = ("6", "7")


@dataclass(frozen=True)
class Figure:
    """One number of the paper."""

    table: str
    dataset: str
    network: str
    method: str
    weights: str  # the values of a weight
    metric: str  # top1, top5 or sparsity
    alpha: float | None
    strength_lambda: float | None
    value: float
    sd: float | None

    @property
    def is_ours(self) -> bool:
        """Whether it is trained here; figures of other methods are only the paper's."""
        return self.method in {SCA, ABLATION, DENSE}


def figures_of(table: str) -> tuple[Figure, ...]:
    """The figures of a table in its order; SpecError for an unknown table."""
    if table not in TITLES:
        raise SpecError(unknown_name("table", table, TITLES))
    return tuple(figure for figure in _all_figures() if figure.table == table)


@lru_cache(maxsize=1)
def _all_figures() -> tuple[Figure, ...]:
    with (Path(__file__).parent / "figures.csv").open(encoding="utf-8", newline="") as file:
        return tuple(_figure(row) for row in csv.DictReader(file))


def _figure(row: dict[str, str]) -> Figure:
    return Figure(
        table=row["table"],
        dataset=row["dataset"],
        network=row["network"],
        method=row["method"],
        weights=row["weights"],
        metric=row["metric"],
        alpha=_number(row["alpha"]),
        strength_lambda=_number(row["lambda"]),
        value=float(row["value"]),
        sd=_number(row["sd"]),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
