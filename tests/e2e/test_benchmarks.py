"""Benchmarks: every program can be imported; rules of the README's claims, tables and sections. Nothing is measured."""

import importlib
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import numpy as np
import optuna
import pytest
import torch
from torch import nn

from sca_search.config.load import resolve
from sca_search.config.study import StudySpec
from sca_search.export.latency.calibrate import graph_of
from sca_search.export.model_card import sizes
from sca_search.paper.cells import cells_of
from sca_search.paper.comparison import Row, rows_of
from sca_search.paper.figures import figures_of
from sca_search.paper.result import CellResult
from sca_search.study.optuna_internals import WaitingTrialCache
from sca_search.study.setup import make_task
from sca_search.study.space import Space
from sca_search.ternary.allocation import LayerShape

FOLDER = Path(__file__).parents[2] / "benchmarks"
NAMES = sorted(path.stem for path in FOLDER.glob("[a-z]*.py"))
OWN_ENVIRONMENT = {"deepsparse_worker"}  # runs in an environment with DeepSparse

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="benchmarks are in a checkout only")


class _Modules(dict[str, ModuleType]):
    def __missing__(self, name: str) -> ModuleType:
        self[name] = importlib.import_module(f"benchmarks.{name}")
        return self[name]


@pytest.fixture
def modules() -> dict[str, ModuleType]:
    return _Modules()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in OWN_ENVIRONMENT])
def test_every_benchmark_can_be_imported(name: str, modules) -> None:
    """Names that a benchmark imports from the package must exist."""
    assert modules[name].__doc__


def rows(table: str, *results: CellResult) -> list[Row]:
    """A table whose first cells have these results."""
    figures = figures_of(table)
    return rows_of(figures, dict(zip(cells_of(figures), results, strict=False)))


def result(top1: float | tuple[float, ...], sparsity: float = 0.5, epochs: int = 9, **more: object) -> CellResult:
    found = top1 if isinstance(top1, tuple) else (top1,)
    return CellResult(epochs, "lenet", found, (1.0,) * len(found), (sparsity,) * len(found), **more)


# A narrower int8 network of the same size -----------------------------------------------------------------------------


def test_bytes_of_an_int8_network_are_those_of_its_exported_numbers(modules) -> None:
    task = make_task(StudySpec())
    network = modules["iso_size"].narrowed("lenet-small", 0.5)(10, (1, 8, 8), 0.0).eval()
    weights = 25 * 8 + 25 * 8 * 16 + 16 * 4 * 32 + 32 * 10
    assert modules["iso_size"].int8_bytes(network) == weights + 8 * (8 + 16 + 32 + 10)
    in_float = sizes(graph_of(replace(task, make_model=lambda: network), network, ()))
    assert modules["iso_size"].int8_bytes(network) == in_float.others - 3 * weights


def test_width_of_the_int8_network_is_the_closest_to_a_size(modules) -> None:
    _, task = modules["iso_size"].of_size(make_task(StudySpec()), "lenet-small", 6300)
    assert modules["iso_size"].int8_bytes(task.make_model()) == 6296


def test_int8_weights_are_rounded_per_output_and_their_entropy_is_counted(modules) -> None:
    layer = nn.Linear(3, 2)
    layer.weight.data = torch.tensor([[1.27, 0.634, -0.001], [0.0, 0.0, -2.54]])
    bits = modules["iso_size"].round_to_int8(layer)
    np.testing.assert_allclose(layer.weight.detach().numpy(), [[1.27, 0.63, 0.0], [0.0, 0.0, -2.54]], rtol=1e-5)
    # codes 127, 63, 0, 0, 0, -127
    assert bits == pytest.approx(3 / 6 * math.log2(6) + 3 / 6 * math.log2(2))


# Claims ---------------------------------------------------------------------------------------------------------------


def test_claims_without_results_are_not_run_and_show_the_papers_figures(modules) -> None:
    none = {table: rows(table) for table in "1234567"}
    every = modules["paper"].claims_of(none, none["2"])
    claims = [claim for claim in every if not claim.claim.startswith(("the same", "SCA is more"))]  # of RESULTS.md
    assert {(claim.here, claim.verdict) for claim in claims} == {("", "not run")}
    papers = {claim.claim: claim.paper for claim in claims}
    assert papers["ternary matches full precision (resnet20 on cifar10)"] == "91.28 % against 91.76 %: -0.48 points"
    assert papers["α covers the range of sparsities (LeNet on MNIST, table 6)"] == "0.008 to 99.97 % zeros"
    needed = [paper for claim, paper in papers.items() if claim.startswith("tanh is needed (CIFAR-10, table 5): ")]
    assert needed == ["without it 10 %, chance", "without it 10 %, chance"]


