"""No part of a password is shown, whatever it is made of, and the rest of a text is left as it is."""

import contextlib
import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text

from sca_search.cli.exit_codes import exit_code_of
from sca_search.errors import SpecError
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import logged, logger
from sca_search.system.console import Screen, speak, warn
from sca_search.system.secrets import address_without_password, holds_password, without_passwords

SECRET = "hunter-2"
ADDRESSES = [
    "postgresql://me:hunter-2@db/x",
    "postgresql:/me:hunter-2@db/x",
    "postgresql://db/x?password=hunter-2",
    "postgresql://db/x?pass%77ord=hunter-2",
    "postgresql://db/x?password=hun'hunter-2",
]


@pytest.fixture(autouse=True)
def usual_manner():
    yield
    speak()


@pytest.mark.parametrize("hide", [address_without_password, without_passwords])
@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter-2@db/x", "postgresql://me:***@db/x"),
        ("postgresql:/me:hunter-2@db/x", "postgresql:/me:***@db/x"),
        ("postgresql://me%3Ahunter-2@db/x", "postgresql://me%3A***@db/x"),
        ("postgresql://:hunter-2@db/x", "postgresql://:***@db/x"),
        ("postgresql://me:hun@ter-2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:hun/ter?2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me@server:hunter-2@db/x", "postgresql://me@server:***@db/x"),
        ("postgresql://db/x?user=me&password=hunter-2&a=b", "postgresql://db/x?user=me&password=***&a=b"),
        ("postgresql://db/x?password=hun'ter-2", "postgresql://db/x?password=***"),
        ('postgresql://db/x?password=hun"ter-2&a=b', "postgresql://db/x?password=***&a=b"),
        ("postgresql://db/x?password=hun&ter-2&a=b", "postgresql://db/x?password=***&a=b"),
        ("postgresql://db/x?password=hun=ter-2", "postgresql://db/x?password=***"),
        ("postgresql://db/x?PassWord=hunter-2", "postgresql://db/x?PassWord=***"),
        ("postgresql://db/x?pass%77ord=hunter-2", "postgresql://db/x?pass%77ord=***"),
        ("postgresql://db/x?p%2541ssword=hunter-2", "postgresql://db/x?p%2541ssword=***"),
        ("postgresql://db/x?password%3Dhunter-2", "postgresql://db/x?password%3D***"),
        ("postgresql://db/x?password%253Dhunter-2", "postgresql://db/x?password%253D***"),
        ("postgresql://db/x?pass=hunter-2", "postgresql://db/x?pass=***"),
        ("postgresql://db/x?a=b&pwd=hunter-2", "postgresql://db/x?a=b&pwd=***"),
        ("s3://bucket/x?aws_secret_access_key=hunter-2", "s3://bucket/x?aws_secret_access_key=***"),
        ("postgresql://db/x?sslpassword=hunter-2", "postgresql://db/x?sslpassword=***"),
        ("postgresql://db/x?oauth_client_secret=hunter-2", "postgresql://db/x?oauth_client_secret=***"),
        ("postgresql://db/x?scram_client_key=hunter-2", "postgresql://db/x?scram_client_key=***"),
        # One that looks like the other: both ends may be the right one, and what is between them is hidden.
        ("postgresql://me:hun?password=ter@db/x", "postgresql://me:***"),
        ("postgresql://me:hunter@db/x?password=hun@ter-2", "postgresql://me:***"),
        # Nothing to hide.
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("postgresql://db/x?passfile=/home/me/.pgpass", "postgresql://db/x?passfile=/home/me/.pgpass"),
        ("each pass=2 s", "each pass=2 s"),
        ("ratio 1:2 me@db", "ratio 1:2 me@db"),
        ("C:/runs/a", "C:/runs/a"),
        ("http://127.0.0.1:8765/", "http://127.0.0.1:8765/"),
    ],
)
def test_passwords_are_hidden_and_nothing_else(hide, text: str, shown: str) -> None:
    assert hide(text) == shown
    assert hide(shown) == shown


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        ("--storage=postgresql://me:hunter-2@db/x --name a", "--storage=postgresql://me:***@db/x --name a"),
        ("x?password=hunter-2: it cannot be used", "x?password=***: it cannot be used"),
        ("got 'x?password=hunter-2', a text", "got 'x?password=***', a text"),
        ("('x?password=hunter-2').", "('x?password=***')."),
        ("password=hun'ter-2\nsecond line", "password=***\nsecond line"),
        ("user=me password = hunter-2 host=db", "user=me password = *** host=db"),
        ("from postgresql://me@db/x to me:you@there", "from postgresql://me@db/x to me:you@there"),
    ],
)
def test_a_sentence_around_an_address_is_left_as_it_is(sentence: str, shown: str) -> None:
    assert without_passwords(sentence) == shown
    assert without_passwords(shown) == shown


@given(st.text())
def test_of_no_address_any_password_survives(password: str) -> None:
    assert address_without_password(f"postgresql://user:{password}@host/name") == "postgresql://user:***@host/name"


# An & and a word with = behind it is another option.
@given(st.text().filter(lambda password: "&" not in password and ":/" not in password))
def test_of_no_option_any_password_survives(password: str) -> None:
    hidden = address_without_password(f"postgresql://host/name?password={password}&sslmode=require")
    assert hidden == "postgresql://host/name?password=***&sslmode=require"


