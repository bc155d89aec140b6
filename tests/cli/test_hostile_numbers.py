"""Numbers that a study file brings: refused where no study could work with them, and used where one can."""

import math
from pathlib import Path

import pytest

from sca_search.config.load import resolve
from sca_search.config.recipe import describe_scaling, recipe_candidate
from sca_search.data import load_data
from sca_search.errors import DataError, SpecError

# Without which there is no recipe.
RECIPE = {"epochs": "200", "alpha": "0.1", "strength_lambda": "1e-7", "learning_rate": "0.01"}


def study_with(folder: Path, key: str, number: str) -> Path:
    """A study file with one value, and what it needs beside it."""
    table, _, name = key.rpartition(".")
    lines = [f"{key} = {number}"]
    if table == "recipe":
        lines += [f"recipe.{needed} = {value}" for needed, value in RECIPE.items() if needed != name]
    study = folder / "study.toml"
    study.write_text("\n".join(lines), encoding="utf-8")
    return study


NUMBERS = ("9" * 5000, "9" * 4000, "1e999", "-1e999", "inf", "nan", str(2**64), "1" + "0" * 400, "[" * 20_000)
# What is counted, and of what there can be no more than some.
COUNTS = (
    *("seed", "search.trials", "search.workers", "search.threads", "search.refits", "train.batch", "train.epochs"),
    *("train.dense_epochs", "train.frozen_epochs", "train.floor_per_layer", "data.image_size", "data.train_limit"),
    *("recipe.epochs", "recipe.images", "trainer.accumulate_grad_batches"),
)
SHARES = ("goal.target_sparsity", "goal.min_accuracy", "model.dropout", "search.keep", "train.distillation")


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
@pytest.mark.parametrize("key", [*COUNTS, *SHARES])
def test_a_number_beyond_all_bounds_is_refused(tmp_path: Path, key: str, number: str) -> None:
    study = study_with(tmp_path, key, number)
    with pytest.raises(SpecError) as refused:
        resolve(study, {})
    assert str(refused.value).startswith(f"{study}: ")
    assert all(len(fault) < 600 for fault in str(refused.value).split("\n"))


# What a study computes with in plain floats, waits for or multiplies with itself.
MEASURES = (
    *("train.temperature", "search.heartbeat", "search.checkpoint_every", "search.time_budget", "search.trial_time"),
    *("search.space.sharpness", "search.space.strength", "search.space.split", "search.space.own"),
    *("recipe.strength_lambda", "recipe.learning_rate"),
)


@pytest.mark.parametrize("number", ["1e308", "1e31", str(2**200), "inf", "nan"])
@pytest.mark.parametrize("key", MEASURES)
def test_a_measure_that_no_study_can_work_with_is_refused(tmp_path: Path, key: str, number: str) -> None:
    study = study_with(tmp_path, key, number)
    with pytest.raises(SpecError, match=rf"study\.toml: {key}"):
        resolve(study, {})


@pytest.mark.parametrize("key", ["train.learning_rate_steps", "recipe.lambda_steps", "recipe.learning_rate_steps"])
@pytest.mark.parametrize(
    "steps", ["[[1, 1e308]]", "[[1e308, 2]]", "[[1, 1e20], [2, 1e20]]", "[[1, 1e20], [2, 1e20], [3, 1e-20]]"]
)
def test_steps_that_multiply_beyond_all_measure_are_refused(tmp_path: Path, key: str, steps: str) -> None:
    study = study_with(tmp_path, key, steps)
    with pytest.raises(SpecError, match=rf"study\.toml: {key}.* at most 1e\+30"):
        resolve(study, {})


@pytest.mark.parametrize("epochs", [1, 200, 1_000_000])
def test_a_recipe_at_all_its_bounds_is_shortened(tmp_path: Path, epochs: int) -> None:
    lines = (
        *(
            f"recipe.epochs = {10**9}",
            f"recipe.images = {10**9}",
            "recipe.alpha = 1e308",
            "recipe.learning_rate = 1e30",
        ),
        *("recipe.strength_lambda = 1e30", "recipe.lambda_steps = [[0, 1e30], [1e30, 1e-300]]"),
        *(f"train.epochs = {epochs}", "data.train_limit = 10"),
    )
    study = tmp_path / "study.toml"
    study.write_text("\n".join(lines))
    spec = resolve(study, {})
    assert "recipe shortened" in describe_scaling(spec)
    strength = recipe_candidate(spec, seed=0).strength
    assert 0 < strength.at(0.0, epochs) < math.inf


@pytest.mark.parametrize("given", ["0", "-1", "true", "2.0", '"2"', "[2]", "1000001"])
def test_batches_that_are_added_up_are_a_count(tmp_path: Path, given: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f"trainer.accumulate_grad_batches = {given}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"trainer must have accumulate_grad_batches from 1 to 1,000,000, an integer"):
        resolve(study, {})


@pytest.mark.parametrize("given", ['"64-true"', '"bf16-true"', '"16-true"', "64", "true", '"x"'])
def test_a_precision_of_other_weights_than_ours_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(
        SpecError, match="trainer must have as precision one of 32-true, 32, 16-mixed, 16, bf16-mixed, bf16, got"
    ):
        resolve(study_with(tmp_path, "trainer.precision", given), {})


def test_images_for_which_there_is_no_memory_are_one_sentence() -> None:
    with pytest.raises(DataError, match="data set 'digits': must fit into this machine's memory, it ran out of memory"):
        load_data("digits", seed=0, image_size=2**31)


@pytest.mark.parametrize("key", ["goal.max_kb", "train.dense_learning_rate"])
@pytest.mark.parametrize("number", ["1e308", str(2**64), "5e-324"])
def test_a_measure_may_be_as_large_as_it_likes(tmp_path: Path, key: str, number: str) -> None:
    study = study_with(tmp_path, key, number)
    table, name = key.split(".")
    assert getattr(getattr(resolve(study, {}), table), name) == float(number)
