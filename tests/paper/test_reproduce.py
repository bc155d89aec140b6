"""Tables of the paper's: their cells, the time they take, and small ones run for real."""

import json
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from sca_search.data import Split
from sca_search.errors import RunError, SpecError
from sca_search.paper.cells import (
    QUICK,
    Cell,
    TrainingExtent,
    cell_of,
    cells_of,
    full_epochs,
    recipe_file,
    select_networks,
)
from sca_search.paper.comparison import rank_correlations, rows_of
from sca_search.paper.figures import DENSE, TITLES, figures_of
from sca_search.paper.reproduce import CellTime, Plan, epochs_that_fit, finished_results, reproduce, spec_of
from sca_search.paper.result import CellResult, _diverged, read_result, top_accuracies
from sca_search.runs.folder import RunFolder
from sca_search.study.pace import Pace
from sca_search.system.signals import StopWhen

DIGITS = TrainingExtent(epochs=2, networks={"lenet": "lenet-small"}, data="digits")


def sparsity_cells(*points: tuple[float, float]) -> tuple[Cell, ...]:
    return tuple(cell for cell in cells_of(figures_of("6")) if (cell.alpha, cell.strength_lambda) in points)


# Counted by hand in the paper: 8 α × 3 λ, and 9 α × 3 λ.
@pytest.mark.parametrize(("table", "cells"), [("1", 1), ("2", 3), ("3", 2), ("4", 4), ("5", 3), ("6", 24), ("7", 27)])
def test_table_has_the_papers_cells(table: str, cells: int) -> None:
    found = cells_of(figures_of(table))
    assert len(found) == cells
    assert len({cell.name for cell in found}) == cells
    assert all(recipe_file(cell.dataset, cell.network).is_file() for cell in found)
    assert all(cell.tanh == (table != "5") for cell in found)


def test_figures_are_the_papers() -> None:
    (lenet,) = [figure for figure in figures_of("1") if figure.method == "SCA"]
    assert (lenet.value, lenet.sd, lenet.alpha, lenet.strength_lambda) == (99.56, 0.02, 1e-4, 1e-7)
    half = [figure.value for figure in figures_of("7") if (figure.alpha, figure.strength_lambda) == (1.5, 1e-8)]
    assert half == [70.28, 93.36]
    top5 = [(figure.method, figure.value) for figure in figures_of("3") if figure.metric == "top5"]
    assert ("full-precision", 89.2) in top5
    assert TITLES.keys() == QUICK.keys() == set("1234567")


def test_cell_is_a_study_of_its_recipe(tmp_path: Path) -> None:
    cell = Cell("cifar10", "vgg-s", 1.5, 1e-9)
    spec = spec_of(Plan((cell,), tmp_path, TrainingExtent(epochs=45), seeds=3, data_dir=tmp_path), cell)
    assert spec.recipe is not None
    assert (spec.recipe.alpha, spec.recipe.strength_lambda, spec.recipe.epochs) == (1.5, 1e-9, 450)
    assert (spec.train.epochs, spec.train.dense_epochs, spec.search.trials) == (45, 0, 3)
    assert (spec.name, spec.data.dir) == ("cifar10-vgg-s-a1.5-l1e-09", tmp_path)
    plan = Plan((), tmp_path)
    whole = spec_of(plan, Cell("mnist", "lenet", has_dense=True))
    assert (whole.train.epochs, whole.train.dense_epochs) == (200, 200)
    ablated = spec_of(plan, Cell("cifar10", "resnet20", tanh=False))
    assert ablated.recipe is not None
    assert not ablated.recipe.tanh
    assert full_epochs(Cell("imagenet", "alexnet")) == 130


def test_quick_says_plainly_what_it_leaves_out() -> None:
    messages = QUICK["6"].describe([200])
    assert messages == "lenet-medium instead of lenet, 20,000 training images, 4 epochs of the paper's 200"
    assert QUICK["2"].describe([450, 700, 370]) == "2,000 training images, 2 epochs of the paper's 450/700/370"


