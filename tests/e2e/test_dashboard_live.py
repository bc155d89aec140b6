"""The live page on a real server: who may read, who may export, and a page that follows a study while it runs."""

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from sca_search.dashboard.live import LiveStudies, is_our_host
from sca_search.dashboard.read import read_candidate
from sca_search.runs.folder import RunFolder
from sca_search.system.files import write_text_atomic
from tests.support.browser import chromium, cpu_seconds, drawn, opened, shown, until
from tests.support.command import sca_search
from tests.support.many_trials import lengthened


@contextmanager
def serving(*runs: Path, opened: str = "--no-open", **variables: str) -> Iterator[tuple[str, int]]:
    """The address and the process id of the real command; Ctrl-C must end it in order."""
    command = [sys.executable, "-m", "sca_search", "dashboard", *map(str, runs), "--live", opened]
    env = os.environ | {"COLUMNS": "200", "OMP_NUM_THREADS": "1"} | variables
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address, line + process.communicate(timeout=20)[1]
        yield address[0], process.pid
    finally:
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
    assert process.returncode == 0, complaints
    assert "Traceback" not in complaints


@contextmanager
def served(*runs: Path, **more: str) -> Iterator[str]:
    with serving(*runs, **more) as (address, _):
        yield address


def process_seconds(process: int) -> float:
    """CPU time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(address: str, path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[int, str]:
    """A request with whatever headers a foreign page or program could send."""
    connection = HTTPConnection(urlsplit(address).netloc, timeout=120)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, named)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def token_of(address: str) -> str:
    """The token in the address that the command printed."""
    return urlsplit(address).fragment.removeprefix("export=")


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
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#export=[\w-]{43}", server)
    port = urlsplit(server).port
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((own, port), timeout=2)


def test_document_is_next_to_the_page(server: str) -> None:
    status, body = ask(server, "/data.json")
    content = json.loads(body)
    assert status == 200
    assert [each["name"] for each in content["studies"]] == ["study"]
    live = json.loads(ask(server, "/status.json")[1])
    assert live["version"] == content["version"]
    assert live["status"] == [{"kind": "finished", "text": "Finished: 3 trials"}]


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


def connected(address: str) -> socket.socket:
    place = urlsplit(address)
    return socket.create_connection((place.hostname, place.port), timeout=60)


def raw(address: str, request: bytes) -> bytes:
    """What no well-behaved client would send, as it stands."""
    with connected(address) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def status_of(address: str, target: str, method: str = "GET", *headers: str) -> int:
    """A request with these headers alone."""
    lines = [f"{method} {target} HTTP/1.1", *headers, "Connection: close", "", ""]
    return int(raw(address, "\r\n".join(lines).encode("latin-1")).split()[1])


TRAVERSALS = (
    *("/study.toml", "/../study.toml", "/%2e%2e/study.toml", "/data.json/../../study.db", "/docs", "/dashboard.html"),
    *(
        "/%2e%2e%2fstudy.toml",
        "/..%2f..%2f..%2fetc/passwd",
        "//etc/passwd",
        "/..\\..\\study.toml",
        "/%5c..%5cstudy.toml",
    ),
    *(
        "/study.toml%00.json",
        "/data.json%00",
        "/%00",
        "/%ff%fe",
        "/%c0%ae%c0%ae/study.toml",
        "*",
        "http://evil.example/x",
    ),
    *("/studies/0/trials/..", "/studies/0/trials/%2e%2e%2f0", "/studies/../trials/0", "/studies/0/trials/0/../../x"),
    *("/studies/0/trials/-1", "/studies/-1/trials/0", "/studies/0/trials/1e3", "/studies/0/trials/0x0", "/studies/0/"),
    *(f"/studies/0/trials/{'9' * 5000}", f"/studies/{'9' * 5000}/trials/0", "/studies/0/trials/%D9%A3", "/studies"),
)


@pytest.mark.parametrize("target", TRAVERSALS, ids=range(len(TRAVERSALS)))
def test_nothing_else_can_be_read(server: str, target: str) -> None:
    assert status_of(server, target, "GET", "Host: localhost") == 404


@pytest.mark.parametrize("path", ["/", "/data.json", "/status.json", "/studies/0/trials/0"])
def test_only_reading_is_possible(server: str, path: str) -> None:
    for method in ("PUT", "DELETE", "POST", "PATCH", "OPTIONS", "TRACE", "CONNECT", "NONSENSE"):
        assert status_of(server, path, method, "Host: localhost") == 405
    assert raw(server, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()).endswith(
        b"\r\n\r\n"
    )


def test_a_question_without_end_is_refused_and_a_long_one_ignored(server: str) -> None:
    assert ask(server, f"/status.json?{'x' * 60_000}")[0] == 200
    # The server hangs up in the middle, which the system may report before the answer is read.
    with suppress(ConnectionError):
        assert raw(server, b"GET /?" + b"x" * 1_000_000).split()[1] == b"400"
    with suppress(ConnectionError):
        assert status_of(server, "/", "GET", "Host: localhost", f"X-Long: {'x' * 1_000_000}") == 400
    assert ask(server, "/status.json")[0] == 200


@pytest.mark.parametrize(
    "hosts",
    [
        ("Host: evil.example",),
        ("Host:",),
        ("Host: localhost@evil.example",),
        ("Host: [::1",),
        ("Host: [::1]evil.example",),
        ("Host: 127.0.0.1:80:evil.example",),
        ("Host: 127.0.0.1.",),
        ("Host: localhost/evil.example",),
        ("Host: 0.0.0.0",),
        ("Host: evil.example", "X-Forwarded-Host: localhost"),
        ("Host: localhost", "Host: evil.example"),
        (),
    ],
)
def test_a_name_that_is_not_ours_reads_nothing(server: str, hosts: tuple[str, ...]) -> None:
    """As a foreign page would ask whose name was made to point here."""
    for target in ("/", "/data.json", "/status.json", "/studies/0/trials/0", "/nowhere"):
        assert status_of(server, target, "GET", *hosts) in {400, 403}


@pytest.mark.parametrize(
    "origin",
    [
        *("http://evil.example", "null", "", "http://", "file://", "http://localhost:1", "http://127.0.0.1"),
        *(
            "https://{host}",
            "http://{host}.evil.example",
            "http://evil@{host}",
            "{host}",
            "http://{host}/",
            "HTTP://{host}",
        ),
    ],
)
def test_no_foreign_origin_exports(server: str, study: Path, origin: str) -> None:
    host = urlsplit(server).netloc
    foreign = origin.format(host=host)
    body = json.dumps({"study": 0, "trial": 0})
    assert ask(server, "/export", "POST", body, X_Token=token_of(server), Origin=foreign)[0] == 403
    assert not (study / "exports").exists()


def test_our_own_origin_may_export(server: str) -> None:
    own = f"http://{urlsplit(server).netloc}"
    status, answer = ask(server, "/export", "POST", '{"study": 0, "trial": 9}', X_Token=token_of(server), Origin=own)
    assert (status, "there is no trial 9" in answer) == (400, True)


def test_a_token_that_is_nearly_right_is_refused(server: str, study: Path) -> None:
    token, body = token_of(server), json.dumps({"study": 0, "trial": 0})
    assert len(token) >= 32
    for wrong in (token[:-1], f"{token}x", token.swapcase(), f" {token[1:]}", f"{token},{token}", "", "x" * 60_000):
        assert ask(server, "/export", "POST", body, X_Token=wrong)[0] == 403
    assert ask(server, f"/export?token={token}", "POST", body, Cookie=f"X-Token={token}")[0] == 403
    assert not (study / "exports").exists()


@pytest.mark.parametrize(
    "body",
    [
        '{"study": 0, "trial": ' + "9" * 900 + "}",
        "[" * 900,
        '{"study": 0, "trial": "' + "x" * 900 + '"}',
        '{"study": -1}',
    ],
)
def test_bodies_beyond_all_bounds_are_one_short_sentence(server: str, body: str) -> None:
    status, answer = ask(server, "/export", "POST", body, X_Token=token_of(server))
    assert status == 400
    assert len(json.loads(answer)["error"]) < 1200


def test_a_body_without_end_is_not_read(server: str) -> None:
    with suppress(ConnectionError):
        status, answer = ask(server, "/export", "POST", "x" * 20_000_000, X_Token=token_of(server))
        assert (status, "at most 1000 bytes" in answer) == (400, True)
    assert ask(server, "/status.json")[0] == 200


def test_every_answer_forbids_frames_guesses_and_caches(server: str) -> None:
    for target in (b"/", b"/data.json", b"/status.json", b"/studies/0/trials/0", b"/nowhere"):
        head = raw(server, b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        headers = {line.strip().lower() for line in head.partition(b"\r\n\r\n")[0].splitlines()}
        assert {b"cache-control: no-store", b"x-content-type-options: nosniff", b"x-frame-options: deny"} <= headers
        assert b"cross-origin-resource-policy: same-origin" in headers
        assert not any(line.startswith(b"access-control-") for line in headers)


@pytest.mark.parametrize("path", ["/", "/data.json", "/status.json", "/studies/0/trials/0", "/nowhere", "/export"])
def test_the_server_does_not_send_the_token(server: str, path: str) -> None:
    assert token_of(server) not in ask(server, path)[1]


def test_a_browser_is_opened_through_a_private_file(study: Path, tmp_path: Path) -> None:
    """A browser that writes down its arguments, which every user can see, and the file that it is to open."""
    browser = tmp_path / "browser"
    browser.write_text(
        f'#!/bin/sh\necho "$1" > {tmp_path}/arguments\nfile="${{1#file://}}"\n'
        f'stat -c %a "$(dirname "$file")" > {tmp_path}/mode\ncp "$file" {tmp_path}/page.html\n'
    )
    browser.chmod(0o755)
    with served(study, opened="--open", BROWSER=f"{browser} %s") as address:
        wait_for((tmp_path / "page.html").is_file)
        assert token_of(address) not in (tmp_path / "arguments").read_text()
        assert (tmp_path / "mode").read_text() == "700\n"
        assert f'url={address}"' in (tmp_path / "page.html").read_text()


def wait_for(condition: Callable[[], bool]) -> None:
    """Until the test's own time limit."""
    while not condition():
        time.sleep(0.05)


