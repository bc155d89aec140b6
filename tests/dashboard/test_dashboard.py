"""What the page shows, as values: each expected by hand, or from an independent restatement."""

import json
import math
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from sca_search.config.load import resolve
from sca_search.dashboard import PageWriter, live, render_page
from sca_search.dashboard.document import compact, sensitivity, study_document
from sca_search.dashboard.figures import growth, importance, paper_figures, parallel, prior_view, timeline
from sca_search.dashboard.front import MEASURES, fronts, outline
from sca_search.dashboard.page import embedded
from sca_search.dashboard.read import DETAILED, RunFiles, detailed_trials, read_run
from sca_search.dashboard.text import growth_headline, lead, state_of, status, tiles
from sca_search.dashboard.trial import MAX_EPOCHS, distribution, epoch_columns, layer_rows, subsampled
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import CurrentTraining
from sca_search.runs.trials import searched_parameters, trial_frame
from sca_search.study.events import StudyStarted, TrialEnded
from tests.support.make_run_folder import RUN_FOLDER


def row(trial: int, sparsity: float, accuracy: float, **more: object) -> dict[str, object]:
    known = {"trial": trial, "state": "complete", "sparsity": sparsity, "metric": accuracy, "loss": 0.5}
    return known | {"planned_sparsity": sparsity} | more


ROWS = [
    row(0, 0.5, 0.95, ternary_bytes=400),
    row(1, 0.75, 0.85, ternary_bytes=300),
    row(2, 0.75, 0.875, ternary_bytes=250),
    row(3, 0.9, 0.8, ternary_bytes=100),
    {"trial": 4, "state": "failed", "planned_sparsity": 0.9, "reason": "the loss became nan in epoch 1"},
]


def files_of(rows: list[dict[str, object]], path: Path = Path("runs/digits"), **changes: object) -> RunFiles:
    spec = resolve(None, {"target_sparsity": 0.75, "trials": max(1, len(rows))})
    known = {
        "run": RunFolder(path),
        "spec": spec,
        "frame": trial_frame(rows),
        "dense_metric": 0.97,
        "summary": {},
        "about": {},
        "closed_form": {},
        "sensitivity": [],
        "now": None,
    }
    return RunFiles(**known | changes)


