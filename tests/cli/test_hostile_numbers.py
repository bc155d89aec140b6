"""Numbers in a study file: rejected where no study could work with them, and used where one can."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from sca_search.config.load import resolve
from sca_search.config.recipe import describe_scaling, recipe_candidate
from sca_search.config.study import StudySpec
from sca_search.data import load_data
from sca_search.errors import DataError, SpecError

# The keys that a recipe must have.
RECIPE = {"epochs": "200", "alpha": "0.1", "strength_lambda": "1e-7", "learning_rate": "0.01"}


def study_with(folder: Path, key: str, number: str) -> Path:
    """A study file with one value and the other keys that it needs."""
    table, _, name = key.rpartition(".")
    lines = [f"{key} = {number}"]
    if table == "recipe":
        lines += [f"recipe.{needed} = {value}" for needed, value in RECIPE.items() if needed != name]
    study = folder / "study.toml"
    study.write_text("\n".join(lines), encoding="utf-8")
    return study


NUMBERS = ("9" * 5000, "9" * 4000, "1e999", "-1e999", "inf", "nan", str(2**64), "1" + "0" * 400, "[" * 20_000)
# One key per type of a bounded number, since the type holds the rule: integers, then fractions.
BOUNDED = (
    *("seed", "search.trials", "search.workers", "search.threads", "search.refits", "train.batch", "data.image_size"),
    *("data.train_limit", "recipe.epochs", "trainer.accumulate_grad_batches"),
    *("goal.target_sparsity", "goal.min_accuracy", "search.keep", "search.space.distillation"),
)
# Every number with an integer and a fraction; every other type with a number that overflows and one that is none.
CASES = [
    *((key, number) for key in ("search.trials", "goal.target_sparsity") for number in NUMBERS),
    *((key, number) for key in BOUNDED for number in ("1" + "0" * 400, "nan")),
]


@pytest.mark.parametrize(("key", "number"), dict.fromkeys(CASES), ids=lambda value: value[:20])
def test_a_number_out_of_bounds_is_rejected(tmp_path: Path, key: str, number: str) -> None:
    study = study_with(tmp_path, key, number)
    with pytest.raises(SpecError) as rejected:
        resolve(study, {})
    assert str(rejected.value).startswith(f"{study}: ")
    assert all(len(fault) < 600 for fault in str(rejected.value).split("\n"))


# Floats without an upper limit, besides the budgets: nothing overflows where they are used.
UNLIMITED = {
    *("train.dense_learning_rate", "train.weight_decay", "train.last_layer_weight_decay", "search.trial_memory_gb"),
    *("recipe.alpha", "recipe.spread"),
}


def parts(annotation: Any) -> set[type]:
    """The plain types in an annotation."""
    inner = [part for argument in get_args(annotation) for part in parts(argument)]
    return set(inner) if get_args(annotation) else {annotation} if isinstance(annotation, type) else set()


def numeric_keys(table: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in table.model_fields.items():
        types = parts(field.annotation)
        for inner in [each for each in types if issubclass(each, BaseModel)]:
            yield from numeric_keys(inner, f"{prefix}{name}.")
        if types & {int, float}:
            yield prefix + name


def test_every_number_of_a_study_has_an_upper_limit_except_the_known_ones(tmp_path: Path) -> None:
    accepted = set()
    for key in numeric_keys(StudySpec):
        with suppress(SpecError):
            resolve(study_with(tmp_path, key, "1e308"), {})
            accepted.add(key)
    assert {key for key in accepted if not key.startswith("goal.max_")} == UNLIMITED


# One key per type of a float that a study waits for, multiplies or exponentiates.
FLOATS = (
    "search.space.temperature",
    "search.heartbeat",
    "search.space.strength_first",
    "search.space.allocation",
    "recipe.learning_rate",
)


@pytest.mark.parametrize("number", ["1e308", "1e31", str(2**200), "inf", "nan"])
@pytest.mark.parametrize("key", FLOATS)
def test_a_float_that_no_study_can_work_with_is_rejected(tmp_path: Path, key: str, number: str) -> None:
    study = study_with(tmp_path, key, number)
    with pytest.raises(SpecError, match=rf"study\.toml: {key}"):
        resolve(study, {})


@pytest.mark.parametrize(
    ("key", "steps"),
    [
        ("train.learning_rate_steps", "[[1, 1e308]]"),
        ("recipe.lambda_steps", "[[1e308, 2]]"),
        ("recipe.learning_rate_steps", "[[1, 1e20], [2, 1e20]]"),
        ("train.learning_rate_steps", "[[1, 1e20], [2, 1e20], [3, 1e-20]]"),
    ],
)
def test_steps_whose_product_overflows_are_rejected(tmp_path: Path, key: str, steps: str) -> None:
    study = study_with(tmp_path, key, steps)
    with pytest.raises(SpecError, match=rf"study\.toml: {key}.* at most 1e\+30"):
        resolve(study, {})


@pytest.mark.parametrize("epochs", [1, 200, 1_000_000])
def test_a_recipe_at_all_its_limits_is_shortened(tmp_path: Path, epochs: int) -> None:
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
def test_accumulate_grad_batches_must_be_a_count(tmp_path: Path, given: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f"trainer.accumulate_grad_batches = {given}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=r"trainer must have accumulate_grad_batches from 1 to 1,000,000, an integer"):
        resolve(study, {})


@pytest.mark.parametrize("given", ['"64-true"', '"bf16-true"', '"16-true"', "64", "true", '"x"'])
def test_a_precision_that_changes_the_weights_is_rejected(tmp_path: Path, given: str) -> None:
    with pytest.raises(
        SpecError, match="trainer must have as precision one of 32-true, 32, 16-mixed, 16, bf16-mixed, bf16, got"
    ):
        resolve(study_with(tmp_path, "trainer.precision", given), {})


def test_images_larger_than_the_memory_are_one_sentence() -> None:
    with pytest.raises(DataError, match="data set 'digits': must fit into this machine's memory, it ran out of memory"):
        load_data("digits", seed=0, image_size=2**31)


@pytest.mark.parametrize("key", ["goal.max_kb", "train.dense_learning_rate"])
@pytest.mark.parametrize("number", ["1e308", str(2**64), "5e-324"])
def test_an_unbounded_float_may_have_any_size(tmp_path: Path, key: str, number: str) -> None:
    study = study_with(tmp_path, key, number)
    table, name = key.split(".")
    assert getattr(getattr(resolve(study, {}), table), name) == float(number)