def test_a_table_may_be_limited_to_some_networks() -> None:
    cells = cells_of(figures_of("2"))
    assert {cell.network for cell in cells} == {"vgg-s", "resnet20", "vgg-variate"}
    assert select_networks(cells, []) == cells
    assert [cell.network for cell in select_networks(cells, ["resnet20"])] == ["resnet20"]
    with pytest.raises(SpecError, match=r"^--network: unknown network of this table 'resnet2': .*did you mean"):
        select_networks(cells, ["resnet2"])


def result_of(sparsity: float, **more: object) -> CellResult:
    return CellResult(4, "lenet-medium", (0.9, 0.8), (1.0, 1.0), (sparsity, sparsity), **more)


def test_rows_put_ours_next_to_the_papers() -> None:
    figures = figures_of("1")
    (cell,) = cells_of(figures)
    rows = {row.figure.method: row for row in rows_of(figures, {cell: result_of(0.25, dense_top1=0.95)})}
    ours = rows["SCA"]
    assert ours.ours == pytest.approx(85.0)
    assert ours.ours_sd == pytest.approx(50**0.5)  # of 90 and 80
    assert (ours.sparsity, ours.epochs, ours.seeds) == (25.0, 4, 2)
    assert rows["full-precision"].ours == 95.0
    assert rows["TWN"].ours is None
    assert rows["TWN"].figure.value == 99.35


def test_a_cell_whose_seeds_all_diverged_has_no_accuracy() -> None:
    figures = figures_of("5")
    cell = cell_of(figures[0], cells_of(figures))
    assert cell is not None
    (row, *_) = rows_of(figures, {cell: CellResult(2, "vgg-s", (), (), (), failed=2)})
    assert (row.ours, row.failed, row.seeds) == (None, 2, 2)


@pytest.mark.parametrize(
    ("reason", "sentence"),
    [
        ("diverged: the loss became nan in epoch 1", None),
        ("ran out of memory", r"trial 1 failed otherwise \(ran out of memory\); remove the folder"),
        (None, "trial 1 failed otherwise"),
    ],
)
def test_a_seed_that_failed_without_diverging_is_no_result(
    tmp_path: Path, reason: str | None, sentence: str | None
) -> None:
    frame = pd.DataFrame({"trial": [0, 1], "state": ["complete", "failed"], "reason": [None, reason]})
    if sentence is None:
        assert _diverged(RunFolder(tmp_path), frame) == 1
    else:
        with pytest.raises(RunError, match=sentence):
            _diverged(RunFolder(tmp_path), frame)


def test_rank_correlation_is_of_sparsity_and_alpha_at_each_lambda() -> None:
    figures = figures_of("6")
    cells = cells_of(figures)
    # One neighboring pair of eight changed: 1 - 6 · 2 / (8 · 63).
    order = [0.1, 0.2, 0.4, 0.3, 0.5, 0.6, 0.7, 0.8]
    falling = [1.0 - fraction for fraction in sorted(order)]
    strong = [cell for cell in cells if cell.strength_lambda == 1e-5]
    weak = [cell for cell in cells if cell.strength_lambda == 1e-7]
    results = {cell: result_of(fraction) for cell, fraction in zip(strong + weak, order + falling, strict=True)}
    first, second, third = rank_correlations(rows_of(figures, results))
    assert first.ours == pytest.approx(1 - 12 / 504)
    assert second.ours == pytest.approx(-1.0)
    assert (third.ours, third.cells) == (None, 0)
    assert [each.paper for each in (first, second, third)] == pytest.approx([1.0, 1.0, 1.0])
    assert rank_correlations(rows_of(figures_of("1"), {})) == []


def test_rank_correlation_of_equal_sparsities_is_none() -> None:
    figures = figures_of("6")
    alike = {cell: result_of(0.5) for cell in cells_of(figures)}
    assert {rank.ours for rank in rank_correlations(rows_of(figures, alike))} == {None}


def test_top_accuracies_count_the_first_and_the_first_five() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.arange(12.0).repeat(4, 1))  # the last class is always the first choice

        def forward(self, images: Tensor) -> Tensor:
            return self.rows[: len(images)]

    split = Split(torch.zeros(4, 1, 2, 2), torch.tensor([11, 7, 6, 0]))
    with torch.no_grad():
        assert top_accuracies(Table(), split) == (0.25, 0.5)