def ended(connections: list[socket.socket]) -> int:
    """How many of these the server has closed."""
    readable = select.select(connections, [], [], 0)[0]
    count = 0
    for each in readable:
        with suppress(ConnectionError):
            count += each.recv(1, socket.MSG_PEEK) == b""
            continue
        count += 1
    return count


HALF = [
    b"",
    b"GET / HT",
    b"POST /export HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
]


@pytest.mark.parametrize("sent", HALF)
def test_many_half_open_connections_are_closed_and_others_are_answered(server: str, sent: bytes) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connected(server)) for _ in range(400)]
        for each in connections:
            with suppress(ConnectionError):
                each.sendall(sent)
        wait_for(lambda: ended(connections) >= 400 - 32)
        assert ask(server, "/status.json")[0] == 200


@pytest.mark.parametrize("sent", HALF)
def test_a_connection_without_a_whole_request_is_closed(server: str, sent: bytes) -> None:
    with connected(server) as connection, suppress(ConnectionError):
        connection.sendall(sent)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
        assert answer in (b"",) or answer.startswith(b"HTTP/1.1 403")


@pytest.mark.timeout(120)
def test_many_unread_pages_do_not_block_the_others(server: str) -> None:
    with ExitStack() as stack:
        for _ in range(400):
            connection = stack.enter_context(connected(server))
            with suppress(ConnectionError):
                connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert ask(server, "/status.json")[0] == 200


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return shutil.copytree(Path(__file__).parents[1] / "support" / "run-folder", tmp_path / "kept")


