"""sca-search compare: methods under equal conditions, from the command to the table and the page."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sca_search.config.load import resolve
from sca_search.config.names import METHODS
from sca_search.errors import SpecError
from sca_search.study.compare import Comparison, chosen_methods
from sca_search.study.space import Space
from sca_search.ternary.allocation import LayerCost, LayerShape
from tests.support.command import Outcome

Run = Callable[..., Outcome]
SHORT = ("--target-sparsity", "0.7", "--trials", "1", "--epochs", "2", "--dense-epochs", "3", "--train-limit", "300")


def contest(tmp_path: Path, **flags: object) -> Comparison:
    return Comparison(resolve(None, {"target_sparsity": 0.7, **flags}), ("sca", "twn"), 2, tmp_path)


def test_all_means_every_method() -> None:
    assert chosen_methods("all") == tuple(METHODS)
    assert chosen_methods(" twn, sca,twn ") == ("twn", "sca")


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("twm", "unknown method 'twm': known are .*; did you mean 'twn'"),
        (",", "must be all, or names separated by commas, got none"),
    ],
)
def test_methods_that_are_not_there_are_rejected(given: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=sentence):
        chosen_methods(given)


def test_study_of_a_method_differs_only_in_its_goal_and_method(tmp_path: Path) -> None:
    made = contest(tmp_path, epochs=3, trials=2, seed=5)
    ours, theirs = made.spec_of("sca", 1), made.spec_of("twn", 1)
    assert (ours.seed, theirs.seed) == (6, 6)
    assert (ours.name, theirs.name) == ("sca-1", "twn-1")
    assert ours.goal.target_sparsity == 0.7
    assert not ours.goal.grid
    assert theirs.goal.front
    assert (ours.train, ours.data, ours.model) == (theirs.train, theirs.data, theirs.model)
    assert ours.search.trials == theirs.search.trials == 2
    assert theirs.search.method == "twn"


def test_every_method_has_as_many_trials_and_planned_zeros_are_allocated_by_sensitivity(tmp_path: Path) -> None:
    made = contest(tmp_path, trials=5)
    shapes = (LayerShape("a", (10, 20), 1), LayerShape("b", (30, 20), 1))
    costs = tuple(
        LayerCost(name, sparsity, slope * sparsity, 0.0)
        for name, slope in (("a", 1.0), ("b", 9.0))
        for sparsity in (0.0, 0.5, 0.9)
    )
    spaces = {name: Space(made.spec_of(name, 0), shapes, costs) for name in METHODS}
    assert {space.spec.search.trials for space in spaces.values()} == {5}
    planned = {name for name, known in METHODS.items() if known.plans_sparsity}
    assert planned == {"sca", "straight-through", "ttq", "pruning"}
    first = {name: space.candidate(space.first_guess(), 0.7, 0) for name, space in spaces.items() if name in planned}
    assert first["sca"].allocation["a"] > 0.75 > first["sca"].allocation["b"]
    assert all(candidate.allocation == first["sca"].allocation for candidate in first.values())
    rates = {"learning_rate", "latent_learning_rate", "frozen_learning_rate", "distillation", "temperature"}
    assert all(rates <= space.ranges().keys() for space in spaces.values())
    schedule = {"spread", "rise_start", "rise", "rise.a", "density.a"}
    assert all(schedule <= spaces[name].ranges().keys() for name in ("sca", "straight-through", "pruning"))
    assert {"density.a", "density.b"} <= spaces["ttq"].ranges().keys()


def test_form_of_sca_is_the_studys(tmp_path: Path) -> None:
    made = contest(tmp_path, form="paper")
    assert made.spec_of("sca", 0).search.form == "paper"
    assert made.spec_of("twn", 0).search.form == "decoupled"


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_methods_are_trained_from_one_start_and_kept(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "contest"
    words = ("compare", "--methods", "sca,ttq,full-precision", *SHORT, "--out", str(folder), "--json")
    done = run(*words)
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    rows = {row["method"]: row for row in output["rows"]}
    assert list(rows) == ["sca", "ttq", "full-precision"]
    starts = {(folder / f"{method}-0" / "dense.safetensors").read_bytes() for method in rows}
    assert len(starts) == 1
    assert rows["sca"]["sparsity"] == pytest.approx(0.7, abs=1e-4)
    assert rows["ttq"]["sparsity"] == pytest.approx(0.7, abs=1e-4)
    assert rows["ttq"]["weights"] == "{-a,0,+b}"
    assert {row["epochs"] for row in rows.values()} == {2 + 5}
    assert all(row["latency_ms"] > 0 for row in rows.values())
    assert rows["full-precision"]["ternary_bytes"] == 0
    assert rows["full-precision"]["file_bytes"] > 4 * rows["sca"]["file_bytes"]
    page = (folder / "comparison.html").read_text(encoding="utf-8")
    assert "{-a,0,+b}" in page
    assert "<h1>sca-0 · ttq-0 · full-precision-0</h1>" in page
    # Once more: nothing is trained, and a seed more only adds to it.
    changed = (folder / "sca-0" / "study.db").stat().st_mtime_ns
    again = run(*words)
    assert json.loads(again.stdout)["rows"][0]["test_metric"] == rows["sca"]["test_metric"]
    assert (folder / "sca-0" / "study.db").stat().st_mtime_ns == changed
    other = run("compare", "--methods", "sca", *SHORT, "--batch", "32", "--out", str(folder))
    assert other.returncode == 2
    assert "holds another study, it differs in train.batch; choose another --out" in " ".join(other.stderr.split())


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--methods", "twm"), "unknown method 'twm'"),
        (("--seeds", "1" + "0" * 40), f"--seeds must be from 1 to 10,000, got 1{'0' * 40}"),
        (("--seeds", "0"), "--seeds must be from 1 to 10,000, got 0"),
        (("--target-sparsity", "1.5"), "--target-sparsity must be"),
    ],
)
def test_bad_flags_are_rejected_and_nothing_is_written(
    run: Run, tmp_path: Path, flags: tuple[str, ...], sentence: str
) -> None:
    done = run("compare", *flags, "--out", str(tmp_path / "contest"))
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert not (tmp_path / "contest").exists()


def test_study_without_a_target_is_rejected(run: Run, tmp_path: Path) -> None:
    study = tmp_path / "front.toml"
    study.write_text("[goal]\nfront = true\n", encoding="utf-8")
    done = run("compare", str(study), "--out", str(tmp_path / "contest"))
    assert done.returncode == 2
    assert "compare needs a target sparsity as its only goal" in " ".join(done.stderr.split())
