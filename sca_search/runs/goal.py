"""The goal of a study: the sparsity that each trial is planned at, and the trial that is chosen in the end.

`target_sparsity`: every other trial at the target, the others on a grid (or all at the target); the most accurate one
at the target is chosen.
`min_accuracy`: trials between the sparsest that passed and the next that failed; the sparsest that passed is chosen.
`front`: trials on the grid; the sparsest within half a point of the most accurate is chosen.

Accuracy stands for the study's metric; for one with a unit, a point is a hundredth of its best value.

Budgets: every other trial uses up the tightest, the others lie on the grid; the most accurate that was measured to be
within all of them is chosen. With `target_sparsity` it has at least that sparsity. With `min_accuracy`, trials lie
between the fastest, smallest or sparsest that passed and the next that failed.
"""

import math

import pandas as pd

from sca_search.config.costs import COST_METRICS
from sca_search.config.names import ACCURACY, format_metric, metric_scale
from sca_search.config.study import GoalSpec, StudySpec
from sca_search.runs.choice import Choice, amount, choose, least_of
from sca_search.runs.trials import measured

# In the order of the trials: first the sparsities where accuracy begins to drop, which matter most to users and to the
# area of the front, starting with the one that alone covers most of it; then the gaps between them.
GRID = (0.97, 0.9, 0.99, 0.7, 0.0, 0.5, 0.95, 0.8, 0.3, 0.98, 0.6, 0.85, 0.15, 0.4)
# Where a search for the highest sparsity starts and ends: few networks work with one weight in 500.
FIRST_TRY, LAST_TRY = 0.9, 0.998
NEAR_THE_BEST = 0.005
# Columns that `goal.prefer` maximizes or minimizes.
PREFERRED = {"sparsest": "sparsity"} | {metric.prefer: metric.key for metric in COST_METRICS if metric.prefer}