def test_claims_that_were_not_run_are_listed_below_the_table(modules) -> None:
    claim = modules["claims"].Claim
    text = modules["paper"].claims_text(
        [claim("a", "1 %", "2 %", "held"), claim("b", "3 %"), claim("c", "", "4 %", "not held")]
    )
    assert "2 claims were tested: 1 held, 1 not held." in text
    assert "Not run here: b." in text
    assert "| b |" not in text


@pytest.mark.parametrize(
    ("ours", "verdict"), [("99.30 ± 0.02", "held"), ("99.20 ± 0.02", "not held"), ("99.30 ± 0.20", "not held")]
)
def test_sca_is_more_accurate_by_more_than_the_standard_deviation(modules, ours: str, verdict: str) -> None:
    lines = [
        {"method": "sca", "weights": "{-1,0,+1}", "test, %": ours},
        {"method": "tang", "weights": "{-1,0,+1}", "test, %": "99.19 ± 0.05"},
        {"method": "lr-net", "weights": "{-1,0,+1}", "test, %": "99.00 ± 0.50"},
        {"method": "twn", "weights": "{-a,0,+a}", "test, %": "99.90 ± 0.01"},
    ]
    claim = modules["claims"].above_others(rows("1"), lines)
    assert claim.paper == "99.56 % against 99.50 % (LR-Net)"
    assert claim.here == f"{ours} % against 99.19 ± 0.05 % (tang), under equal conditions"
    assert claim.verdict == verdict
    assert modules["claims"].above_others(rows("1"), lines[:1]).verdict == "not run"


def test_claims_that_were_not_run_again_are_unchanged(modules, tmp_path: Path) -> None:
    paper, report, claim = modules["paper"], modules["report"], modules["claims"].Claim
    earlier = [claim("a", "1 %", "2 %", "held"), claim("b", "3 %", "4 %", "not held"), claim("gone", "", "5 %", "held")]
    file = tmp_path / "README.md"
    report.write_section(file, paper.SECTION, paper.claims_text(earlier))
    now = [claim("a", "1 %"), claim("b", "3 %", "3 %", "held"), claim("new", "6 %")]
    assert [each.cells for each in paper.with_earlier(now, report.read_table(file, paper.SECTION))] == [
        ["a", "1 %", "2 %", "held"],
        ["b", "3 %", "3 %", "held"],
        ["new", "6 %", "", "not run"],
    ]


def test_a_table_can_be_measured_in_parts(modules, tmp_path: Path) -> None:
    report, file = modules["report"], tmp_path / "RESULTS.md"
    report.write_section(file, "parts", report.table(["part", "value"], [["b", "1"], ["gone", "2"], ["c", "3"]]))
    merged = report.with_earlier(file, "parts", [["c", "4"], ["a", "5"]], order=["a", "b", "c", "later"])
    assert merged == [["a", "5"], ["b", "1"], ["c", "4"]]
    assert report.with_earlier(tmp_path / "RESULTS.md", "others", [["a", "5"]], order=["a", "b"]) == [["a", "5"]]


# The tolerance is 0.1 points or the standard deviation; a positive difference in the paper is not required here.
@pytest.mark.parametrize(
    ("found", "expected", "deviation", "holds"),
    [
        (0.3, 0.0, None, True),
        (-0.09, 0.0, None, True),
        (-0.11, 0.0, None, False),
        (-0.11, 0.0, 0.2, True),
        (-0.11, 0.5, None, False),
        (-0.57, -0.48, 0.02, True),
        (-0.59, -0.48, 0.02, False),
    ],
)
def test_ternary_matches_dense_within_the_papers_difference(modules, found, expected, deviation, holds) -> None:
    assert modules["claims"].matches(found, expected, deviation) is holds


@pytest.mark.parametrize(
    ("ternary", "dense", "verdict"),
    [(0.9946, 0.995, "held"), (0.985, 0.995, "not held"), ((0.99, 0.99), 0.995, "not held"), (0.9, 0.9, "undecided")],
)
def test_match_is_undecided_for_a_dense_network_far_below_the_papers(modules, ternary, dense, verdict) -> None:
    claim = modules["claims"].matches_dense("mnist", "lenet", rows("1", result(ternary, dense_top1=dense)))
    assert claim.verdict == verdict
    seeds = "2 seeds" if isinstance(ternary, tuple) else "1 seed"
    assert claim.here.endswith(f"points; 9 of 200 epochs, {seeds}")


