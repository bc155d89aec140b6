import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from sca_search.dashboard import (
    DashboardData,
    FrontPoint,
    LayerRow,
    dashboard_data,
    render_page,
    write_dashboard,
)
from sca_search.dashboard.data import FrontView, front_outline, front_view, table_rows
from sca_search.dashboard.figures import front_figure, layers_figure
from sca_search.dashboard.page import lead
from sca_search.results import trial_frame

DENSE = FrontPoint(0, 0.5, 0.95, 0.5)
MIDDLE = FrontPoint(2, 0.75, 0.875, 0.75)
BEATEN = FrontPoint(3, 0.75, 0.85, 0.75)
SPARSE = FrontPoint(4, 0.9, 0.8, 0.91)
LAYERS = (LayerRow("conv1", 1000, 0.7), LayerRow("conv2", 4000, 0.95))
DATA = DashboardData(
    title="digits",
    target_sparsity=0.75,
    dense_accuracy=0.97,
    points=(DENSE, MIDDLE, BEATEN, SPARSE),
    front=(DENSE, MIDDLE, SPARSE),
    chosen=MIDDLE,
    summary=(("network", "convnet"), ("seed", "0")),
    layers=LAYERS,
)
EMPTY = DashboardData("digits", 0.9, None, (), (), None, (), ())


def row(point, state="complete"):
    return {
        "trial": point.trial,
        "state": state,
        "sparsity": point.sparsity,
        "accuracy": point.accuracy,
        "planned_sparsity": point.planned_sparsity,
        "loss": 0.5,
    }