def planned_ahead(goal: GoalSpec, candidate: int) -> float | None:
    """Planned sparsity of a candidate; None if it depends on earlier trials or on budgets."""
    if goal.min_accuracy is not None:
        return None
    if goal.front:
        return GRID[candidate % len(GRID)]
    if candidate % 2 == 0 or not goal.grid:
        return None if goal.budgets else goal.target_sparsity
    target = math.inf if goal.target_sparsity is None else goal.target_sparsity
    grid = [sparsity for sparsity in GRID if abs(sparsity - target) > 0.005]
    return grid[candidate // 2 % len(grid)]


def planned_sparsities(spec: StudySpec) -> list[float | None]:
    """Planned sparsity per trial; None for recipes and methods that do not plan it."""
    return [planned_ahead(spec.goal, number) if spec.plans_sparsity else None for number in range(spec.search.trials)]


def limits_of(goal: GoalSpec) -> dict[str, float]:
    """The budgets in the units of their columns, by column."""
    budgets = goal.budgets
    return {each.key: budgets[each.budget] * each.scale for each in COST_METRICS if each.budget in budgets}


def is_within(frame: pd.DataFrame, goal: GoalSpec) -> pd.Series:
    """Whether each trial was measured to be within all budgets."""
    within = pd.Series(True, index=frame.index)
    for column, most in limits_of(goal).items():
        within &= frame[column] <= most if column in frame else False  # False for NaN
    return within


def planned_amount(frame: pd.DataFrame, accuracy: float, column: str, ends: tuple[float, float]) -> float:
    """Cost to plan the next trial at for `min_accuracy`, given the trials so far and the lowest and highest possible.

    The geometric mean of the lowest that passed and the next below it that failed.
    """
    if column not in frame:
        return math.sqrt(ends[0] * ends[1])
    known = measured(frame)
    passed = known.loc[known["metric"] >= accuracy, column].min()
    high = ends[1] if math.isnan(passed) else float(passed)
    failed = known.loc[(known["metric"] < accuracy) & (known[column] < high), column].max()
    low = ends[0] if math.isnan(failed) else float(failed)
    return math.sqrt(low * high)


def planned_between(frame: pd.DataFrame, accuracy: float) -> float:
    """Sparsity to plan the next trial at for `min_accuracy`, given the trials so far.

    Its density is the geometric mean of those of the sparsest that passed and the next that failed.
    """
    tried = measured(frame)
    if tried.empty:
        return FIRST_TRY
    passed = tried.loc[tried["metric"] >= accuracy, "sparsity"].max()
    low = 0.0 if math.isnan(passed) else float(passed)
    failed = tried.loc[(tried["metric"] < accuracy) & (tried["sparsity"] > low + 1e-9), "sparsity"].min()
    high = LAST_TRY if math.isnan(failed) else float(failed)
    return 1.0 - math.sqrt((1.0 - low) * (1.0 - min(high, LAST_TRY)))


def chosen_trial(frame: pd.DataFrame, goal: GoalSpec, metric: str = ACCURACY) -> Choice | None:
    """The trial that the goal selects; None if none meets it."""
    if goal.budgets:
        frame = frame[is_within(frame, goal)]
    if goal.min_accuracy is not None:
        return least_of(frame, goal.min_accuracy, PREFERRED[goal.prefer], _preferred(goal, metric), metric)
    if goal.budgets or goal.target_sparsity is not None:
        return choose(frame, goal.target_sparsity or 0.0, metric, or_sparser=bool(goal.budgets))
    best = float(measured(frame)["metric"].max())
    if math.isnan(best):
        return None
    near = NEAR_THE_BEST * metric_scale(metric, best)
    near_the_best = f"highest sparsity within {amount(metric, near)} of the best validation {metric}"
    return least_of(frame, best - near, "sparsity", near_the_best, metric)


def typical_sparsity(goal: GoalSpec) -> float:
    """One sparsity that represents the goal before any trial."""
    return FIRST_TRY if goal.target_sparsity is None else goal.target_sparsity


def described(goal: GoalSpec, metric: str = ACCURACY) -> str:
    """The goal as text."""
    if goal.front:
        return "the whole front"
    budgets = goal.budgets
    parts = [
        f"{each.label} at most {budgets[each.budget]:g} {each.unit}" for each in COST_METRICS if each.budget in budgets
    ]
    if goal.target_sparsity is not None:
        parts.insert(0, f"target sparsity {goal.target_sparsity:.4g}")
    if goal.min_accuracy is not None:
        parts.insert(0, _preferred(goal, metric))
    return ", ".join(parts)


def _preferred(goal: GoalSpec, metric: str) -> str:
    best = {each.prefer: f"lowest {each.label}" for each in COST_METRICS}.get(goal.prefer, "highest sparsity")
    return f"{best} at {format_metric(metric, goal.min_accuracy or 0.0)} {metric} or more"


def goal_text(spec: StudySpec, metric: str = ACCURACY) -> str:
    """The goal of a study as text; a recipe has none."""
    return "none, a recipe is trained as given" if spec.recipe else described(spec.goal, metric)


def unmet(frame: pd.DataFrame, goal: GoalSpec, metric: str = ACCURACY) -> str:
    """Why no trial was chosen, and the best one."""
    tried = measured(frame)
    if tried.empty and goal.front:  # as for a recipe
        return "No trial finished."
    if tried.empty:
        return f"No trial finished, so none meets the goal ({described(goal, metric)})."
    best = tried.sort_values(["metric", "sparsity"]).iloc[-1]
    reached = ("" if metric == ACCURACY else f"{metric} ") + format_metric(metric, best["metric"])
    sentence = (
        f"No trial meets the goal ({described(goal, metric)}): the most accurate, trial {best['trial']}, "
        f"has {reached} at a sparsity of {best['sparsity']:.2%}"
    )
    limits = limits_of(goal)
    least = [
        f"the lowest {each.label} is {each.format(tried[each.key].min())}, the budget {each.format(limits[each.key])}"
        for each in COST_METRICS
        if each.key in limits and each.key in tried and tried[each.key].notna().any()
    ]
    return "; ".join([sentence, *least]) + "."
