"""The plan of a study: which sparsity each trial is to reach. Given, not sampled.

About half of the trials aim at the target; the others visit a grid that draws the front around it.
"""

from collections.abc import Iterator

# In the order in which they are visited: the ends that users ask about first, then the gaps between them.
GRID = (0.9, 0.0, 0.97, 0.7, 0.3, 0.99, 0.8, 0.5, 0.95, 0.15, 0.6, 0.98, 0.4, 0.85)


def planned_sparsities(target: float) -> Iterator[float]:
    """The target, a grid point, the target, the next grid point, … without end."""
    grid = tuple(sparsity for sparsity in GRID if abs(sparsity - target) > 0.005)
    visited = 0
    while True:
        yield target
        yield grid[visited % len(grid)]
        visited += 1
