"""How many epochs of each cell fit into the hours that there are, from a pace that is measured."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from sca_search.errors import SpecError
from sca_search.study.time_plan import Amount, Pace, seconds_of

# The rest is for a machine that is busier than when it was measured, and for the cells' test images.
RESERVE = 0.9


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


def epochs_that_fit(hours: float, measuring: float, cells: Iterable[Waiting]) -> dict[str, int]:
    """Epochs by the cells' names: the largest share of the paper's length that fits, the same for all.

    Seconds that were spent on `measuring` are gone. A cell that was begun goes on whatever is left: the same command
    must not refuse what it has begun because the machine is a little slower today.
    """
    waiting = list(cells)
    begun = {cell.name: cell.epochs for cell in waiting if cell.epochs}
    fresh = [cell for cell in waiting if cell.name not in begun]
    if not fresh:
        return begun
    seconds = RESERVE * (3600 * hours - measuring)
    longest = max(cell.full_epochs for cell in fresh)
    for epochs in range(longest, 0, -1):
        share = epochs / longest
        if sum(cell.seconds(share) for cell in waiting) <= seconds:
            return begun | {cell.name: cell.at(share) for cell in fresh}
    least = (sum(cell.seconds(0.0) for cell in waiting) / RESERVE + measuring) / 3600
    raise SpecError(
        f"--hours must be at least {math.ceil(100 * least) / 100:g} for one epoch of each of {len(fresh)} cells on "
        f"this machine, got {hours:g}"
    )
