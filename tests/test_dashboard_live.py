"""The live page on a real server: who may read, who may export, and a page that follows a study while it runs."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

import pytest
from browser import chromium, drawn, opened, shown, until
from conftest import sca_search
from many_trials import lengthened

from sca_search.dashboard.live import is_our_host


@contextmanager
def served(*runs: Path, more: tuple[str, ...] = ()) -> Iterator[str]:
    """The real command in a process of its own; Ctrl-C must end it in order."""
    command = [sys.executable, "-m", "sca_search.cli", "dashboard", *map(str, runs), "--live", "--no-open", *more]
    env = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address, line + process.communicate(timeout=20)[1]
        yield address[0]
    finally:
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
    assert process.returncode == 0, complaints
    assert "Traceback" not in complaints


def ask(address: str, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
    """A request with whatever headers a foreign page or program could send."""
    place = address.removeprefix("http://").rstrip("/")
    connection = HTTPConnection(place, timeout=120)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def token_of(address: str) -> str:
    found = re.search(r'"live":\{"token":"([\w-]+)"', ask(address, "/")[1])
    assert found
    return found[1]


@pytest.fixture(scope="module")
def study(tiny_run: tuple[Path, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("live") / "study"
    shutil.copytree(tiny_run[0], copy)
    return copy


@pytest.fixture(scope="module")
def server(study: Path) -> Iterator[str]:
    with served(study) as address:
        yield address


def test_server_listens_on_this_machine_only(server: str) -> None:
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", server)
    port = int(server.rstrip("/").rpartition(":")[2])
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own, port), timeout=2)


def test_document_is_beside_the_page(server: str) -> None:
    status, body = ask(server, "/data.json")
    content = json.loads(body)
    assert status == 200
    assert [each["name"] for each in content["studies"]] == ["study"]
    told = json.loads(ask(server, "/status.json")[1])
    assert told["version"] == content["version"]
    assert told["status"] == [{"kind": "finished", "text": "Finished: 3 trials"}]


def test_details_of_a_trial_can_be_asked_for(server: str) -> None:
    status, body = ask(server, "/studies/0/trials/1")
    assert status == 200
    assert [layer["name"] for layer in json.loads(body)["layers"]] == ["conv2", "fc1"]
    assert ask(server, "/studies/0/trials/99")[0] == 404
    assert ask(server, "/studies/7/trials/0")[0] == 404


@pytest.mark.parametrize("path", ["/", "/data.json", "/status.json", "/studies/0/trials/0"])
def test_a_foreign_host_name_is_refused(server: str, path: str) -> None:
    assert ask(server, path, Host="evil.example")[0] == 403
    assert ask(server, path, Host="127.0.0.1.evil.example")[0] == 403
    assert ask(server, path, Host="localhost:80")[0] == 200


def test_export_needs_token_origin_and_post(server: str, study: Path) -> None:
    token, body = token_of(server), json.dumps({"study": 0, "trial": 0})
    assert ask(server, "/export", "POST", body)[0] == 403
    assert ask(server, "/export", "POST", body, X_Token="guessed")[0] == 403
    assert ask(server, "/export", "POST", body, X_Token="é")[0] == 403
    assert ask(server, "/export", "POST", body, X_Token=token, Origin="http://evil.example")[0] == 403
    assert ask(server, "/export", "POST", body, X_Token=token, Origin="null")[0] == 403
    assert ask(server, "/export", "POST", body, X_Token=token, Host="evil.example")[0] == 403
    assert ask(server, "/export", "GET", X_Token=token)[0] == 405
    assert not (study / "exports").exists()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("", "an export must name study and trial as JSON"),
        ("[1]", "an export must name study and trial as JSON"),
        (
            '{"study": 0, "trial": "../../x"}',
            "an export must name a study from 0 to 0 and a trial, got 0 and '../../x'",
        ),
        ('{"study": 1, "trial": 0}', "an export must name a study from 0 to 0 and a trial, got 1 and 0"),
        ('{"study": 0, "trial": 99}', "there is no trial 99; there are 0, 1, 2"),
    ],
)
def test_bad_exports_are_one_sentence(server: str, study: Path, body: str, sentence: str) -> None:
    status, answer = ask(server, "/export", "POST", body, X_Token=token_of(server))
    assert status == 400
    assert sentence in json.loads(answer)["error"]
    assert not (study / "exports").exists()


def test_nothing_else_can_be_read_or_changed(server: str) -> None:
    for path in ("/study.toml", "/../study.toml", "/%2e%2e/study.toml", "/data.json/../../study.db", "/docs"):
        assert ask(server, path)[0] == 404
    for method in ("PUT", "DELETE", "POST", "PATCH"):
        assert ask(server, "/data.json", method)[0] == 405


@pytest.mark.parametrize(
    ("header", "address", "ours"),
    [
        ("127.0.0.1:8000", "127.0.0.1", True),
        ("localhost", "127.0.0.1", True),
        ("[::1]:8000", "::1", True),
        ("192.168.0.7:80", "127.0.0.1", False),
        ("evil.example", "127.0.0.1", False),
        ("", "127.0.0.1", False),
        ("192.168.0.7:80", "0.0.0.0", True),
        ("[fe80::1]:80", "::", True),
        ("evil.example:80", "0.0.0.0", False),
        ("build-box:80", "build-box", True),
    ],
)
def test_host_is_ours_where_no_name_could_be_forged(header: str, address: str, ours: bool) -> None:
    assert is_our_host(header, address) is ours


def test_another_address_is_served_with_a_warning(study: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sca_search.cli",
        "dashboard",
        str(study),
        "--live",
        "--no-open",
        "--host",
        "0.0.0.0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert "http://0.0.0.0:" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, complaints = process.communicate(timeout=30)
    assert "Warning: everybody who can reach 0.0.0.0 can read these studies and export their trials." in complaints


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere",), "nowhere: is not a run folder, it has no study.toml"),
        (("nowhere", "--live", "--no-open"), "nowhere: is not a run folder, it has no study.toml"),
        (("nowhere", "--live", "--out", "x.html"), "--live writes no page"),
    ],
)
def test_bad_requests_are_one_sentence(run, arguments: tuple[str, ...], sentence: str) -> None:
    done = run("dashboard", *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_a_page_is_written_anew_but_no_other_file(run, study: Path) -> None:
    assert run("dashboard", str(study), "--no-open", "--out", "page.html").returncode == 0
    assert run("dashboard", str(study), "--no-open", "--out", "page.html").returncode == 0
    Path("letter.html").write_text("<p>dear colleague</p>")
    done = run("dashboard", str(study), "--no-open", "--out", "letter.html")
    assert done.returncode == 2
    assert "letter.html: holds something that is no page of ours; choose another --out" in done.stderr
    assert Path("letter.html").read_text() == "<p>dear colleague</p>"


def test_the_page_of_an_earlier_version_is_replaced(run, study: Path) -> None:
    shutil.copytree(study, "copy")
    Path("copy/dashboard.html").write_text("<p>as it was once</p>")
    assert run("dashboard", "copy", "--no-open").returncode == 0
    assert "Finished: 3 trials" in Path("copy/dashboard.html").read_text()


def test_a_damaged_run_is_refused_in_one_sentence(run, study: Path) -> None:
    shutil.copytree(study, "copy")
    Path("copy/sensitivity.json").write_text('[{"layer": "conv2"}]')
    done = run("dashboard", "copy", "--no-open", "--out", "page.html")
    assert done.returncode == 2
    assert "copy: cannot be shown, a file in it is damaged" in done.stderr
    assert not Path("page.html").exists()


SHOWN_PART = "document.querySelector('figure[data-figure=\"front\"] .plot').layout.xaxis.range"


def drag_over(page, plot) -> None:
    """Zooms in as a user does: a rectangle drawn with the mouse, half as wide as the figure."""
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.3 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 0.8 * box["height"], steps=8)
    page.mouse.up()
    page.wait_for_timeout(400)


@pytest.mark.slow
def test_page_follows_a_running_study(tmp_path: Path) -> None:
    chromium()
    # More trials than any browser needs to open the page; it is stopped once the page was seen to follow.
    arguments = ("--target-sparsity", "0.5", "--name", "running", "--trials", "2000", "--refits", "0", "--epochs", "4")
    more = ("--dense-epochs", "4", "--threads", "1", "--out", str(tmp_path))
    study = subprocess.Popen([sys.executable, "-m", "sca_search.cli", *arguments, *more], stdout=subprocess.DEVNULL)
    run = tmp_path / "running"
    try:
        while not (run / "dashboard.html").exists():
            assert study.poll() is None
            time.sleep(0.1)
        with served(run) as address, opened(address) as page:
            until(page, f"{drawn('front', 'front')} !== undefined", 120)
            until(page, "document.getElementById('status').textContent.startsWith('Running: ')")
            page.locator("#trial-picker").select_option("0")
            shown(page, "front")
            before = page.evaluate(SHOWN_PART)
            drag_over(page, shown(page, "front"))
            zoomed = page.evaluate(SHOWN_PART)
            assert zoomed[1] - zoomed[0] < 0.7 * (before[1] - before[0])
            page.locator("#filter").fill("complete")
            page.evaluate("window.scrollTo(0, 700)")
            updates = page.evaluate("Number(document.body.dataset.updates ?? 0)")
            until(page, f"Number(document.body.dataset.updates ?? 0) >= {updates + 2}", 120)
            assert page.evaluate(SHOWN_PART) == zoomed
            assert page.evaluate("window.scrollY") == 700
            assert page.locator("#trial-heading").inner_text() == "Trial 0"
            assert page.locator("#filter").input_value() == "complete"
            study.send_signal(signal.SIGINT)
            assert study.wait(timeout=240) == 130
            told = json.loads((run / "summary.json").read_text())
            ended = told["trials"] + told["failed"]
            assert ended >= 2
            until(page, f"document.getElementById('status').textContent === 'Stopped: {ended} of 2,000 trials'", 180)
            until(page, f"document.querySelectorAll('#table tbody tr').length === {told['trials']}")
    finally:
        study.kill()
        study.wait(timeout=60)


@pytest.mark.slow
def test_trial_exported_from_the_page_verifies(study: Path, tmp_path: Path) -> None:
    chromium()
    with served(study) as address, opened(address) as page:
        page.locator("#trial-picker").select_option("1")
        page.get_by_role("button", name="Export now").click()
        until(page, "!document.getElementById('export').disabled", 200)
        said = page.locator("#export-said").inner_text()
    folder = study / "exports" / "trial-001"
    assert said.startswith(f"Everything agrees: {folder}")
    assert sca_search("verify", str(folder), cwd=tmp_path).returncode == 0


@pytest.mark.slow
def test_update_of_a_thousand_trials_takes_less_than_a_second(study: Path, tmp_path: Path) -> None:
    chromium()
    run = lengthened(study, tmp_path / "long", 1000)
    with served(run) as address, opened(address) as page:
        ask(address, "/data.json")
        table = (run / "trials.csv").read_text().splitlines()
        (run / "trials.csv").write_text("\n".join(table[:-1]) + "\n")
        began = time.monotonic()
        ask(address, "/data.json")
        made = time.monotonic() - began
        until(page, "document.body.dataset.updates === '1'", 20)
        drawn_in = page.evaluate("Number(document.body.dataset.updateMilliseconds)") / 1000
        page.locator("#trial-picker").select_option("3")  # an old one, of which the page brought only the row
        until(page, "!document.getElementById('trial-figures').hidden")
    assert made + drawn_in < 1.0, (made, drawn_in)
