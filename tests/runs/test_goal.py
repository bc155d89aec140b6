"""Goals: what is planned, what is chosen, and what is said when nothing meets the goal."""

import math
from pathlib import Path

import pandas as pd
import pytest

from sca_search.config.load import resolve
from sca_search.config.names import ACCURACY
from sca_search.config.study import GoalSpec
from sca_search.runs.goal import (
    GRID,
    chosen_trial,
    described,
    goal_text,
    is_within,
    limits_of,
    planned_ahead,
    planned_amount,
    planned_between,
    typical_sparsity,
    unmet,
)
from sca_search.runs.trials import trial_frame

TARGET = GoalSpec(target_sparsity=0.5)
ENOUGH = GoalSpec(min_accuracy=0.9)
FRONT = GoalSpec(front=True)


def frame(*points: tuple[float, float]) -> pd.DataFrame:
    """Complete trials at (sparsity, accuracy)."""
    return trial_frame(
        {"trial": number, "state": "complete", "sparsity": s, "metric": a, "loss": 0.1}
        for number, (s, a) in enumerate(points)
    )


def chosen_number(trials: pd.DataFrame, goal: GoalSpec, metric: str = ACCURACY) -> int | None:
    choice = chosen_trial(trials, goal, metric)
    return choice and choice.trial


def test_plan_of_the_front_is_the_grid_over_and_over() -> None:
    planned = [planned_ahead(FRONT, number) for number in range(2 * len(GRID))]
    assert planned == [*GRID, *GRID]
    assert {0.0, 0.5, 0.9, 0.97, 0.99} <= set(GRID)
    assert len(set(GRID)) == len(GRID)


def test_without_the_grid_every_trial_is_at_the_target() -> None:
    goal = GoalSpec(target_sparsity=0.7, grid=False)
    assert [planned_ahead(goal, number) for number in range(6)] == [0.7] * 6


def test_highest_sparsity_is_not_planned_ahead_and_starts_at_nine_tenths() -> None:
    assert planned_ahead(ENOUGH, 0) is None
    assert planned_between(frame(), 0.9) == 0.9


@pytest.mark.parametrize(
    ("seen", "density"),
    [
        # All passed: half-way in the logarithm between a density of 0.1 and the last try's 0.002.
        ([(0.9, 0.95)], math.sqrt(0.1 * 0.002)),
        # None passed: between all weights and the sparsity that failed.
        ([(0.9, 0.5)], math.sqrt(1.0 * 0.1)),
        # 0.8 passed and 0.95 failed; 0.3 failing below does not count, sparser ones passed.
        ([(0.8, 0.92), (0.95, 0.85), (0.3, 0.89), (0.99, 0.2)], math.sqrt(0.2 * 0.05)),
    ],
)
def test_next_sparsity_lies_between_passed_and_failed(seen: list[tuple[float, float]], density: float) -> None:
    assert planned_between(frame(*seen), 0.9) == pytest.approx(1 - density)


def test_search_for_the_highest_sparsity_closes_in() -> None:
    """A network that holds 0.9 accuracy up to a sparsity of 0.96: eight trials come within half a point."""
    seen: list[tuple[float, float]] = []
    for _ in range(8):
        sparsity = planned_between(frame(*seen), 0.9)
        seen.append((sparsity, 0.95 if sparsity <= 0.96 else 0.6))
    chosen = chosen_number(frame(*seen), ENOUGH)
    assert chosen is not None
    assert 0.955 <= seen[chosen][0] <= 0.96


def test_choice_by_goal() -> None:
    trials = frame((0.5, 0.97), (0.5, 0.98), (0.9, 0.978), (0.95, 0.91), (0.99, 0.6))
    assert chosen_number(trials, TARGET) == 1
    assert chosen_number(trials, ENOUGH) == 3
    assert chosen_number(trials, FRONT) == 2  # within half a point of 0.98
    assert chosen_number(frame(), FRONT) is None


def test_unmet_goal_says_what_the_best_is() -> None:
    sentence = unmet(frame((0.5, 0.8), (0.9, 0.7)), ENOUGH)
    assert "highest sparsity at 90.00% accuracy or more" in sentence
    assert "trial 0, has 80.00% at a sparsity of 50.00%" in sentence
    assert "No trial finished, so none meets the goal (target sparsity 0.5)" in unmet(frame(), TARGET)
    assert unmet(frame(), FRONT) == "No trial finished."


def test_typical_sparsity() -> None:
    assert typical_sparsity(TARGET) == 0.5
    assert typical_sparsity(ENOUGH) == 0.9


def taken(*points: tuple[float, float, float]) -> pd.DataFrame:
    """Complete trials at (sparsity, accuracy, milliseconds)."""
    return trial_frame(
        {"trial": number, "state": "complete", "sparsity": s, "metric": a, "loss": 0.1, "latency_ms": ms}
        for number, (s, a, ms) in enumerate(points)
    )


