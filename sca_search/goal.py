"""What a study is after: which sparsity each trial is planned at, and which trial is chosen in the end.

`target_sparsity`: every other trial at the target, the others on a grid (or none there); chosen is the most accurate
at the target.
`min_accuracy`: trials between the sparsest that passed and the next that did not; chosen is the sparsest that passed.
`front`: trials on the grid; chosen is the sparsest within half a point of the most accurate.
"""

import math

import pandas as pd

from sca_search.results import choose, measured, sparsest
from sca_search.spec import GoalSpec

# In the order in which they are visited: first where accuracy begins to cost, which users ask about and which decides
# most of the front's area, then the gaps between.
GRID = (0.9, 0.97, 0.99, 0.7, 0.0, 0.5, 0.95, 0.8, 0.3, 0.98, 0.6, 0.85, 0.15, 0.4)
# Where a search for the highest sparsity starts, and where it gives up: few networks live with one weight in 500.
FIRST_TRY, LAST_TRY = 0.9, 0.998
NEAR_THE_BEST = 0.005


def planned_ahead(goal: GoalSpec, candidate: int) -> float | None:
    """The sparsity for a candidate, None where it depends on what earlier ones reach."""
    if goal.min_accuracy is not None:
        return None
    if goal.target_sparsity is None:
        return GRID[candidate % len(GRID)]
    if candidate % 2 == 0 or not goal.grid:
        return goal.target_sparsity
    grid = [sparsity for sparsity in GRID if abs(sparsity - goal.target_sparsity) > 0.005]
    return grid[candidate // 2 % len(grid)]


def planned_between(frame: pd.DataFrame, accuracy: float) -> float:
    """For `min_accuracy`, given the trials so far.

    Half-way, in the logarithm of the density, between the sparsest that passed and the next that did not.
    """
    tried = measured(frame)
    if tried.empty:
        return FIRST_TRY
    passed = tried.loc[tried["accuracy"] >= accuracy, "sparsity"].max()
    low = 0.0 if math.isnan(passed) else float(passed)
    failed = tried.loc[(tried["accuracy"] < accuracy) & (tried["sparsity"] > low + 1e-9), "sparsity"].min()
    high = LAST_TRY if math.isnan(failed) else float(failed)
    return 1.0 - math.sqrt((1.0 - low) * (1.0 - min(high, LAST_TRY)))


def chosen_trial(frame: pd.DataFrame, goal: GoalSpec) -> int | None:
    """The trial that the goal picks, None where none meets it."""
    if goal.target_sparsity is not None:
        return choose(frame, goal.target_sparsity)
    if goal.min_accuracy is not None:
        return sparsest(frame, goal.min_accuracy)
    best = measured(frame)["accuracy"].max()
    return None if math.isnan(best) else sparsest(frame, float(best) - NEAR_THE_BEST)


def typical_sparsity(goal: GoalSpec) -> float:
    """One sparsity that stands for the goal where a single figure is needed before any trial."""
    return FIRST_TRY if goal.target_sparsity is None else goal.target_sparsity


def described(goal: GoalSpec) -> str:
    """The goal in words."""
    if goal.target_sparsity is not None:
        return f"target sparsity {goal.target_sparsity:.4g}"
    if goal.min_accuracy is not None:
        return f"highest sparsity at {goal.min_accuracy:.2%} accuracy or more"
    return "the whole front"


def unmet(frame: pd.DataFrame, goal: GoalSpec) -> str:
    """Why nothing was chosen, and what the best is."""
    tried = measured(frame)
    if tried.empty:
        return f"No trial finished, so none meets the goal ({described(goal)})."
    best = tried.sort_values(["accuracy", "sparsity"]).iloc[-1]
    return (
        f"No trial meets the goal ({described(goal)}): the most accurate, trial {best['trial']}, "
        f"has {best['accuracy']:.2%} at a sparsity of {best['sparsity']:.2%}."
    )
