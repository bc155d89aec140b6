"""The figures of the paper's seven tables, as printed there: fractions in percent."""

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter

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
        rows = [{key: text or None for key, text in row.items()} for row in csv.DictReader(file)]
    return TypeAdapter(tuple[Figure, ...]).validate_python(rows)
