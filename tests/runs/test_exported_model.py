"""The exported model of a trial and what is said of its refits, by hand."""

from typing import Any

import pytest

from sca_search.config.study import GoalSpec
from sca_search.runs.candidates import exported_model, model_name, refit_text

TARGET = GoalSpec(target_sparsity=0.5)
ROW = {"trial": 4, "images": 100.0}


def records(*values: tuple[float, float], **more: Any) -> list[dict[str, Any]]:
    """A trial and its refits with (metric, loss)."""
    return [
        {"refit": refit, "metric": metric, "loss": loss, "sparsity": 0.5, **more}
        for refit, (metric, loss) in enumerate(values)
    ]


def test_the_exported_model_is_selected_by_the_rule_of_trials() -> None:
    # The standard error of 0.9 on 100 images is 0.03: refit 1 is tied with the trial, refit 2 is not.
    known = records((0.9, 0.5), (0.875, 0.4), (0.86, 0.3))
    assert exported_model(known, ROW, TARGET, "accuracy")["refit"] == 1
    assert exported_model(known, ROW | {"images": 10_000.0}, TARGET, "accuracy")["refit"] is None
    assert exported_model(known, {"trial": 4}, TARGET, "accuracy")["refit"] is None


def test_a_refit_that_misses_the_goal_is_left_out_unless_all_miss_it() -> None:
    known = records((0.9, 0.5), (0.9, 0.4))
    known[1]["file_bytes"], known[0]["file_bytes"] = 2000, 1000
    assert exported_model(known, ROW, GoalSpec(max_kb=1.0), "accuracy")["refit"] is None
    assert exported_model(known, ROW, GoalSpec(max_kb=0.5), "accuracy")["refit"] == 1
    assert exported_model(known, ROW, GoalSpec(target_sparsity=0.9), "accuracy")["refit"] == 1
    known[1]["metric"] = 0.89
    assert exported_model(known, ROW, GoalSpec(min_accuracy=0.9), "accuracy")["refit"] is None


def test_the_expected_metric_is_that_of_the_refits_alone() -> None:
    # The selected trial's 1.0 plays no part. Mean of 0.9 and 0.96; sample standard deviation 0.06 / √2.
    known = records((1.0, 0.1), (0.9, 0.5), (0.96, 0.4))
    figures = exported_model(known, ROW | {"images": 10_000.0}, TARGET, "accuracy")
    assert figures["refit_mean"] == pytest.approx(0.93)
    assert figures["refit_std"] == pytest.approx(0.06 / 2**0.5)
    assert (figures["refit"], figures["metric"], figures["refits"]) == (None, 1.0, 2)
    assert refit_text(figures, "accuracy") == "93.00% ± 4.24% over 2 seeds"
    assert refit_text(figures, "r2") == "0.93 ± 0.042 over 2 seeds"


def test_one_refit_has_no_spread_and_none_no_mean() -> None:
    known = records((1.0, 0.1), (0.9, 0.5))
    one, none = (exported_model(some, ROW, TARGET, "accuracy") for some in (known, known[:1]))
    assert (one["refits"], one["refit_mean"], one["refit_std"]) == (1, 0.9, None)
    assert refit_text(one, "accuracy") == "90.00%, one refit"
    assert (none["refits"], none["refit_mean"], none["refit_std"]) == (0, None, None)
    assert refit_text(none, "accuracy") == "no refit"


def test_the_name_of_a_model_tells_a_refit_from_the_trial() -> None:
    assert model_name({"trial": 4, "refit": None}) == "trial 4"
    assert model_name({"trial": 4, "refit": 1}) == "trial 4 (refit 1)"