class Page(HTMLParser):
    """Tags with their attributes, and the text outside of scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.scripts, self.words, self._inside = [], {}, [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._inside = dict(attrs).get("data-figure", tag) if tag in {"script", "style"} else None

    def handle_endtag(self, tag):
        if tag in {"script", "style"}:
            self._inside = None

    def handle_data(self, data):
        if self._inside is None:
            self.words.append(data)
        else:
            self.scripts[self._inside] = self.scripts.get(self._inside, "") + data

    @property
    def text(self):
        return re.sub(r"\s+", " ", "".join(self.words))

    def figure(self, name):
        return json.loads(self.scripts[name])


def named(figure, name):
    return next(trace for trace in figure.data if trace.name == name)


def test_dashboard_data_holds_points_front_and_chosen():
    frame = trial_frame(
        [row(DENSE), row(MIDDLE), row(BEATEN), row(SPARSE), row(FrontPoint(1, 0.99, 0.99, 0.99), "failed")]
    )
    data = dashboard_data(
        frame,
        title="digits",
        target_sparsity=0.75,
        dense_accuracy=0.97,
        chosen_trial=2,
        summary=[("network", "convnet"), ("seed", "0")],
        layers=LAYERS,
    )
    assert data == DATA


@pytest.mark.parametrize("chosen", [None, 1, 99])
def test_dashboard_data_leaves_out_a_chosen_trial_that_is_not_complete(chosen):
    frame = trial_frame([row(DENSE), {"trial": 1, "state": "running"}])
    data = dashboard_data(
        frame,
        title="digits",
        target_sparsity=None,
        dense_accuracy=None,
        chosen_trial=chosen,
        summary=(),
        layers=(),
    )
    assert data == DashboardData("digits", None, None, (DENSE,), (DENSE,), None, (), ())


def test_front_outline_is_the_best_accuracy_with_at_least_a_sparsity():
    assert front_outline(()) == ()
    assert front_outline(DATA.front) == ((0.0, 0.95), (0.5, 0.95), (0.75, 0.875), (0.9, 0.8))

    def best(sparsity):
        return max(point.accuracy for point in DATA.points if point.sparsity >= sparsity)

    # "vh" falls at a corner and runs level to the next: between two corners the later one's value holds.
    corners = front_outline(DATA.front)
    for (left, _), (right, level) in pairwise(corners):
        assert best((left + right) / 2) == level
    outline = front_figure(DATA).data[0]
    assert (outline.line.shape, list(outline.x), list(outline.y)) == (
        "vh",
        [0, 50, 75, 90],
        [95, 95, 87.5, 80],
    )


def test_front_view_fits_target_dense_accuracy_and_trials():
    # sparsity 50..90 with 8 % of 40 around, accuracy 80..97 with 8 % of 17
    view = front_view(DATA)
    assert view.sparsity == pytest.approx((46.8, 93.2))
    assert view.accuracy == pytest.approx((78.64, 98.36))
    assert view.below == 0
    assert front_view(replace(DATA, target_sparsity=0.4)).sparsity == pytest.approx((36.0, 94.0))
    assert front_view(EMPTY) == FrontView((0.0, 100.0), (0.0, 100.0), 0)


def test_front_view_leaves_far_trials_below():
    # The front and the dense accuracy span 17 points: 80 - 17 = 63 is the floor.
    far, near = FrontPoint(5, 0.2, 0.62, 0.2), FrontPoint(6, 0.6, 0.64, 0.6)
    view = front_view(replace(DATA, points=(*DATA.points, far, near)))
    assert view.below == 1
    assert view.sparsity == pytest.approx((46.8, 93.2))
    assert view.accuracy == pytest.approx((64 - 0.08 * 33, 97 + 0.08 * 33))


def test_front_view_of_one_trial_has_an_extent_within_the_shares():
    perfect = FrontPoint(0, 1.0, 1.0, 1.0)
    data = replace(EMPTY, target_sparsity=None, points=(perfect,), front=(perfect,))
    assert front_view(data) == FrontView((99.0, 101.0), (99.0, 101.0), 0)


def test_table_rows_hold_the_front_and_the_chosen():
    assert table_rows(DATA) == (DENSE, MIDDLE, SPARSE)
    assert table_rows(replace(DATA, chosen=BEATEN)) == (DENSE, MIDDLE, BEATEN, SPARSE)
    assert table_rows(EMPTY) == ()


def test_front_figure_draws_trials_front_and_chosen():
    figure = front_figure(DATA)
    assert list(named(figure, "all trials").x) == [50, 75, 75, 90]
    assert list(named(figure, "all trials").y) == [95, 87.5, 85, 80]
    assert list(named(figure, "Pareto front").customdata) == [0, 2, 4]
    star = named(figure, "chosen")
    assert (star.marker.symbol, list(star.x), list(star.y)) == ("star", [75], [87.5])
    labels = [note.text for note in figure.layout.annotations]
    assert labels == ["<b>trial 2</b>", "target 75 %", "dense network 97.00 %"]
    vertical, horizontal = figure.layout.shapes
    assert (vertical.x0, vertical.x1, vertical.line.dash) == (75, 75, "dash")
    assert (horizontal.y0, horizontal.y1, horizontal.line.dash) == (97, 97, "dot")


def test_front_figure_of_nothing_can_be_drawn():
    figure = front_figure(EMPTY)
    assert all(not trace.x for trace in figure.data)
    assert not layers_figure(EMPTY).data[0].x


def test_layers_figure_has_a_bar_a_layer_from_the_top():
    same_name = (LayerRow("conv", 1000, 0.25), LayerRow("conv", 4000, 0.5))
    figure = layers_figure(replace(DATA, layers=same_name))
    bars = figure.data[0]
    assert (list(bars.y), list(bars.x), list(bars.text)) == ([0, 1], [25, 50], ["25.0 %", "50.0 %"])
    assert figure.layout.yaxis.autorange == "reversed"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (EMPTY, "No trial has finished yet (target 90.00 %)."),
        (replace(DATA, chosen=None), "4 trials have finished; none is chosen yet (target 75.00 %)."),
        (
            DATA,
            "Trial 2 reaches 87.50 % validation accuracy with 75.00 % of its weights at zero "
            "(target 75.00 %), 9.50 points below the dense network.",
        ),
        (
            replace(DATA, target_sparsity=None, dense_accuracy=0.875),
            "Trial 2 reaches 87.50 % validation accuracy with 75.00 % of its weights at zero, "
            "as much as the dense network.",
        ),
    ],
)
def test_lead_says_the_result(data, sentence):
    assert lead(data).replace("\N{NO-BREAK SPACE}", " ") == sentence


def test_page_shows_summary_table_and_figures():
    page = Page(render_page(DATA))
    assert "networkconvnet seed0" in page.text
    assert "target 75.00 %" in page.text
    assert page.text.count("★ chosen") == 1
    assert [attrs for tag, attrs in page.tags if tag == "tr"] == [{}, {}, {"class": "chosen"}, {}]
    assert [tag for tag, _ in page.tags].count("td") == 3 * 6
    assert "−17.00" in page.text  # 80 against 97
    assert page.figure("front") == json.loads(front_figure(DATA).to_json())
    assert page.figure("layers") == json.loads(layers_figure(DATA).to_json())


def test_page_marks_a_chosen_trial_off_the_front():
    assert "★ chosen, not on the front" in Page(render_page(replace(DATA, chosen=BEATEN))).text


def test_page_mentions_trials_outside_the_view():
    far = FrontPoint(5, 0.2, 0.1, 0.2)
    text = Page(render_page(replace(DATA, points=(*DATA.points, far)))).text
    assert "1 trial lies far below the front" in text
    assert "below the front" not in Page(render_page(DATA)).text


def test_page_without_trials_says_so_and_is_small():
    text = render_page(EMPTY)
    assert "No trial has finished yet" in text
    assert len(text) < 20_000
    assert "<table" not in text


def test_page_shows_a_missing_plan_as_a_dash():
    unplanned = FrontPoint(0, 0.5, 0.9, math.nan)
    text = render_page(replace(EMPTY, points=(unplanned,), front=(unplanned,)))
    assert "<td>0</td><td>–</td><td>50.00\N{NO-BREAK SPACE}%</td>" in text


def test_page_escapes_what_users_name():
    evil = "</script><script>alert('x')</script><img src=x onerror=alert(1)>"

    def page_named(name):
        return Page(render_page(replace(DATA, title=name, summary=((name, name),), layers=(LayerRow(name, 1, 0.5),))))

    plain, page = page_named("digits"), page_named(evil)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert page.text.count(evil) == 4  # title, heading, and both halves of the summary
    # plotly reads a label as markup of its own, so there it stays escaped once more.
    label = page.figure("layers")["layout"]["yaxis"]["ticktext"][0]
    assert "<" not in label
    assert "&lt;/script&gt;" in label


def test_page_substitutes_no_placeholder_from_users():
    assert "$plotly ${title} $$" in Page(render_page(replace(DATA, title="$plotly ${title} $$"))).text


def test_page_loads_nothing_from_elsewhere():
    page = Page(render_page(DATA))
    assert all({"src", "href", "srcset", "data"}.isdisjoint(attrs) for _, attrs in page.tags)
    assert {tag for tag, _ in page.tags}.isdisjoint({"link", "iframe", "object", "embed", "base"})
    assert not re.search(r"@import|url\(", page.scripts["style"])
    policies = [attrs["content"] for tag, attrs in page.tags if "http-equiv" in attrs]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none';")


def test_page_offers_no_upload():
    # Only the buttons listed here are drawn; plotly's own list has one that sends the figure to its cloud.
    drawing = Page(render_page(DATA)).scripts["script"].rsplit("const config", 1)[1]
    assert 'modeBarButtons: [["toImage"], ["zoom2d", "pan2d", "autoScale2d", "resetScale2d"]]' in drawing


def test_page_embeds_plotly_once():
    text = render_page(DATA)
    assert len(re.findall(r"plotly\.js v\d", text)) == 1


def test_write_dashboard_writes_the_page(tmp_path):
    path = tmp_path / "dashboard.html"
    write_dashboard(path, EMPTY)
    assert path.read_text(encoding="utf-8") == render_page(EMPTY)
    assert [entry.name for entry in tmp_path.iterdir()] == ["dashboard.html"]