def test_budget_plans_every_other_trial_by_itself_and_the_others_on_the_grid() -> None:
    goal = GoalSpec(max_kb=2.0)
    assert [planned_ahead(goal, number) for number in range(4)] == [None, GRID[0], None, GRID[1]]
    assert planned_ahead(GoalSpec(max_kb=2.0, grid=False), 1) is None
    both = GoalSpec(max_kb=2.0, target_sparsity=0.9)
    assert [planned_ahead(both, number) for number in range(2)] == [None, 0.97]


def test_limits_are_in_the_units_of_what_is_measured() -> None:
    goal = GoalSpec(max_latency_ms=0.4, max_ternary_kb=2.0, max_kb=3.0)
    assert limits_of(goal) == {"latency_ms": 0.4, "ternary_bytes": 2048.0, "file_bytes": 3072.0}


def test_only_what_was_measured_to_be_within_is_chosen() -> None:
    seen = taken((0.5, 0.99, 0.5), (0.7, 0.98, 0.4), (0.9, 0.97, 0.2), (0.95, 0.999, math.nan))
    assert is_within(seen, GoalSpec(max_latency_ms=0.4)).tolist() == [False, True, True, False]
    assert chosen_number(seen, GoalSpec(max_latency_ms=0.4)) == 1
    assert chosen_number(seen, GoalSpec(max_latency_ms=0.4, target_sparsity=0.8)) == 2
    assert chosen_number(seen, GoalSpec(max_latency_ms=0.1)) is None
    assert chosen_number(seen, GoalSpec(max_kb=1.0)) is None  # nobody measured it


def test_fastest_of_the_accurate_ones_is_chosen() -> None:
    seen = taken((0.5, 0.99, 0.3), (0.7, 0.98, 0.25), (0.9, 0.9, 0.1))
    assert chosen_number(seen, GoalSpec(min_accuracy=0.95, prefer="fastest")) == 1
    assert chosen_number(seen, GoalSpec(min_accuracy=0.995, prefer="fastest")) is None
    assert chosen_number(frame((0.5, 0.99)), GoalSpec(min_accuracy=0.95, prefer="smallest")) is None


@pytest.mark.parametrize(
    ("seen", "planned"),
    [
        ([], math.sqrt(0.1 * 1.6)),
        ([(0.5, 0.99, 0.4)], math.sqrt(0.1 * 0.4)),  # passed: less is tried
        ([(0.5, 0.8, 0.4)], math.sqrt(0.4 * 1.6)),  # failed: more
        ([(0.5, 0.99, 0.8), (0.9, 0.8, 0.2), (0.95, 0.7, 0.15)], math.sqrt(0.2 * 0.8)),
    ],
)
def test_next_amount_lies_between_passed_and_failed(seen: list[tuple[float, float, float]], planned: float) -> None:
    assert planned_amount(taken(*seen), 0.9, "latency_ms", (0.1, 1.6)) == pytest.approx(planned)


def test_unmet_budget_says_what_was_reached() -> None:
    said = unmet(taken((0.5, 0.99, 0.5), (0.9, 0.97, 0.25)), GoalSpec(max_latency_ms=0.2))
    assert said == (
        "No trial meets the goal (latency at most 0.2 ms): the most accurate, trial 0, has 99.00% at a sparsity of "
        "50.00%; the lowest latency is 0.25 ms, the budget 0.2 ms."
    )


def test_goals_in_words() -> None:
    assert described(GoalSpec(max_ternary_kb=64.0, target_sparsity=0.9)) == (
        "target sparsity 0.9, ternary size at most 64 KB"
    )
    assert described(GoalSpec(min_accuracy=0.98, prefer="fastest", max_kb=9.0)) == (
        "lowest latency at 98.00% accuracy or more, file size at most 9 KB"
    )


def test_aim_of_a_recipe_is_no_goal(tmp_path: Path) -> None:
    path = tmp_path / "point.toml"
    path.write_text("[recipe]\nepochs = 40\nalpha = 0.1\nstrength_lambda = 1e-3\nlearning_rate = 0.01\n")
    assert goal_text(resolve(path, {})) == "none, a recipe is trained as given"
    assert goal_text(resolve(None, {"front": True})) == "the whole front"
    assert goal_text(resolve(None, {"min_accuracy": 0.8}), "r2") == "highest sparsity at 0.8 r2 or more"


def test_goals_are_told_in_the_metrics_own_unit() -> None:
    goal = GoalSpec(min_accuracy=-12.5)
    assert described(goal, "negative-mae") == "highest sparsity at -12.5 negative-mae or more"
    said = unmet(frame((0.5, -20.0)), goal, "negative-mae")
    assert "trial 0, has negative-mae -20 at a sparsity of 50.00%" in said


def test_near_the_best_is_half_a_hundredth_of_a_metric_with_a_unit() -> None:
    seen = frame((0.3, -100.0), (0.6, -100.4), (0.9, -100.6))
    assert chosen_number(seen, FRONT, "negative-mae") == 1  # within 0.5 of -100
    assert chosen_number(seen, FRONT, "r2") == 0