@pytest.mark.parametrize(
    ("zeros", "verdict"),
    [
        ((0.1, 0.2, 0.3, 0.4), "held"),
        ((0.1, 0.3, 0.2, 0.4), "not held"),  # 1 - 6 · 2 / (4 · 15) = 0.8
        ((0.5, 0.5, 0.5, 0.5), "not held"),
        ((0.1, 0.2, 0.3), "not run"),
    ],
)
def test_sparsity_increases_by_rank_for_each_lambda_with_enough_cells(modules, zeros, verdict) -> None:
    claim = modules["claims"].increases("6", "LeNet", rows("6", *(result(0.9, sparsity) for sparsity in zeros)))
    assert claim.verdict == verdict


@pytest.mark.parametrize(("most", "verdict"), [(0.99, "held"), (0.8, "not held")])
def test_covered_range_is_nine_tenths_of_the_papers(modules, most, verdict) -> None:
    sparsities = (0.05, 0.1, 0.5, most)
    claim = modules["claims"].covers_range("6", "LeNet", rows("6", *(result(0.9, sparsity) for sparsity in sparsities)))
    assert (claim.verdict, claim.here[:4]) == (verdict, "5 to")


# Chance is 10 %: 70 % with tanh is 60 points above it, and 40 % is half of that.
@pytest.mark.parametrize(
    ("without", "with_tanh", "epochs", "collapsed"),
    [
        (0.39, 0.7, 9, True),
        (0.41, 0.7, 9, False),
        (0.10, 0.19, 9, None),
        (0.10, 0.7, 8, None),
        ((), 0.7, 9, True),
    ],
)
def test_collapse_is_judged_by_the_same_training_with_tanh(modules, without, with_tanh, epochs, collapsed) -> None:
    ablated, *_ = rows("5", result(without, failed=0 if without else 1))
    with_it = next(row for row in rows("2", result(with_tanh, epochs=epochs)) if row.ours is not None)
    measure = modules["claims"].FINAL
    assert modules["claims"].has_collapsed(ablated, with_it, measure) is collapsed
    verdict = {True: "held", False: "not held", None: "undecided"}[collapsed]
    assert modules["claims"].needs_tanh([ablated], [with_it], measure).verdict == verdict


@pytest.mark.parametrize(
    ("without", "with_tanh", "verdict"), [((0.1,), (0.6,), "held"), ((0.5,), (0.6,), "not held"), ((), (), "undecided")]
)
def test_collapse_is_judged_after_rounding_as_well(modules, without, with_tanh, verdict) -> None:
    """A network that re-estimated BatchNorm statistics recover had collapsed before."""
    claims = modules["claims"]
    ablated, *_ = rows("5", result(0.65, rounded=without))
    with_it = next(row for row in rows("2", result(0.66, rounded=with_tanh)) if row.ours is not None)
    rounded, ended = (claims.needs_tanh([ablated], [with_it], measure) for measure in claims.MEASURES)
    assert (rounded.verdict, ended.verdict) == (verdict, "not held")
    assert ("10.00 % against 60.00 % with tanh" in rounded.here) is (verdict == "held")


# Sections -------------------------------------------------------------------------------------------------------------


def keep(folder: Path, table: str, *results: CellResult) -> None:
    folder.mkdir()
    for cell, found in zip(cells_of(figures_of(table)), results, strict=False):
        (folder / f"{cell.name}.json").write_text(json.dumps(asdict(found)))


def test_section_of_a_grid_has_our_results_and_the_papers(modules, tmp_path: Path) -> None:
    folder = tmp_path / "table-6-quick"
    keep(folder, "6", result((0.9, 0.8), 0.001, epochs=4), result((0.7, 0.9), 0.25, epochs=4))
    text = modules["paper"].section_of(modules["paper"].Reading.of("6", folder))
    assert "| 1e-05 | 0 | 0.008 | 0.10 ± 0.00 | 99.47 | 85.00 ± 7.07 | 4 of 200 | 2 |" in text
    assert "| 1e-09 | 2 | 67.21 |  | 99.41 |  |  |  |" in text
    assert "- λ 1e-05: Spearman correlation of sparsity and α: paper 1.000, ours 1.000 in 2 cells." in text
    assert "- λ 1e-07: Spearman correlation of sparsity and α: paper 1.000, ours not enough cells." in text
    assert "2 of 24 cells are trained." in text
    assert "Measured by `sca-search reproduce 6 --quick --seeds 2 --data-dir PATH`" in text