def test_a_live_page_follows_no_link_out(kept: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_text('{"versions": {"secret": "word"}}')
    with served(kept) as address:
        assert ask(address, "/data.json")[0] == 200
        (kept / "about.json").unlink()
        (kept / "about.json").symlink_to(tmp_path / "secret.json")
        for target in ("/", "/data.json", "/status.json", "/studies/0/trials/0"):
            status, answer = ask(address, target)
            assert (status, "about.json points outside of it" in answer, "word" in answer) == (400, True, False)


def test_a_folder_that_is_damaged_meanwhile_is_one_sentence_each_time(kept: Path) -> None:
    with served(kept) as address:
        record = kept / "candidates" / "000" / "candidate.json"
        record.write_text(json.dumps(json.loads(record.read_text()) | {"candidate": 5}))
        (kept / "summary.json").write_text('{"chosen": [1, 2], "dense": "\\ud800"}')
        assert ask(address, "/studies/0/trials/0")[0] == 400
        (kept / "trials.csv").write_bytes(b"\xff\xfe")
        for target in ("/", "/data.json", "/status.json"):
            status, answer = ask(address, target)
            assert (status, "trials.csv" in json.loads(answer)["error"]) == (400, True)


def test_half_a_character_is_served_as_json_spells_it(kept: Path) -> None:
    about = json.loads((kept / "about.json").read_text())
    about["machine"] = {"proces\ud800sor": "a\udfffb"}
    (kept / "about.json").write_text(json.dumps(about))
    with served(kept) as address:
        assert ask(address, "/")[0] == 200
        facts = dict(json.loads(ask(address, "/data.json")[1])["studies"][0]["setup"]["overview"])
        assert facts["Proces\ud800sor"] == "a\udfffb"


def test_a_candidate_is_read_again_though_the_clock_stands_still(kept: Path) -> None:
    run = RunFolder(kept)
    record = kept / "candidates" / "000" / "candidate.json"
    then = record.stat().st_mtime_ns
    first = read_candidate(run, 0)
    for file, seen in (("candidate.json", "records"), ("history.csv", "history"), ("distribution.json", "snapshots")):
        path = record.with_name(file)
        text = path.read_text()
        write_text_atomic(path, text.replace("0.", "0.1", 1) if file != "distribution.json" else "[]")
        os.utime(path, ns=(then, then - 10**12))
        again = read_candidate(run, 0)
        assert getattr(again, seen) != getattr(first, seen)


def test_a_new_table_is_a_new_version_though_the_clock_moves_back(kept: Path) -> None:
    studies = LiveStudies([kept], lambda _run, _trial: {})
    path = kept / "trials.csv"
    os.utime(path, ns=(10**18, 10**18))
    versions = [studies.version()]
    for _ in range(2):
        write_text_atomic(path, path.read_text())
        os.utime(path, ns=(10**18, 10**18))
        versions.append(studies.version())
    assert versions[0] != versions[1] != versions[2]


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
        ("LOCALHOST:8000", "127.0.0.1", True),
        ("[::1]:8000", "127.0.0.1", True),
        ("[::1", "127.0.0.1", False),
        ("[::1]evil.example", "127.0.0.1", False),
        ("127.0.0.1:80:80", "127.0.0.1", False),
        ("127.0.0.1:x", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "0.0.0.0", False),
        ("evil.example@127.0.0.1", "0.0.0.0", False),
        ("127.1", "0.0.0.0", False),
    ],
)
def test_host_is_ours_where_no_name_could_be_forged(header: str, address: str, ours: bool) -> None:
    assert is_our_host(header, address) is ours