@given(st.text(st.characters(exclude_categories=["Z", "C"]), min_size=1))
def test_in_no_sentence_any_password_without_spaces_survives(password: str) -> None:
    told = without_passwords(f"got 'postgresql://user:{password}@host/name', which is none")
    assert told == "got 'postgresql://user:***@host/name', which is none"


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_with_a_password_is_known(address: str) -> None:
    assert holds_password(address)
    assert not holds_password(address_without_password(address))


def test_names_with_a_colon_are_no_addresses() -> None:
    assert not any(map(holds_password, ("net.py:build", "a:b@c", "password=a", "torchvision:resnet18", "file:///x/y")))


# Every way out


@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("as_json", [False, True])
def test_no_error_shows_a_password(address: str, as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    def refused() -> None:
        raise SpecError(f"{address}: there is no such file") from ValueError(f"got {address}")

    def failed() -> None:
        raise ZeroDivisionError(f"got {address} here")

    speak(json=as_json, verbose=True)
    assert (exit_code_of(refused), exit_code_of(failed)) == (2, 70)
    told = capsys.readouterr()
    assert told.err.count("***") >= 4
    assert told.out.count("***") == 2 * as_json
    assert SECRET not in told.out + told.err


def test_a_password_is_hidden_before_a_sentence_is_shortened(capsys: pytest.CaptureFixture[str]) -> None:
    """1200 characters of a long sentence are shown, then its last 300: here each would hold a part of the password."""
    password = SECRET.ljust(1000, "a") + SECRET

    def refused() -> None:
        raise SpecError(f"{'b' * 1000} postgresql://me:{password}@db/x {'c' * 600}")

    exit_code_of(refused)
    told = capsys.readouterr().err
    assert " … " in told
    assert "postgresql://me:***@db/x" in told
    assert SECRET not in told


@pytest.mark.parametrize("address", ADDRESSES)
def test_no_warning_table_or_log_shows_a_password(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speak(verbose=True)
    warn(f"{address} is slow")
    table = Table()
    table.add_column(overflow="fold")
    table.add_row(address)
    for shown in (address, Text(address), table):  # narrower than the address, which is hidden before it is folded
        Screen(width=20).print(shown)
    with contextlib.suppress(ValueError), logged(RunFolder(tmp_path)):
        logger.info("trying %s again", address)
        raise ValueError(f"got {address}")
    captured = capsys.readouterr()
    log = (tmp_path / "log.txt").read_text()
    assert log.count("***") == 3
    told = captured.out + captured.err + log
    assert "hunter" not in told.replace("\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("{}",),
        ("show", "{}"),
        ("export", "{}"),
        ("rerun", "{}"),
        ("reproduce", "{}"),
        ("worker", "x", "{}"),
        ("--name", "{}"),
        ("--model", "{}"),
        ("--out", "{}"),
        ("--data-dir", "{}"),
        ("--trials", "{}"),
        ("--storage={}", "--out={}"),
        # Here --name takes the flag for its value, and the address is the study's file.
        ("--name", "--storage", "{}"),
    ],
)
@pytest.mark.parametrize("address", ADDRESSES)
def test_a_command_with_an_address_in_the_wrong_place_shows_no_password_and_writes_nothing(
    run, address: str, arguments: tuple[str, ...], tmp_path: Path
) -> None:
    done = run("--json", "-v", *(each.format(address) for each in arguments))
    assert done.returncode == 2
    assert "***" in done.stderr
    assert "***" in json.loads(done.stdout)["error"]
    assert SECRET not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["out", "name", "data.name", "model.skip", "search.prior", "unknown"])
def test_a_study_file_with_such_an_address_is_refused(run, place: str, tmp_path: Path) -> None:
    table, _, key = place.rpartition(".")
    value = f'["fc", "postgresql://me:{"a" * 300}{SECRET}@db/x"]' if key == "skip" else f'"{ADDRESSES[0]}"'
    (tmp_path / "a.toml").write_text(f"[{table}]\n{key} = {value}\n" if table else f"{key} = {value}\n")
    done = run("a.toml", "-v", "--trials", "0")
    assert done.returncode == 2
    rule = "must not be an address with a password, got 'postgresql://me:***@db/x'"
    assert done.stderr == f"a.toml: {place} {rule}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.toml"]


def test_a_study_file_with_such_an_address_as_a_key_is_refused(run, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(f'"{ADDRESSES[0]}" = 1\n')
    done = run("a.toml")
    assert done.stderr == "a.toml: a key must not be an address with a password, got 'postgresql://me:***@db/x'\n"


def test_a_log_line_without_an_address_is_as_it_was(tmp_path: Path) -> None:
    with logged(RunFolder(tmp_path)):
        logger.log(logging.INFO, "a:b@c 1:2")
    assert (tmp_path / "log.txt").read_text().endswith(" INFO a:b@c 1:2\n")


@pytest.mark.parametrize("piece", [":/a:", ":/", "a@:/b: ", "password=", "&", "%25", "password=&a", "password='a"])
@pytest.mark.parametrize("hide", [without_passwords, address_without_password])
def test_a_long_text_that_could_be_many_addresses_is_looked_through_soon(
    hide: Callable[[str], str], piece: str
) -> None:
    """A second, or by way of all pairs of places an hour: the test would be ended."""
    assert len(hide(piece * (1_000_000 // len(piece)))) > 0


def test_a_user_with_a_space_hides_no_less() -> None:
    assert address_without_password("postgresql://my user:hunter-2@h/x") == "postgresql://my user:***@h/x"
