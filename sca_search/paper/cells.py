"""The cells of a table: each is a study of one recipe, with its own α and λ."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sca_search.config.load import resolve
from sca_search.errors import SpecError, unknown_name
from sca_search.paper.figures import ABLATION, DENSE, SCA, Figure


@dataclass(frozen=True)
class Cell:
    """One training of the paper to reproduce."""

    dataset: str
    network: str
    alpha: float | None = None  # None: that of the recipe
    strength_lambda: float | None = None
    tanh: bool = True
    has_dense: bool = False  # whether the table has the accuracy of the dense network as well

    @property
    def name(self) -> str:
        """Name of its run folder."""
        alpha = "" if self.alpha is None else f"-a{self.alpha:g}"
        strength = "" if self.strength_lambda is None else f"-l{self.strength_lambda:g}"
        return f"{self.dataset}-{self.network}{alpha}{strength}{'' if self.tanh else '-no-tanh'}"

    def __str__(self) -> str:
        alpha = "" if self.alpha is None else f", α {self.alpha:g}"
        strength = "" if self.strength_lambda is None else f", λ {self.strength_lambda:g}"
        return f"{self.network} on {self.dataset}{alpha}{strength}{'' if self.tanh else ', without tanh'}"


@dataclass(frozen=True)
class TrainingExtent:
    """The part of the paper's training that is run. None: all of it."""

    epochs: int | None = None
    train_limit: int | None = None
    networks: dict[str, str] = field(default_factory=dict)  # network of the paper -> a smaller one
    data: str | None = None  # another data set instead of the paper's

    def describe(self, full_epochs: Iterable[int]) -> str:
        """What differs from the paper."""
        lengths = "/".join(str(epochs) for epochs in dict.fromkeys(full_epochs))
        parts = [f"{smaller} instead of {original}" for original, smaller in self.networks.items()]
        parts += [f"{self.train_limit:,} training images"] if self.train_limit else []
        parts += [f"{self.epochs} epochs of the paper's {lengths}"] if self.epochs else []
        return ", ".join(parts)


FULL = TrainingExtent()
# Minutes on two cores instead of days: the VGG networks take seconds per hundred images.
QUICK = {
    "1": TrainingExtent(epochs=4, train_limit=20_000),
    **dict.fromkeys("2345", TrainingExtent(epochs=2, train_limit=2_000)),
    "6": TrainingExtent(epochs=4, train_limit=20_000, networks={"lenet": "lenet-medium"}),
    "7": TrainingExtent(epochs=3, train_limit=5_000, networks={"vgg-s": "vgg-variate"}),
}


def cells_of(figures: Iterable[Figure]) -> tuple[Cell, ...]:
    """The cells that the figures of a table come from, each once."""
    figures = list(figures)
    dense = {(figure.dataset, figure.network) for figure in figures if figure.method == DENSE}
    cells = []
    for figure in figures:
        if figure.method in {SCA, ABLATION}:
            network, point = (figure.dataset, figure.network), (figure.alpha, figure.strength_lambda)
            cells.append(Cell(*network, *point, tanh=figure.method != ABLATION, has_dense=network in dense))
    return tuple(dict.fromkeys(cells))


def select_networks(cells: tuple[Cell, ...], networks: Iterable[str]) -> tuple[Cell, ...]:
    """The cells of some networks; all if none is named."""
    selected, known = list(networks), {cell.network for cell in cells}
    for name in selected:
        if name not in known:
            raise SpecError(f"--network: {unknown_name('network of this table', name, known)}")
    return tuple(cell for cell in cells if not selected or cell.network in selected)


def require_one_network(cells: Iterable[Cell], weights: Path) -> None:
    """Reject weights for several networks: they fit one, with one number of classes."""
    found = dict.fromkeys(f"{cell.network} on {cell.dataset}" for cell in cells)
    if len(found) > 1:
        raise SpecError(
            f"--weights {weights}: must belong to the only network to train, got {', '.join(found)}; choose one "
            "with --network"
        )


def cell_of(figure: Figure, cells: Iterable[Cell]) -> Cell | None:
    """The cell that a figure comes from; the dense network belongs to the cell of its ternary one."""
    if not figure.is_ours:
        return None
    for cell in cells:
        is_same_network = (cell.dataset, cell.network) == (figure.dataset, figure.network)
        is_same_point = (cell.alpha, cell.strength_lambda) == (figure.alpha, figure.strength_lambda)
        if is_same_network and (figure.method == DENSE or is_same_point):
            return cell
    return None


def recipe_file(dataset: str, network: str) -> Path:
    """The study file of a recipe: inside an installed package, else in the checkout."""
    packaged, checkout = Path(__file__).parent / "recipes", Path(__file__).parents[2] / "studies" / "paper"
    return (packaged if packaged.is_dir() else checkout) / f"{dataset}-{network}.toml"


def full_epochs(cell: Cell) -> int:
    """Epochs of a cell in the paper."""
    recipe = resolve(recipe_file(cell.dataset, cell.network), {}).recipe
    assert recipe is not None
    return recipe.epochs
