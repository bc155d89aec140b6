"""Passwords in URLs are hidden wherever text is printed or logged; other text is unchanged."""

import contextlib
import json
import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from sca_search.cli.options import exit_code_of
from sca_search.errors import SpecError
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import logged, logger
from sca_search.system.console import SafeConsole, configure_output, holds_password, scrub, warn

SECRET = "hunter-2"
ADDRESSES = [
    "postgresql://me:hunter-2@db/x",
    "postgresql:/me:hunter-2@db/x",
    "postgresql://db/x?password=hunter-2",
]


@pytest.fixture(autouse=True)
def usual_manner():
    yield
    configure_output()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter-2@db/x", "postgresql://me:***@db/x"),
        ("postgresql:/me:hunter-2@db/x", "postgresql:/me:***@db/x"),
        ("postgresql://me%3Ahunter-2@db/x", "postgresql://me%3A***@db/x"),
        ("postgresql://me:hun@ter-2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:hun/ter?2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://db/x?user=me&password=hunter-2&a=b", "postgresql://db/x?user=me&password=***&a=b"),
        ("postgresql://db/x?password=hun&ter-2&a=b", "postgresql://db/x?password=***&a=b"),
        ("postgresql://db/x?PassWord=hunter-2", "postgresql://db/x?PassWord=***"),
        ("s3://bucket/x?aws_secret_access_key=hunter-2", "s3://bucket/x?aws_secret_access_key=***"),
        ("postgresql://db/x?oauth_client_secret=hunter-2", "postgresql://db/x?oauth_client_secret=***"),
        ("--storage=postgresql://me:hunter-2@db/x --name a", "--storage=postgresql://me:***@db/x --name a"),
        ("x?password=hunter-2: it cannot be used", "x?password=***: it cannot be used"),
        ("got 'x?password=hunter-2', a text", "got 'x?password=***', a text"),
        ("password=hun'ter-2\nsecond line", "password=***\nsecond line"),
        ("user=me password = hunter-2 host=db", "user=me password = *** host=db"),
        # Nothing to hide.
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("postgresql://db/x?passfile=/home/me/.pgpass", "postgresql://db/x?passfile=/home/me/.pgpass"),
        ("ratio 1:2 me@db", "ratio 1:2 me@db"),
        ("C:/runs/a", "C:/runs/a"),
        ("http://127.0.0.1:8765/", "http://127.0.0.1:8765/"),
        ("from postgresql://me@db/x to me:you@there", "from postgresql://me@db/x to me:you@there"),
    ],
)
def test_passwords_are_hidden_and_nothing_else(text: str, shown: str) -> None:
    assert scrub(text) == shown
    assert scrub(shown) == shown


@given(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1))
def test_no_password_without_spaces_remains_in_a_sentence(password: str) -> None:
    assert scrub(f"got 'postgresql://user:{password}@host/name'") == "got 'postgresql://user:***@host/name'"


def test_a_url_with_a_password_is_recognized() -> None:
    for url in ADDRESSES:
        assert holds_password(url)
        assert not holds_password(scrub(url))
    assert not any(map(holds_password, ("net.py:build", "a:b@c", "password=a", "torchvision:resnet18", "file:///x/y")))


# Every output


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("as_json", [False, True])
def test_no_error_shows_a_password(address: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def rejected() -> None:
        raise SpecError(f"{address}: there is no such file") from ValueError(f"got {address}")

    def failed() -> None:
        raise ZeroDivisionError(f"got {address} here")

    configure_output(json=as_json, verbose=True)
    assert (exit_code_of(rejected), exit_code_of(failed)) == (2, 70)
    printed = capsys.readouterr()
    assert printed.err.count("***") >= 4
    assert printed.out.count("***") == 2 * as_json
    assert SECRET not in printed.out + printed.err


def test_a_password_is_hidden_before_a_message_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    """1200 characters of a long sentence are shown, then its last 300: here each would hold a part of the password."""
    password = SECRET.ljust(1000, "a") + SECRET

    def rejected() -> None:
        raise SpecError(f"{'b' * 1000} postgresql://me:{password}@db/x {'c' * 600}")

    exit_code_of(rejected)
    printed = capsys.readouterr().err
    assert " … " in printed
    assert "postgresql://me:***@db/x" in printed
    assert SECRET not in printed


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_warning_table_or_log_shows_a_password(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_output(verbose=True)
    warn(f"{address} is slow")
    table = Table()
    table.add_column(overflow="fold")
    table.add_row(address)
    for shown in (address, Text(address), table):  # narrower than the address, which is hidden before it is folded
        SafeConsole(width=20).print(shown)
    with contextlib.suppress(ValueError), logged(RunFolder(tmp_path)):
        logger.info("trying %s again", address)
        raise ValueError(f"got {address}")
    captured = capsys.readouterr()
    log = (tmp_path / "log.txt").read_text()
    assert log.count("***") == 3
    printed = captured.out + captured.err + log
    assert "hunter" not in printed.replace("\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("{}",),
        ("show", "{}"),
        ("reproduce", "{}"),
        ("worker", "x", "{}"),
        ("--name", "{}"),
        ("--out", "{}"),
        ("--trials", "{}"),
        ("--storage={}", "--out={}"),
        # Here --name takes the flag for its value, and the address is the study's file.
        ("--name", "--storage", "{}"),
    ],
)
def test_a_command_with_a_url_in_the_wrong_place_shows_no_password_and_writes_nothing(
    run, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    for url in ADDRESSES:
        done = run("--json", "-v", *(each.format(url) for each in arguments))
        assert done.returncode == 2
        assert "***" in done.stderr
        assert "***" in json.loads(done.stdout)["error"]
        assert SECRET not in done.stdout + done.stderr
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["out", "name", "data.name", "model.skip", "search.latency_table", "unknown"])
def test_a_study_file_with_such_a_url_is_rejected(run, place: str, tmp_path: Path) -> None:
    table, _, key = place.rpartition(".")
    value = f'["fc", "postgresql://me:{"a" * 300}{SECRET}@db/x"]' if key == "skip" else f'"{ADDRESSES[0]}"'
    (tmp_path / "a.toml").write_text(f"[{table}]\n{key} = {value}\n" if table else f"{key} = {value}\n")
    done = run("a.toml", "-v", "--trials", "0")
    assert done.returncode == 2
    rule = "must not be an address with a password, got 'postgresql://me:***@db/x'"
    assert done.stderr == f"a.toml: {place} {rule}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_a_study_file_with_such_a_url_as_a_key_is_rejected(run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f'"{ADDRESSES[0]}" = 1\n')
    done = run("a.toml")
    assert done.stderr == "a.toml: a key must not be an address with a password, got 'postgresql://me:***@db/x'\n"


def test_a_log_line_without_a_url_is_unchanged(tmp_path: Path) -> None:
    with logged(RunFolder(tmp_path)):
        logger.log(logging.INFO, "a:b@c 1:2")
    assert (tmp_path / "log.txt").read_text().endswith(" INFO a:b@c 1:2\n")


@pytest.mark.parametrize("piece", [":/a:", ":/", "a@:/b: ", "password=", "&", "password=&a", "password='a"])
def test_time_is_linear_in_the_length_of_a_text(piece: str) -> None:
    """Less than a second; quadratic, an hour: the test would time out."""
    assert len(scrub(piece * (1_000_000 // len(piece)))) > 0