def test_section_shows_the_recorded_command_and_machine(modules, tmp_path: Path) -> None:
    folder = tmp_path / "table-1"
    keep(folder, "1", result(0.99, dense_top1=0.98, epochs=200))
    (cell,) = cells_of(figures_of("1"))
    (folder / cell.name).mkdir()
    about = {
        "commands": [{"command": "sca-search reproduce 1 --data-dir /home/me", "at": 1.0}],
        "machine": {"processor": "Abacus", "cores": 3, "python": "3.11"},
        "versions": {"torch": "9.9"},
    }
    (folder / cell.name / "about.json").write_text(json.dumps(about))
    text = modules["paper"].section_of(modules["paper"].Reading.of("1", folder))
    origin = "`sca-search reproduce 1 --data-dir PATH` (Abacus, 3 cores, Python 3.11, torch 9.9)"
    assert f"Measured by {origin}; the tables by:" in text
    assert "| mnist | lenet | full-precision | top1 | 99.56 | 98.00 |  | 200 of 200 | 1 |" in text


def test_section_of_the_ablation_states_whether_it_collapsed(modules, tmp_path: Path) -> None:
    reading = modules["paper"].Reading
    keep(tmp_path / "5", "5", result((), failed=2), result(0.12), result(0.6))
    keep(tmp_path / "2", "2", result(0.7), result(0.7), result(0.7))
    text = modules["paper"].section_of(reading.of("5", tmp_path / "5"), reading.of("2", tmp_path / "2"))
    assert ": vgg-s: 2 of 2 seeds diverged: collapsed." in text
    assert ": resnet20: 12.00 % against 70.00 % with tanh: collapsed." in text
    assert ": vgg-variate: 60.00 % against 70.00 % with tanh: did not collapse." in text
    alone = modules["paper"].section_of(reading.of("5", tmp_path / "5"))
    assert ": resnet20: 12.00 %: undecided." in alone


def test_section_is_replaced_and_read_back(modules, tmp_path: Path) -> None:
    report, file = modules["report"], tmp_path / "RESULTS.md"
    for value in ("1", "2"):
        report.write_section(file, "speed", f"## Speed\n\n{report.table(['a', 'b c'], [[value, '']])}\n\nwords")
    assert file.read_text().count("## Speed") == 1
    assert report.read_table(file, "speed") == [{"a": "2", "b c": ""}]
    assert report.read_table(file, "size") == []


# The search and its null hypotheses -----------------------------------------------------------------------------------


def network(test: float, metric: float = 0.95, loss: float = 0.2) -> dict[str, float]:
    return {"test": test, "metric": metric, "loss": loss}


def cells(*tests: float, images: int = 100) -> dict[int, dict]:
    """An arm with one network per cell; the better on the test split, the lower its validation loss."""
    return {number: {"trials": [network(test, loss=1 - test)], "images": images} for number, test in enumerate(tests)}


# 24 networks with test accuracies of 90.0 to 92.3 %.
POOL = [0.900 + 0.001 * place for place in range(24)]


def test_chosen_network_has_the_lowest_loss_within_one_standard_error(modules) -> None:
    """Of 90 % on 100 images it is √(0.9 · 0.1 / 100) = 3 points."""
    trials = [network(0.5, 0.90, loss=0.3), network(0.6, 0.88, loss=0.2), network(0.7, 0.86, loss=0.1)]
    assert modules["evidence_report"].selected(trials, images=100)["test"] == 0.6
    assert modules["evidence_report"].selected(trials, images=10_000)["test"] == 0.5


def test_paired_differences_are_tested_by_students_t(modules) -> None:
    """Differences of 1, 2 and 3 points: t = 2√3 with two degrees of freedom, whose distribution has a closed form."""
    lines = {"one": cells(0.91, 0.92, 0.93), "other": cells(0.90, 0.90, 0.90, 0.5)}
    differences = modules["evidence_report"].differences(lines, "one", "other")
    mean, low, high, p = modules["significance"].paired_test(differences)
    t = 2 * math.sqrt(3)
    assert differences == pytest.approx([1.0, 2.0, 3.0])
    assert mean == pytest.approx(2.0)
    assert p == pytest.approx(1 - t / math.sqrt(2 + t**2))
    assert (low, high) == (pytest.approx(2 - 4.302653 / math.sqrt(3)), pytest.approx(2 + 4.302653 / math.sqrt(3)))