def said(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def test_a_command_of_anothers_run_is_shown_without_its_password() -> None:
    noted = [{"command": "sca-search --storage postgresql://me:hunter-2@db/x --front", "at": 0.0}]
    document = study_document(files_of(ROWS, about={"commands": noted}))
    assert document["setup"]["commands"] == ["sca-search --storage postgresql://me:***@db/x --front"]


# The front ------------------------------------------------------------------------------------------------------------


def test_fronts_hold_what_no_other_trial_beats() -> None:
    by_sparsity, by_size = fronts(trial_frame(ROWS), [0.97], {"sparsity": 0.75})
    assert (by_sparsity.measure.key, by_sparsity.trials) == ("sparsity", (0, 2, 3))
    assert (by_size.measure.key, by_size.trials) == ("ternary_bytes", (3, 2, 0))


def test_a_measure_is_offered_only_where_a_complete_trial_has_it() -> None:
    frame = trial_frame([row(0, 0.5, 0.9, latency_ms=1.5), {"trial": 1, "state": "failed", "ternary_bytes": 3}])
    assert [front.measure.key for front in fronts(frame, [], {})] == ["sparsity", "latency_ms"]
    assert [front.measure.key for front in fronts(trial_frame([]), [], {})] == ["sparsity"]


def test_outline_falls_where_more_is_better() -> None:
    points = [(0.5, 0.95), (0.75, 0.875), (0.9, 0.8)]
    assert outline(points, True, (0.2, 1.0)) == (
        (0.2, 0.95),
        (0.5, 0.95),
        (0.5, 0.875),
        (0.75, 0.875),
        (0.75, 0.8),
        (0.9, 0.8),
    )


def test_outline_rises_where_less_is_better() -> None:
    points = [(100.0, 0.8), (250.0, 0.875), (400.0, 0.95)]
    assert outline(points, False, (0.0, 500.0)) == (
        (100.0, 0.8),
        (250.0, 0.8),
        (250.0, 0.875),
        (400.0, 0.875),
        (400.0, 0.95),
        (500.0, 0.95),
    )
    assert outline([], False, (0.0, 1.0)) == ()


def test_outline_is_the_best_accuracy_with_at_least_a_sparsity() -> None:
    (front, _) = fronts(trial_frame(ROWS), [], {})
    for (left, level), (right, end) in zip(front.outline[::2], front.outline[1::2], strict=True):
        assert level == end == max(each["metric"] for each in ROWS[:4] if each["sparsity"] >= (left + right) / 2)


def test_view_fits_goal_dense_accuracy_and_trials() -> None:
    # sparsity 50..90 with 8 % of 40 around, accuracy 80..97 with 8 % of 17
    view = fronts(trial_frame(ROWS), [0.97], {"sparsity": 0.75})[0].view
    assert view.x == pytest.approx((0.468, 0.932))
    assert view.metric == pytest.approx((0.7864, 0.9836))
    assert view.below == 0
    assert fronts(trial_frame(ROWS), [0.97], {"sparsity": 0.4})[0].view.x == pytest.approx((0.36, 0.94))


def test_view_leaves_far_trials_below() -> None:
    # The front and the dense accuracy span 17 points: 80 - 17 = 63 is the floor.
    view = fronts(trial_frame([*ROWS, row(5, 0.2, 0.62), row(6, 0.6, 0.64)]), [0.97], {"sparsity": 0.75})[0].view
    assert view.below == 1
    assert view.metric == pytest.approx((0.64 - 0.08 * 0.33, 0.97 + 0.08 * 0.33))


def test_view_of_nothing_and_of_one_trial_has_an_extent() -> None:
    assert fronts(trial_frame([]), [], {})[0].view.x == (0.0, 1.0)
    one = fronts(trial_frame([row(0, 1.0, 1.0)]), [], {})[0].view
    assert one.x[0] < 1.0 < one.x[1] < 1.01
    size = fronts(trial_frame([row(0, 0.5, 0.9, ternary_bytes=100)]), [], {})[1].view
    assert size.x == pytest.approx((90, 110))


def test_paper_figures_are_those_of_the_same_network() -> None:
    assert paper_figures("mnist", "lenet-medium") is None
    found = paper_figures("mnist", "lenet")
    assert found is not None
    assert (0.9744, 0.9942) in [(round(x, 6), round(y, 6)) for x, y in found.points]
    assert len(found.points) == 24  # eight α by three λ
    assert found.accuracy == pytest.approx(0.9956)
    vgg = paper_figures("cifar10", "vgg-s")
    assert vgg is not None
    assert len(vgg.points) == 27  # nine α by three λ
    assert (vgg.points[0], vgg.points[-1]) == (pytest.approx((0.000143, 0.9277)), pytest.approx((0.5935, 0.9267)))
    resnet = paper_figures("cifar10", "resnet20")  # the paper varied no α there
    assert resnet is not None
    assert (resnet.points, resnet.accuracy) == ((), pytest.approx(0.9128))


# A trial --------------------------------------------------------------------------------------------------------------


def test_layer_rows_hold_zeros_plan_and_bytes() -> None:
    record = {
        "candidate": {"sparsity": 0.5, "allocation": {"conv2": 0.25}},
        "layers": {"conv2": {"zeros": 30, "weights": 120, "ternary_bytes": 9}, "fc1": {"zeros": 6, "weights": 8}},
    }
    assert layer_rows(record) == [
        {"name": "conv2", "weights": 120, "sparsity": 0.25, "planned": 0.25, "ternary_bytes": 9},
        {"name": "fc1", "weights": 8, "sparsity": 0.75, "planned": 0.5},
    ]


def test_course_numbers_frozen_epochs_after_the_ternary_ones() -> None:
    history = [
        {"phase": "ternary", "epoch": 1.0},
        {"phase": "ternary", "epoch": 2.0},
        {"phase": "frozen", "epoch": 1.0},
    ]
    assert epoch_columns(history)["epoch"] == [1, 2, 3]
    assert epoch_columns([])["epoch"] == []


def test_course_has_lambda_alpha_and_the_soft_fraction_where_the_form_has_one() -> None:
    history = [
        {"phase": "ternary", "epoch": 1.0, "alpha": 0.25, "strength": 3.0, "soft_fraction": 0.5},
        {"phase": "frozen", "epoch": 1.0, "alpha": 0.25, "strength": 0.0},
    ]
    columns = epoch_columns(history)
    assert (columns["alpha"], columns["strength"]) == ([0.25, 0.25], [3.0, 0.0])
    assert columns["soft_fraction"] == [0.5, None]


def test_long_histories_are_thinned_to_their_ends() -> None:
    history = [{"epoch": number} for number in range(1000)]
    kept = subsampled(history)
    assert len(kept) == MAX_EPOCHS
    assert (kept[0]["epoch"], kept[-1]["epoch"]) == (0, 999)


def test_distribution_is_shares_and_says_where_both_are_the_same() -> None:
    paper = [{"epoch": 0, "tanh": [1, 2, 1], "soft": [1, 2, 1], "alphas": {"fc1": 0.5}}]
    assert distribution(paper) == {
        "epoch": [0],
        "tanh": [[2500, 5000, 2500]],
        "soft": None,
        "alphas": {"fc1": [0.5]},
    }
    decoupled = [paper[0] | {"soft": [2, 1, 1]}]
    assert distribution(decoupled)["soft"] == [[5000, 2500, 2500]]
    assert distribution([]) is None


def test_details_are_kept_of_the_front_and_the_newest() -> None:
    rows = [row(0, 0.9, 0.99), *(row(number, 0.5, 0.9 - number / 10000) for number in range(1, 101))]
    assert detailed_trials(trial_frame(rows)) == [0, *range(101 - DETAILED, 101)]


# The prior ------------------------------------------------------------------------------------------------------------

CLOSED = {"spread": 0.6, "sparsity": [0.0, 0.5, 0.99], "alpha": {"fc1": [0.0, 0.4, 1.6]}}


def ended(planned: float, achieved: float, **split: float) -> dict[str, object]:
    return {
        "candidate": {"sparsity": planned, "allocation": split},
        "achieved": {"fc1": achieved},
        "alphas": {"fc1": 0.35},
        "layers": {"fc1": {}},
    }


def test_prior_view_holds_planned_and_achieved_sparsity() -> None:
    view = prior_view(CLOSED, {7: ended(0.5, 0.4), 8: ended(0.5, 0.625, fc1=0.75)})
    assert view["achieved"] == {"fc1": [(0.5, 0.4), (0.75, 0.625)]}
    assert view["ended"] == {"fc1": [(7, 0.4, 0.35), (8, 0.625, 0.35)]}
    assert view["drift"] == pytest.approx((0.1 + 0.125) / 2)
    assert view["closed"] == CLOSED


def test_prior_view_has_no_plan_where_sparsity_is_whatever_rounding_gives() -> None:
    view = prior_view({}, {7: ended(0.0, 0.4)}, is_planned=False)
    assert (view["layers"], view["achieved"], view["drift"]) == (["fc1"], {"fc1": []}, None)
    assert view["ended"] == {"fc1": [(7, 0.4, 0.35)]}


def test_prior_of_nothing_is_empty() -> None:
    view = prior_view({}, {})
    assert (view["layers"], view["closed"], view["drift"]) == ([], None, None)


# The study ------------------------------------------------------------------------------------------------------------


def test_timeline_counts_from_the_first_start() -> None:
    rows = [
        row(0, 0.5, 0.9, started="2026-01-01T10:00:05+00:00", seconds=4.0, worker=2),
        row(1, 0.5, 0.9, started="2026-01-01T10:00:00+00:00", seconds=3.0),
        {"trial": 2, "state": "waiting"},
    ]
    assert timeline(rows) == [
        {"trial": 0, "state": "complete", "worker": 2, "start": 5.0, "seconds": 4.0},
        {"trial": 1, "state": "complete", "worker": 1, "start": 0.0, "seconds": 3.0},
    ]


def test_growth_is_the_area_after_each_trial_in_the_order_of_their_ends() -> None:
    rows = [
        row(0, 0.8, 0.95, epochs=10, started="2026-01-01T10:00:00+00:00", seconds=60.0),
        row(1, 0.5, 0.97, epochs=10, started="2026-01-01T10:00:00+00:00", seconds=30.0),
        row(2, 0.4, 0.90, epochs=5, started="2026-01-01T10:02:00+00:00", seconds=30.0),
    ]
    found = growth(trial_frame(rows), 0.97)
    # above 0.92 and 0.3: 0.2 by 0.05; then 0.3 more wide by 0.03 high
    assert found["trial"] == [1, 0, 2]
    assert found["area"] == pytest.approx([0.01, 0.019, 0.019])
    assert found["epochs"] == [10, 20, 25]
    assert found["reference"] == {"metric": pytest.approx(0.92), "sparsity": 0.3}


def test_growth_far_below_dense_is_taken_from_the_corner() -> None:
    found = growth(trial_frame([row(0, 0.5, 0.4)]), 0.97)
    assert found["reference"] == {"metric": 0.0, "sparsity": 0.0}
    assert found["area"] == pytest.approx([0.2])


def test_searched_parameters_have_a_prefix() -> None:
    others = {"rung.5": 0.1, "predicted_latency_ms": 0.1, "worker": 1, "ternary_bytes": 9}
    frame = trial_frame([row(0, 0.5, 0.9, **others, **{"param.spread": 0.5, "param.strength_schedule": "step"})])
    assert searched_parameters(frame) == ["param.spread", "param.strength_schedule"]


THREE = ["param.one", "param.two", "param.three"]


def trials_where(matters: str, count: int = 40) -> list[dict[str, object]]:
    """Trials whose loss depends on one of three values alone."""
    random = np.random.default_rng(0)
    rows = []
    for number in range(count):
        values = {name: float(random.uniform(0.1, 0.9)) for name in THREE}
        rows.append(row(number, 0.5, 0.9, **values) | {"loss": 0.1 + abs(values["param." + matters] - 0.2)})
    return rows


@pytest.mark.parametrize("matters", ["one", "two", "three"])
def test_importance_finds_the_value_that_matters(matters: str) -> None:
    ranked = importance(trials_where(matters), THREE)
    assert ranked[0][0] == matters
    assert ranked[0][1] > 0.6
    assert math.fsum(value for _, value in ranked) == pytest.approx(1.0)


def test_few_or_equal_trials_have_no_importance() -> None:
    assert importance(trials_where("one", 9), THREE) == []
    assert importance([row(number, 0.5, 0.9, **{"param.one": 0.3}) for number in range(30)], ["param.one"]) == []


def test_parallel_lines_cross_the_most_important_values_first() -> None:
    rows = [
        row(0, 0.5, 0.9, **{"param.spread": 0.3, "param.strength_schedule": "step", "param.fixed": 1.0}),
        row(1, 0.6, 0.8, **{"param.spread": 0.6, "param.strength_schedule": "linear", "param.fixed": 1.0}),
    ]
    found = parallel(
        rows, ["param.fixed", "param.strength_schedule", "param.spread"], [("spread", 0.7), ("strength_schedule", 0.3)]
    )
    assert found["axes"] == [
        {"name": "spread", "kind": "log", "low": 0.3, "high": 0.6},
        {"name": "strength_schedule", "kind": "names", "names": ["linear", "step"]},
        {"name": "sparsity", "kind": "even", "low": 0.5, "high": 0.6},
        {"name": "metric", "kind": "even", "low": 0.8, "high": 0.9},
    ]
    assert found["lines"] == [[0.3, "step", 0.5, 0.9], [0.6, "linear", 0.6, 0.8]]


def test_sensitivity_is_a_table_of_layers_by_sparsities() -> None:
    costs = [
        {"layer": "conv2", "sparsity": 0.5, "loss": 0.1, "accuracy": 0.0},
        {"layer": "conv2", "sparsity": 0.9, "loss": 0.4, "accuracy": 0.0},
        {"layer": "fc1", "sparsity": 0.5, "loss": 0.2, "accuracy": 0.0},
    ]
    found = sensitivity(costs)
    assert found is not None
    assert found["loss"] == [[0.1, 0.4], [0.2, None]]
    assert found["headline"] == "conv2 is the most sensitive layer"
    assert sensitivity([]) is None


# Words ----------------------------------------------------------------------------------------------------------------


def test_lead_says_the_result() -> None:
    files = files_of(ROWS)
    assert said(lead(files, files.rows)) == (
        "Trial 2 reaches 87.50 % validation accuracy with 75.00 % of its weights at zero, "
        "9.50 points below the dense network. Chosen: highest validation accuracy, no other eligible trial within "
        "noise (0 points). Goal: target sparsity 0.75."
    )
    same = files_of(ROWS, dense_metric=0.875)
    assert "as accurate as the dense network" in lead(same, same.rows)
    missed = files_of(ROWS[:1])
    assert said(lead(missed, missed.rows)).startswith("1 trial has finished; none meets the goal yet.")
    assert lead(files_of([]), []).startswith("No trial has finished yet.")
    failed = files_of(ROWS[4:])
    assert lead(failed, failed.rows).startswith("No trial is complete: 1 trial failed.")


def test_status_tells_running_finished_stopped_and_failed_apart() -> None:
    now = CurrentTraining("trial 3", 2, 20, 0.0, 1.0)
    running = files_of(ROWS, now=now)
    assert status(state_of(running), running.now) == {
        "kind": "running",
        "text": "Running: 5 of 5 trials · trial 3, epoch 2 of 20",
    }
    finished = files_of(ROWS, summary={"chosen": None})
    assert status(state_of(finished), None) == {"kind": "finished", "text": "Finished: 5 trials"}
    stopped = files_of([*ROWS, {"trial": 5, "state": "waiting"}])
    assert status(state_of(stopped), None) == {"kind": "stopped", "text": "Stopped: 5 of 6 trials"}
    failed = files_of(ROWS[4:], summary={"chosen": None})
    assert status(state_of(failed), None) == {"kind": "failed", "text": "The only trial failed"}


def with_refits(run: RunFolder) -> None:
    """Trial 2 and two refits, the first of which has the lowest loss of those with the highest accuracy."""
    for refit, (accuracy, loss) in enumerate([(0.875, 0.5), (0.875, 0.4), (0.855, 0.3)]):
        folder = run.candidate(2, refit)
        folder.mkdir(parents=True)
        layers = {"conv2": {"zeros": 3, "weights": 4}}
        record = {"metric": accuracy, "loss": loss, "sparsity": 0.75, "ternary_bytes": 250 + refit, "layers": layers}
        (folder / "candidate.json").write_text(json.dumps(record))


def test_tiles_give_the_exported_model_the_refits_and_its_test_figures(tmp_path: Path) -> None:
    before = files_of(ROWS)
    assert tuple(map(said, tiles(before, before.rows)[0])) == ("Validation accuracy", "87.50 %", "trial 2")
    rows = [each | {"candidate": each["trial"]} for each in ROWS]
    with_refits(RunFolder(tmp_path))
    chosen = {"trial": 2, "refit": 1, "test_metric": 0.86}
    after = files_of(rows, tmp_path, summary={"chosen": chosen, "dense": {"test_metric": 0.96}})
    told = [tuple(map(said, tile)) for tile in tiles(after, after.rows)]
    assert told[0] == ("Test accuracy", "86.00 %", "dense 96.00 %")
    assert told[1] == ("Validation accuracy", "87.50 %", "trial 2 (refit 1)")
    # The mean of 0.875 and 0.855, and 0.02 / √2.
    assert told[2] == ("Refits: validation accuracy", "86.50 %", "± 1.41 % over 2 seeds")
    assert ("Ternary size", "251 bytes", "ternary weights in the packed file") in told
    assert told[-1] == ("Trials", "4", "complete, 1 failed")
    # The test result is that of another model.
    other = files_of(rows, tmp_path, summary={"chosen": chosen | {"refit": None}, "dense": {"test_metric": 0.96}})
    assert tiles(other, other.rows)[0][0] == "Validation accuracy"


def test_the_page_names_the_exported_model_and_why_it_was_chosen(tmp_path: Path) -> None:
    with_refits(RunFolder(tmp_path))
    document = study_document(files_of([each | {"candidate": each["trial"]} for each in ROWS], tmp_path))
    reason = "highest validation accuracy, no other eligible trial within noise (0 points)"
    assert document["model"] == {"trial": 2, "refit": 1, "reason": reason, "metric": 0.875, "sparsity": 0.75}
    assert said(document["lead"]).startswith("Trial 2 (refit 1) reaches 87.50 % validation accuracy")
    assert f"Chosen: {reason}." in document["lead"]
    detail = document["details"]["2"]
    assert detail["exported"] == {"refit": 1, "metric": 0.875}
    assert detail["refits"] == [0.875, 0.855]
    assert detail["refit_text"] == "86.50% ± 1.41% over 2 seeds"
    assert study_document(files_of([]))["model"] is None


def test_a_chosen_trial_that_is_not_on_the_front_has_details(tmp_path: Path) -> None:
    rows = [row(trial, 0.9, 0.9 + trial / 1000, candidate=trial) for trial in range(3, 4 + DETAILED)]
    chosen = row(2, 0.75, 0.875, candidate=2)  # the only one at the target; all others dominate it
    with_refits(RunFolder(tmp_path))
    files = files_of([chosen, *rows], tmp_path)
    document = study_document(files)
    assert 2 not in document["fronts"][0]["trials"]
    assert (document["chosen"], list(document["details"])) == (2, ["2"])


def test_tiles_show_every_measured_cost() -> None:
    files = files_of([row(0, 0.75, 0.9, ternary_bytes=2664, latency_ms=0.25)])
    shown = [tuple(map(said, tile)) for tile in tiles(files, files.rows)]
    assert ("Latency", "0.25 ms", "one image, one thread") in shown
    assert ("Ternary size", "2.60 KB", "ternary weights in the packed file") in shown


def test_growth_headline_names_the_trial_that_nearly_ended_it() -> None:
    assert said(growth_headline([0.1, 0.995, 0.995, 1.0])) == "After 2 trials the front had 99 % of its final area"
    assert growth_headline([0.1, 0.2]) == "The area still grew with the last trial"
    assert growth_headline([]) == "Area of the front over the trials"


# The page -------------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.words: list[str] = []
        self._inside: str | None = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in {"script", "style"} else None

    def handle_endtag(self, _tag):
        self._inside = None

    def handle_data(self, data):
        (self.words if self._inside is None else self.scripts).append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", "".join(self.words))

    @property
    def data(self) -> dict:
        return json.loads(next(script for script in self.scripts if script.startswith('{"studies"')))


def test_page_carries_the_document_and_one_copy_of_plotly() -> None:
    document = study_document(files_of(ROWS))
    text = render_page([document])
    assert Page(text).data == {"studies": [json.loads(json.dumps(document))], "live": None}
    assert len(re.findall(r"plotly\.js v\d", text)) == 1
    assert re.search(r"Made by sca-search \d\S*, 20\d\d-\d\d-\d\d \d\d:\d\d UTC\.", Page(text).text)


@pytest.mark.parametrize("rows", [[], ROWS[:1], ROWS[4:], ROWS], ids=["empty", "one", "failed", "several"])
def test_any_study_becomes_a_document_without_holes(rows: list[dict[str, object]]) -> None:
    document = study_document(files_of(rows))
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert document["fronts"][0]["measure"]["key"] == MEASURES[0].key
    assert len(document["table"]["rows"]) == len(rows)


EVIL = "<script>alert(1)</script>"


@pytest.mark.parametrize("name", [EVIL, "../../x", "</title><img src=x onerror=alert(1)>", "$plotly ${title} $$"])
def test_names_are_shown_as_text(name: str) -> None:
    document = study_document(files_of(ROWS)) | {"name": name}
    plain, page = Page(render_page([document | {"name": "digits"}])), Page(render_page([document]))
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.text.count(name) == 2  # title and heading
    assert page.data["studies"][0]["name"] == name


def test_embedded_values_cannot_end_their_script() -> None:
    assert "<" not in embedded({EVIL: ["<!--", EVIL]})
    assert json.loads(embedded({EVIL: ["<!--", "\u2028"]})) == {EVIL: ["<!--", "\u2028"]}


def test_page_loads_nothing_from_elsewhere_and_runs_only_its_own_scripts() -> None:
    page = Page(render_page([study_document(files_of(ROWS))]))
    assert all({"src", "srcset", "data"}.isdisjoint(attributes) for _, attributes in page.tags)
    assert all((attributes.get("href") or "#").startswith("#") for _, attributes in page.tags)
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "embed", "base"})
    (policy,) = [attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "connect-src" not in policy
    assert "unsafe-inline" not in policy.partition("style-src")[0]


def test_live_page_may_ask_its_own_server() -> None:
    page = Page(render_page([study_document(files_of(ROWS))], live={"version": "v"}))
    (policy,) = [attributes["content"] for tag, attributes in page.tags if "http-equiv" in attributes]
    assert policy.endswith("connect-src 'self'")
    assert page.data["live"] == {"version": "v"}


def test_compact_rounds_and_drops_what_is_no_number() -> None:
    given = {"a": [0.123456789, math.nan, math.inf, np.float64(1 / 3), np.int64(4)], 5: (True, "x", None)}
    assert compact(given) == {"a": [0.123457, None, None, 0.333333, 4], "5": [True, "x", None]}


def test_a_running_study_spends_little_time_on_its_page(tiny_run: tuple[Path, str], tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    shutil.copytree(tiny_run[0], run.path)
    run.dashboard_file.unlink()
    times = iter([0.0, 2.0, 99.0, 100.0, 101.0])  # begun and ended; asked; asked, begun
    writer, ended = PageWriter(lambda: next(times, 200.0)), TrialEnded(0, None)
    writer.on_event(StudyStarted(run, run.spec(), "metric"))
    run.dashboard_file.unlink()
    writer.on_event(ended)  # 97 s after one that took 2 s: 2 % would be 98 s
    assert not run.dashboard_file.exists()
    writer.on_event(ended)
    assert run.dashboard_file.exists()


def test_polling_the_status_reads_the_run_only_after_a_change(tmp_path: Path, monkeypatch) -> None:
    run = shutil.copytree(RUN_FOLDER, tmp_path / "run")
    reads: list[Path] = []
    monkeypatch.setattr(live, "read_run", lambda path: (reads.append(path), read_run(path))[1])
    studies = live.LiveStudies([run], lambda _run, _trial: {})
    first = studies.status()
    assert first["status"] == [{"kind": "finished", "text": "Finished: 2 trials"}]
    now = {"what": "trial 7", "epoch": 1, "epochs": 20, "at": 1e99, "pause_seconds": 1.5}
    (run / "progress.json").write_text(json.dumps(now))
    second = studies.status()
    assert second["status"] == [{"kind": "running", "text": "Running: 2 of 2 trials · trial 7, epoch 1 of 20"}]
    assert (second["version"], reads) == (first["version"], [run])
    (run / "summary.json").unlink()
    (run / "progress.json").unlink()
    assert studies.status()["status"][0]["kind"] == "stopped"
    assert reads == [run, run]