def test_another_address_is_served_with_a_warning(study: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sca_search",
        "dashboard",
        str(study),
        "--live",
        "--no-open",
        "--host",
        "0.0.0.0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert "http://0.0.0.0:" in said
        port = said.partition("http://0.0.0.0:")[2].partition("/")[0]
        assert ask(f"http://127.0.0.1:{port}/", "/")[0] == 200  # which waits until it is served
        process.send_signal(signal.SIGINT)
        _, complaints = process.communicate(timeout=30)
    finally:
        process.kill()
        process.communicate()
    assert "Warning: everybody who can reach 0.0.0.0 can read these studies." in complaints


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("nowhere",), "nowhere: is not a run folder, it has no study.toml"),
        (("nowhere", "--live", "--no-open"), "nowhere: is not a run folder, it has no study.toml"),
        (("nowhere", "--live", "--out", "x.html"), "--live must not be given with --out"),
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
    assert "letter.html: is not a page of sca-search; choose another --out" in done.stderr
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


def test_page_follows_a_running_study(tmp_path: Path) -> None:
    chromium()
    # More trials than any browser needs to open the page; it is stopped once the page was seen to follow.
    arguments = ("--target-sparsity", "0.5", "--name", "running", "--trials", "2000", "--refits", "0", "--epochs", "4")
    more = ("--dense-epochs", "4", "--threads", "1", "--out", str(tmp_path))
    study = subprocess.Popen([sys.executable, "-m", "sca_search", *arguments, *more], stdout=subprocess.DEVNULL)
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
            place = shown(page, "front").bounding_box()
            updates = page.evaluate("Number(document.body.dataset.updates ?? 0)")
            until(page, f"Number(document.body.dataset.updates ?? 0) >= {updates + 2}", 120)
            assert page.evaluate(SHOWN_PART) == zoomed
            # The browser keeps what is in view in its place, also where text above it grows.
            assert shown(page, "front").bounding_box() == pytest.approx(place, abs=2)
            assert page.locator("#trial-heading").inner_text() == "Trial 0"
            assert page.locator("#filter").input_value() == "complete"
            study.send_signal(signal.SIGINT)
            assert study.wait(timeout=240) == 130
            summary = json.loads((run / "summary.json").read_text())
            ended = summary["trials"] + summary["failed"]
            assert ended >= 2
            until(page, f"document.getElementById('status').textContent === 'Stopped: {ended} of 2,000 trials'", 180)
            until(page, f"document.querySelectorAll('#table tbody tr').length === {summary['trials']}")
    finally:
        study.kill()
        study.wait(timeout=60)