PACE = Pace(start=0.0, dense_epoch=2.0, epoch=3.0, frozen_epoch=0.0, trial_rest=10.0)
LONG, SHORT = Cell("mnist", "long"), Cell("mnist", "short")


def test_hours_give_every_cell_the_same_fraction_of_its_epochs() -> None:
    long = CellTime(LONG, PACE, full_epochs=200, seeds=1, has_dense=False)
    short = CellTime(SHORT, PACE, full_epochs=100, seeds=2, has_dense=True)
    # At a tenth: 20 · 3 + 10 = 70 s, and 10 · 2 + 2 · (10 · 3 + 10) = 100 s; 180 of 200 s are planned with.
    hours = 200.1 / 3600
    assert epochs_that_fit(170.1 / 0.9 / 3600, 0.0, [long, short]) == {LONG: 20, SHORT: 10}
    assert epochs_that_fit(169.0 / 0.9 / 3600, 0.0, [long, short]) == {LONG: 19, SHORT: 9}
    assert epochs_that_fit(hours, 200.1 - 170.1 / 0.9, [long, short]) == {LONG: 20, SHORT: 10}
    assert epochs_that_fit(1e9, 0.0, [long, short]) == {LONG: 200, SHORT: 100}
    begun = replace(short, started=10)
    assert epochs_that_fit(170.1 / 0.9 / 3600, 0.0, [long, begun]) == {LONG: 20, SHORT: 10}
    assert epochs_that_fit(0.0, 0.0, []) == {}


def test_a_started_cell_continues_at_any_pace() -> None:
    begun = CellTime(LONG, replace(PACE, epoch=3600.0), 200, 1, has_dense=True, started=40)
    assert epochs_that_fit(0.01, 0.0, [begun, replace(begun, cell=SHORT, started=3)]) == {LONG: 40, SHORT: 3}


def test_hours_too_short_for_one_epoch_name_the_least() -> None:
    cell = CellTime(LONG, replace(PACE, epoch=3590.0), 200, 1, has_dense=False)
    # 3600 s of 0.9 of the time are 4000, and 500 for measuring: 1.25 hours, which are enough then.
    with pytest.raises(SpecError, match=r"--hours must be at least 1.25 for one epoch of each of 1 cells .* got 1.2$"):
        epochs_that_fit(1.2, 500.0, [cell])
    assert epochs_that_fit(1.25, 500.0, [cell]) == {LONG: 1}


@pytest.mark.e2e
def test_two_cells_are_run_kept_and_not_run_again(tmp_path: Path) -> None:
    cells = sparsity_cells((0.0, 1e-5), (1.0, 1e-5))
    plan = Plan(cells, tmp_path / "six", DIGITS, command=("reproduce", "6", "--quick"))
    messages: list[str] = []
    done = reproduce(plan, messages.append)
    assert list(done.results) == list(cells)
    assert not done.stopped
    about = json.loads((tmp_path / "six" / cells[1].name / "about.json").read_text())
    assert [each["command"] for each in about["commands"]] == ["sca-search reproduce 6 --quick"]
    assert messages[0] == "cell 1 of 2: lenet on mnist, α 0, λ 1e-05, 2 epochs"
    first, second = done.results.values()
    assert first.sparsity[0] < second.sparsity[0]  # the same seed, only α differs
    assert all(0.2 < result.top1[0] <= result.top5[0] <= 1 for result in (first, second))
    assert (first.epochs, first.seeds, first.network, first.dense_top1) == (2, 1, "lenet-small", None)
    messages.clear()
    assert reproduce(plan, messages.append) == done
    assert messages == []
    more = reproduce(replace(plan, seeds=2, cells=cells[:1]), messages.append)
    assert more.results[cells[0]].seeds == 2
    assert more.results[cells[0]].top1[0] == first.top1[0]  # the first seed was not trained again