@pytest.mark.parametrize("differences", [[1.0], [1.0, 1.0]])
def test_single_pairs_and_equal_differences_are_not_tested(modules, differences) -> None:
    assert modules["significance"].paired_test(differences) is None
    assert modules["significance"].cells_of([None]) == [["", "", "", "not tested"]]


def test_holm_multiplies_by_the_number_of_tests_that_remain(modules) -> None:
    corrected = modules["significance"].holm([0.01, 0.04, 0.03, 0.5])
    assert corrected == pytest.approx([0.04, 0.09, 0.09, 0.5])  # 4 · 0.01, max(3 · 0.03, 2 · 0.04) twice, 0.5


def test_best_of_a_pool_is_the_expected_maximum(modules) -> None:
    """The largest of 12 ranks drawn from 1 to 24 without replacement is 12 · 25 / 13 on average."""
    report = modules["evidence_report"]
    pool = np.array([[0.95, 1 - test, test] for test in POOL])
    best = report.best_of_pool(pool, 100, np.random.default_rng(0), 20_000)
    assert best == pytest.approx(0.899 + 0.001 * 12 * 25 / 13, abs=5e-5)


@pytest.mark.parametrize(
    ("search", "verdict"),
    [
        ((0.930, 0.931, 0.932, 0.931, 0.930, 0.932), "better"),
        ((0.920, 0.922, 0.923, 0.922, 0.923, 0.923), "no difference shown"),
        ((0.905, 0.906, 0.910, 0.907, 0.908, 0.906), "worse"),
    ],
)
def test_search_is_compared_with_the_best_of_as_many_trainings(modules, search, verdict) -> None:
    report = modules["evidence_report"]
    lines = {"search": cells(*search), "first guess": cells(*POOL)}
    found = report.search_against_pool(lines, "search", "first guess")
    expected = 100 * (sum(search) / 6 - (0.899 + 0.001 * 12 * 25 / 13))
    assert found.mean == pytest.approx(expected, abs=0.02)
    assert found.low < found.mean < found.high
    assert modules["significance"].verdict(found, found.p) == verdict


def test_search_needs_two_cells_and_a_pool_of_its_trials(modules) -> None:
    compared = modules["evidence_report"].search_against_pool
    assert compared({"search": cells(0.9), "random": cells(*POOL)}, "search", "random") is None
    assert compared({"search": cells(0.9, 0.9), "random": cells(*POOL[:11])}, "search", "random") is None


def test_effect_of_a_parameter_is_compared_with_the_noise_of_seeds(modules) -> None:
    """Losses 1, 2 and 3 of the first guess: a standard deviation of 1 with two degrees of freedom."""
    pool = {number: {"trials": [network(0.9, loss=loss)]} for number, loss in enumerate((1.0, 2.0, 3.0))}
    changed = {0: {"trials": [network(0.9, loss=4.0) | {"values": {"spread": 0.3}}]}}
    ((setting, count, difference, p),) = modules["evidence_report"].parameter_effects(
        {"first guess": pool, "one parameter": changed}
    )
    t = 2.0 / math.sqrt(1 + 1 / 3)
    assert (setting, count, difference) == ("spread = 0.3", 1, 2.0)
    assert p == pytest.approx(1 - t / math.sqrt(2 + t**2))


# Long studies ---------------------------------------------------------------------------------------------------------


def test_synthetic_trials_are_stored_as_optuna_stores_them(modules, tmp_path: Path) -> None:
    made = modules["synthetic_trials"]
    space = Space(
        resolve(None, {"front": True}), (LayerShape("conv2", (32, 16, 5, 5), 1), LayerShape("fc1", (64, 128), 1))
    )
    trials = [*(made.synthetic(space, candidate) for candidate in range(20)), made.waiting(space, 20)]
    studies = [
        optuna.create_study(storage=WaitingTrialCache(f"sqlite:///{tmp_path / name}"), directions=["maximize"] * 2)
        for name in ("at-once.db", "one-by-one.db")
    ]
    made.store(studies[0], trials)
    studies[1].add_trials(trials)
    stored = [
        [
            (each.number, each.state, each.values, each.params, each.distributions, each.user_attrs)
            for each in study.trials
        ]
        for study in studies
    ]
    assert stored[0] == stored[1]
    assert studies[0].ask().number == 20
