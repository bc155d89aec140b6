"""The page in a real browser: drawn without a word in the console and without asking the network for anything."""

import csv
import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from sca_search.dashboard import write_page
from tests.support.browser import chromium, click_point, cpu_seconds, drawn, opened, shown, until, values
from tests.support.many_trials import lengthened

FIGURES = (
    "front",
    "layers",
    "cost",
    "accuracy",
    "schedules",
    "distribution",
    "alpha",
    "achieved",
    "growth",
    "timeline",
)


@pytest.fixture(scope="module", autouse=True)
def browser_is_there() -> None:
    chromium()


@pytest.fixture(scope="module")
def study(tiny_run: tuple[Path, str]) -> Path:
    return tiny_run[0]


def trials_of(study: Path) -> pd.DataFrame:
    return pd.read_csv(study / "trials.csv").set_index("trial")


@pytest.mark.parametrize("look", [(1440, "light"), (400, "dark")], ids=["desk", "phone"])
def test_every_figure_is_drawn(study: Path, look: tuple[int, str]) -> None:
    width, scheme = look
    with opened(study / "dashboard.html", viewport={"width": width, "height": 900}, color_scheme=scheme) as page:
        for figure in FIGURES:
            plot = shown(page, figure)
            assert plot.get_attribute("role") == "img"
            assert len(plot.get_attribute("aria-label")) > 20
            assert page.locator(f'figure[data-figure="{figure}"] h3').inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") == width  # nothing hangs over the side
        assert page.locator("#features-card img").count() > 8
        assert page.locator("#setup-card pre").first.inner_text().startswith("sca-search --target-sparsity 0.5")


def test_click_on_a_point_changes_the_panels(study: Path) -> None:
    trials = trials_of(study)
    with opened(study / "dashboard.html") as page:
        before = page.locator("#trial-heading").inner_text()
        others = [trial for trial in trials.index if f"Trial {trial}" != before]
        shown(page, "front")
        name, index, trial = next(
            (name, index, trial)
            for name in ("front", "trials")
            for index, trial in enumerate(values(page, "front", name, "customdata"))
            if trial in others
        )
        click_point(page, "front", name, index)
        until(page, f"document.getElementById('trial-heading').textContent === 'Trial {trial}'")
        assert page.locator("#command-text").inner_text().endswith(f"--trial {trial}")
        accuracy = 100 * trials.loc[trial, "metric"]
        assert f"{accuracy:.2f}" in page.locator("#trial-about").inner_text()
        shown(page, "accuracy")
        expected = _last_accuracy(study, trials, trial)
        until(page, f"Math.abs({drawn('accuracy', 'rounded')}.y.at(-1) - {expected}) < 0.001")
        assert page.url.endswith(f"#trial={trial}")


def _last_accuracy(study: Path, trials: pd.DataFrame, trial: int) -> float:
    history = study / "candidates" / f"{int(trials.loc[trial, 'candidate']):03d}" / "history.csv"
    return 100 * float(pd.read_csv(history)["rounded_metric"].iloc[-1])