@pytest.mark.e2e
def test_hours_decide_epochs_and_a_cell_that_was_begun_keeps_its_own(tmp_path: Path) -> None:
    cells = sparsity_cells((0.0, 1e-5), (1.0, 1e-5))
    extent = replace(DIGITS, epochs=None)
    # A cell of 3 epochs was stopped: 3 · 3 + 10 = 19 s. There are 0.9 · 3600 · hours = 36 s.
    begun = Plan(cells[:1], tmp_path, replace(DIGITS, epochs=3))
    assert reproduce(begun, stop=StopWhen(lambda: True)).stopped
    measured: list[str] = []

    def measure(spec, _say, _stop) -> Pace:
        measured.append(spec.model.name)
        return PACE

    done = reproduce(Plan(cells, tmp_path, extent, hours=36 / 3240), measure=measure)
    assert measured == ["lenet-small"]  # once for both
    # 36 s less the 19 s of the first leave 17 s: 2 epochs, 16 s.
    assert [result.epochs for result in done.results.values()] == [3, 2]


@pytest.mark.e2e
def test_a_stopped_cell_continues_and_another_length_is_rejected(tmp_path: Path) -> None:
    cells = sparsity_cells((0.0, 1e-5))
    plan = Plan(cells, tmp_path / "six", DIGITS)
    calls: list[None] = []

    def after_a_while() -> bool:
        calls.append(None)
        return len(calls) > 12  # steps and looks before them: in the second of two epochs

    stopped = reproduce(plan, stop=StopWhen(after_a_while))
    assert (stopped.stopped, stopped.results) == (True, {})
    assert finished_results(plan) == {}
    with pytest.raises(RunError, match=r"holds another study, it differs in train.epochs; choose another --out"):
        reproduce(replace(plan, extent=replace(DIGITS, epochs=3)))
    done = reproduce(plan)
    assert len(done.results) == 1
    with pytest.raises(RunError, match=r"\.json: must have been trained for 3 epochs to continue, got 2; choose"):
        reproduce(replace(plan, extent=replace(DIGITS, epochs=3)))


@pytest.mark.e2e
def test_dense_network_comes_with_its_cell_and_weights_without_tanh_run(tmp_path: Path) -> None:
    dense = Cell("mnist", "lenet", has_dense=True)
    ablated = Cell("mnist", "lenet", tanh=False)
    done = reproduce(Plan((dense, ablated), tmp_path, DIGITS))
    assert done.results[dense].dense_top1 is not None
    assert done.results[dense].dense_top1 > 0.5
    assert done.results[ablated].dense_top1 is None
    assert done.results[ablated].seeds == 1


@pytest.mark.e2e
def test_dense_weights_that_are_given_are_measured_and_not_trained(tmp_path: Path) -> None:
    cell = Cell("cifar10", "resnet20", has_dense=True)
    extent = TrainingExtent(epochs=1, networks={"resnet20": "lenet-small"}, data="digits")
    trained = reproduce(Plan((cell,), tmp_path / "trained", extent)).results[cell]
    weights = tmp_path / "trained" / cell.name / "dense.safetensors"
    plan = Plan((cell,), tmp_path / "given", extent, weights=weights)
    given = reproduce(plan).results[cell]
    assert trained.dense_top1 is not None
    assert (given.dense_top1, given.dense_is_given) == (trained.dense_top1, True)
    assert RunFolder(tmp_path / "given" / cell.name).spec().train.dense_epochs == 0
    (dense,) = [row for row in rows_of(figures_of("2"), {cell: given}) if row.ours and row.figure.method == DENSE]
    assert (dense.epochs, dense.seeds) == (None, None)
    with pytest.raises(
        RunError, match=r"\.json: must have started from weights that were trained here, got weights from a file"
    ):
        reproduce(replace(plan, weights=None))