def test_trial_exported_from_the_page_verifies(study: Path, tmp_path: Path) -> None:
    chromium()
    with served(study) as address, opened(address) as page:
        page.locator("#trial-picker").select_option("1")
        page.get_by_role("button", name="Export now").click()
        until(page, "!document.getElementById('export').disabled", 200)
        said = page.locator("#export-said").inner_text()
    folder = study / "exports" / "trial-001"
    assert said.startswith(f"Verified: {folder}")
    assert sca_search("verify", str(folder), cwd=tmp_path).returncode == 0


@pytest.mark.nightly
def test_update_of_a_thousand_trials_takes_less_than_a_second_of_cpu_time(study: Path, tmp_path: Path) -> None:
    chromium()
    run = lengthened(study, tmp_path / "long", 1000)
    with serving(run) as (address, process), opened(address) as page:
        ask(address, "/data.json")
        table = (run / "trials.csv").read_text().splitlines()
        (run / "trials.csv").write_text("\n".join(table[:-1]) + "\n")
        server_before, page_before = process_seconds(process), cpu_seconds(page)
        until(page, "document.body.dataset.updates === '1'", 20)
        made, drawn_in = process_seconds(process) - server_before, cpu_seconds(page) - page_before
        page.locator("#trial-picker").select_option("3")  # an old one, of which the page brought only the row
        until(page, "!document.getElementById('trial-figures').hidden")
    assert made + drawn_in < 1.0, (made, drawn_in)