def test_schedules_are_alpha_lambda_and_the_soft_fraction_where_the_form_has_one(study: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(study, run)
    home = run / "candidates" / "002"
    history = pd.read_csv(home / "history.csv").assign(soft_fraction=None)
    history.to_csv(home / "history.csv", index=False)
    write_page(tmp_path / "page.html", [run])
    columns = {"α": "alpha", "λ": "strength", "soft fraction": "soft_fraction"}
    with opened(tmp_path / "page.html") as page:
        for trial, names in ((2, ["α", "λ"]), (0, ["α", "λ", "soft fraction"])):
            page.locator("#trial-picker").select_option(str(trial))
            shown(page, "schedules")
            table = pd.read_csv(run / "candidates" / f"{trial:03d}" / "history.csv").query("phase == 'ternary'")
            until(page, f"Math.abs({drawn('schedules', 'λ')}.y.at(-1) - {table['strength'].iloc[-1]}) < 0.001")
            found = {name: values(page, "schedules", name, "y") for name in columns}
            expected = {name: list(table[column]) if name in names else [] for name, column in columns.items()}
            assert found == {name: pytest.approx(each, rel=1e-5) for name, each in expected.items()}


def test_axes_switch_between_sparsity_and_size(study: Path) -> None:
    trials = trials_of(study)
    with opened(study / "dashboard.html") as page:
        shown(page, "front")
        assert_among(values(page, "front", "front", "x"), 100 * trials["sparsity"])
        page.locator("#axis").get_by_text("ternary size").click()
        until(
            page,
            """document.querySelector('figure[data-figure="front"] .plot').layout.xaxis.title.text.includes("KB")""",
        )
        assert_among(values(page, "front", "front", "x"), trials["ternary_bytes"] / 1024)


def assert_among(found: list[float], known: pd.Series) -> None:
    assert found
    assert all((abs(known - each) < 1e-3).any() for each in found)


def test_latency_is_offered_where_trials_have_it(study: Path, tmp_path: Path) -> None:
    run = tmp_path / "timed"
    shutil.copytree(study, run)
    table = pd.read_csv(run / "trials.csv")
    table.assign(latency_ms=[0.5, 0.25, 0.75]).to_csv(run / "trials.csv", index=False)
    for path in run.rglob("candidate.json"):  # of refits as well: the best of them is shown
        record = json.loads(path.read_text())
        record["layers"]["conv2"]["latency_ms"], record["layers"]["fc1"]["latency_ms"] = 0.125, 0.0625
        path.write_text(json.dumps(record))
    write_page(tmp_path / "page.html", [run])
    with opened(tmp_path / "page.html") as page:
        assert page.locator("#axis").inner_text().split() == ["sparsity", "latency", "ternary", "size"]
        page.locator("#axis").get_by_text("latency").click()
        shown(page, "front")
        assert set(values(page, "front", "front", "x")) <= {0.5, 0.25, 0.75}
        shown(page, "cost")
        heading = page.locator('figure[data-figure="cost"] h3').inner_text()
        assert heading.startswith("latency 0.1875\N{NO-BREAK SPACE}ms, ternary size ")


def test_table_is_filtered_sorted_and_downloaded(study: Path, tmp_path: Path) -> None:
    trials = trials_of(study)
    with opened(study / "dashboard.html") as page:
        rows = page.locator("#table tbody tr")
        assert rows.count() == 3
        page.get_by_role("button", name="sparsity", exact=True).click()
        order = [int(row.get_attribute("data-trial")) for row in rows.all()]
        assert [trials.loc[trial, "sparsity"] for trial in order] == sorted(trials["sparsity"], reverse=True)
        page.locator("#filter").fill("sparsity>80%")
        sparse = trials[trials["sparsity"] > 0.8]
        assert rows.count() == len(sparse)
        with page.expect_download() as download:
            page.get_by_role("button", name="Download CSV").click()
        download.value.save_as(tmp_path / "trials.csv")
        assert download.value.suggested_filename == "tiny-trials.csv"
        with (tmp_path / "trials.csv").open(newline="") as file:
            rows_read = list(csv.DictReader(file))
        assert [int(row["trial"]) for row in rows_read] == list(sparse.index)
        assert float(rows_read[0]["metric"]) == pytest.approx(sparse["metric"].iloc[0], abs=1e-6)
        page.locator("#filter").fill("no such word")
        assert rows.count() == 0


def test_page_can_be_used_without_a_mouse(study: Path) -> None:
    with opened(study / "dashboard.html") as page:
        plot = shown(page, "front")
        plot.focus()
        seen = set()
        for _ in range(3):
            page.keyboard.press("ArrowLeft")
            seen.add(page.locator("#trial-heading").inner_text())
        for _ in range(3):
            page.keyboard.press("ArrowRight")
            seen.add(page.locator("#trial-heading").inner_text())
        assert seen == {"Trial 0", "Trial 1", "Trial 2"}
        page.locator("#trial-picker").select_option("1")
        assert page.locator("#trial-heading").inner_text() == "Trial 1"


def test_several_runs_are_compared(study: Path, tmp_path: Path) -> None:
    other = tmp_path / "another"
    shutil.copytree(study, other)
    write_page(tmp_path / "comparison.html", [study, other])
    with opened(tmp_path / "comparison.html") as page:
        assert page.locator("h1").inner_text() == "tiny · another"
        shown(page, "compare")
        assert values(page, "compare", "tiny", "x") == values(page, "compare", "another", "x")
        page.locator("#study-picker").select_option("1")
        assert "another" in page.locator("#command-text").inner_text()


def test_pages_that_share_plotly_are_drawn(study: Path, tmp_path: Path) -> None:
    write_page(tmp_path / "one.html", [study], share_plotly=True)
    assert (tmp_path / "one.html").stat().st_size < 1_000_000
    with opened(tmp_path / "one.html") as page:
        shown(page, "front")


@pytest.mark.parametrize("name", ["<script>alert(1)<", "..x", "a&b' --trial 9; rm -rf x", "<img src=x>"])
def test_a_hostile_name_is_text(study: Path, tmp_path: Path, name: str) -> None:
    run = tmp_path / name
    shutil.copytree(study, run)
    table = (run / "trials.csv").read_text().replace("complete", "failed", 1)
    head, first, rest = table.split("\n", 2)
    at = head.strip().split(",").index("reason")
    cells = first.strip().split(",")
    cells[at] = "<img src=x onerror=alert(1)>"
    (run / "trials.csv").write_text("\n".join([head.strip(), ",".join(cells), rest]))
    candidates = run / "candidates"
    for record in candidates.glob("*/candidate.json"):
        record.write_text(record.read_text().replace("conv2", "<img src=x onerror=alert(2)>"))
    write_page(tmp_path / "page.html", [run])
    with opened(tmp_path / "page.html") as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        assert page.locator("h1").inner_text() == name
        for figure in ("layers", "cost", "schedules"):
            shown(page, figure)
        assert page.locator("img[src=x]").count() == 0
        page.locator("#trial-picker").select_option("0")
        assert "<img src=x" in page.locator("#trial-empty").inner_text()


def incomplete(run: Path) -> None:
    """Without the files and columns that not every run has."""
    for pattern in ("closed-form.json", "candidates/*/distribution.json", "candidates/*/features.json"):
        for file in run.glob(pattern):
            file.unlink()
    table = pd.read_csv(run / "trials.csv")
    table.drop(columns=["started", "worker", "ternary_bytes"]).to_csv(run / "trials.csv", index=False)


def empty(run: Path) -> None:
    for name in ("trials.csv", "summary.json", "front.csv", "sensitivity.json", "dense.json"):
        (run / name).unlink()
    shutil.rmtree(run / "candidates")


def one(run: Path) -> None:
    pd.read_csv(run / "trials.csv").iloc[:1].to_csv(run / "trials.csv", index=False)


def failed(run: Path) -> None:
    table = pd.read_csv(run / "trials.csv", dtype={"reason": "str"})
    table = table.assign(state="failed", accuracy=None, sparsity=None, reason="the loss became nan in epoch 1")
    table.to_csv(run / "trials.csv", index=False)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (incomplete, "Finished: 3 trials"),
        (empty, "Stopped: 0 of 3 trials"),
        (one, "Stopped: 1 of 3 trials"),
        (failed, "All 3 trials failed"),
    ],
)
def test_unusual_studies_look_right(study: Path, tmp_path: Path, change, sentence: str) -> None:
    run = tmp_path / "run"
    shutil.copytree(study, run)
    change(run)
    write_page(tmp_path / "page.html", [run])
    with opened(tmp_path / "page.html") as page:
        assert page.locator("#status").inner_text() == sentence
        for block in page.locator("figure").all():
            block.scroll_into_view_if_needed() if block.is_visible() else None
        page.wait_for_timeout(300)
        assert "undefined" not in page.locator("main").inner_text()
        assert "NaN" not in page.locator("main").inner_text()


@pytest.mark.nightly
def test_a_thousand_trials_are_small_and_quick(study: Path, tmp_path: Path) -> None:
    run = lengthened(study, tmp_path / "long", 1000)
    write_page(tmp_path / "page.html", [run])
    assert (tmp_path / "page.html").stat().st_size < 10_000_000
    with opened(tmp_path / "page.html") as page:
        assert cpu_seconds(page) < 3  # loading, scripts and the first figure
        page.locator("#filter").fill("paused")
        assert page.locator("#table tbody tr").count() == 50
        page.locator("#trial-picker").select_option("3")
        assert "keeps details of the front and of the newest trials" in page.locator("#trial-empty").inner_text()