def test_a_file_that_is_no_result_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "cell.json"
    assert read_result(path) is None
    path.write_text("[]")
    with pytest.raises(RunError, match=r"cell.json: is not the result of a cell"):
        read_result(path)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("8",), "unknown table '8': known are 1, 2, 3, 4, 5, 6, 7"),
        (("6", "--quick", "--hours", "1"), "--quick and --hours cannot be given together"),
        (("6", "--hours", "0"), "--hours must be above 0, got 0"),
        (("6", "--hours", "nan"), "--hours must be above 0, got nan"),
        (("6", "--epochs", "0"), "--epochs must be at least 1, got 0"),
        (("6", "--seeds", "99999999999"), "--seeds must be from 1 to 10,000, got 99999999999"),
        (("6", "--seeds", "0"), "--seeds must be from 1 to 10,000, got 0"),
        (
            ("3", "--weights", "a.pt"),
            "--weights a.pt: must belong to the only network to train, got resnet18 on imagenet, alexnet on",
        ),
        (("6", "--quick", "--data-dir", "nowhere"), "--data-dir must be a folder that exists, got 'nowhere'"),
    ],
)
def test_invalid_input_is_one_sentence_and_nothing_is_written(run, tmp_path: Path, arguments, sentence: str) -> None:
    outcome = run("reproduce", *arguments)
    assert outcome.returncode == 2
    assert outcome.stderr.startswith(sentence)
    assert len(outcome.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_unreadable_files_are_left_out_of_data_sets_that_are_files(tmp_path: Path) -> None:
    plan = Plan(cells_of(figures_of("4")), tmp_path, skip_unreadable=True)
    skipping = {(spec := spec_of(plan, cell)).data.name: spec.data.skip_unreadable for cell in plan.cells}
    assert skipping == {"cifar100": False, "tiny-imagenet": True}
    plan = replace(plan, skip_unreadable=False)
    assert not any(spec_of(plan, cell).data.skip_unreadable for cell in plan.cells)


def test_a_data_set_that_is_missing_hides_no_finished_cell(run, tmp_path: Path) -> None:
    folder = tmp_path / "kept" / "table-4"
    folder.mkdir(parents=True)
    (first, *_) = [cell for cell in cells_of(figures_of("4")) if cell.dataset == "cifar100"]
    record = {"epochs": 5, "network": first.network, "top1": [0.6789], "top5": [0.9], "sparsity": [0.5]}
    (folder / f"{first.name}.json").write_text(json.dumps(record))
    (tmp_path / "empty").mkdir()
    command = ("reproduce", "4", "--network", first.network, "--epochs", "5", "--out", "kept", "--data-dir", "empty")
    outcome = run(*command)
    assert outcome.returncode == 2
    assert "tiny-imagenet" in outcome.stderr
    assert "67.89" in outcome.stdout
    assert "1 of 2 cells" in outcome.stdout


def test_finished_table_is_printed_without_training(run, tmp_path: Path) -> None:
    """All 24 cells are files already."""
    figures = figures_of("6")
    folder = tmp_path / "kept" / "table-6-quick"
    folder.mkdir(parents=True)
    for number, cell in enumerate(cells_of(figures)):
        record = {"epochs": 4, "network": "lenet-medium", "top1": [0.97], "top5": [1.0], "sparsity": [number / 24]}
        record |= {"rounded": [0.25]} if number else {}  # of an earlier version
        (folder / f"{cell.name}.json").write_text(json.dumps(record))
    outcome = run("reproduce", "6", "--quick", "--out", "kept")
    assert outcome.returncode == 0, outcome.stderr
    assert "lenet-medium instead of lenet, 20,000 training images, 4 epochs of the paper's 200" in outcome.stdout
    assert "λ 1e-09: Spearman of sparsity and α: paper 1.000, ours 1.000 in 8 cells" in outcome.stdout
    assert "24 of 24 cells" in outcome.stdout
    document = json.loads(run("reproduce", "6", "--quick", "--out", "kept", "--json").stdout)
    assert (document["cells"], document["finished"], document["stopped"]) == (24, 24, False)
    assert len(document["rows"]) == 48
    assert [row["rounded"] for row in document["rows"]].count(25.0) == 46
    assert document["rows"][0] | {"ours": None} == {
        "dataset": "mnist",
        "network": "lenet",
        "method": "SCA",
        "weights": "{-1,0,+1}",
        "metric": "sparsity",
        "alpha": 0.0,
        "lambda": 1e-5,
        "paper": 0.008,
        "paper_sd": None,
        "ours": None,
        "ours_sd": None,
        "sparsity": 0.0,
        "epochs": 4,
        "seeds": 1,
        "failed": 0,
        "rounded": None,
    }
    assert [rank["strength_lambda"] for rank in document["rank_correlations"]] == [1e-5, 1e-7, 1e-9]
