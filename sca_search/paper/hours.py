"""How many epochs of each cell fit into the hours that there are, from a pace that is measured."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sca_search.errors import SpecError
from sca_search.time_plan import Amount, Pace, seconds_of


@dataclass(frozen=True)
class Waiting:
    """A cell that is not finished: what it takes follows from its epochs."""

    name: str
    pace: Pace
    full_epochs: int
    seeds: int
    has_dense: bool
    epochs: int | None = None  # fixed, where the cell was begun before

    def at(self, share: float) -> int:
        """Its epochs at a share of the paper's."""
        return self.epochs or max(1, math.floor(share * self.full_epochs + 1e-9))

    def seconds(self, share: float) -> float:
        epochs = self.at(share)
        return seconds_of(Amount(epochs if self.has_dense else 0, epochs, 0, self.seeds, 0), self.pace)


def epochs_that_fit(seconds: float, cells: Iterable[Waiting]) -> dict[str, int]:
    """Epochs by the cells' names: the largest share of the paper's length that fits, the same for all."""
    waiting = list(cells)
    if not waiting:
        return {}
    longest = max(cell.full_epochs for cell in waiting)
    for epochs in range(longest, 0, -1):
        share = epochs / longest
        if sum(cell.seconds(share) for cell in waiting) <= seconds:
            return {cell.name: cell.at(share) for cell in waiting}
    least = sum(cell.seconds(0.0) for cell in waiting) / 3600
    raise SpecError(
        f"--hours must be at least {math.ceil(100 * least) / 100:g} for one epoch of each of {len(waiting)} cells on "
        f"this machine, got {seconds / 3600:.3g}"
    )
