"""Addresses of shared studies: what is taken, what is refused, and that no password is shown anywhere."""

import json
import shlex
from pathlib import Path

import pytest

from sca_search.config.load import resolve
from sca_search.config.storage_url import (
    STORAGE_VARIABLE,
    Shared,
    artifact_address,
    require_addresses_in_place,
    shared_by,
    storage_address,
)
from sca_search.errors import SpecError
from sca_search.runs.folder import RunFolder, joined_run
from sca_search.runs.provenance import note_command

SECRET = "hunter-2"
UNCLEAR = (
    "--storage must have every space, brace, slash, question mark and @ of its user and password written as %20, %7B, "
    "%7D, %2F, %3F and %40"
)


@pytest.mark.parametrize(
    ("given_one", "taken"),
    [
        ("postgresql://me@db/studies", "postgresql+psycopg://me@db/studies"),
        ("postgres://me:word@db:5432/studies", "postgresql+psycopg://me:word@db:5432/studies"),
        ("postgresql+psycopg://db/studies?sslmode=require", "postgresql+psycopg://db/studies?sslmode=require"),
        ("postgresql://me:@/studies?host=/run/postgresql", "postgresql+psycopg://me:@/studies?host=/run/postgresql"),
    ],
)
def test_addresses_of_postgresql_are_taken(given_one: str, taken: str) -> None:
    assert storage_address(given_one) == taken


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "db",
        "sqlite:///study.db",
        "mysql://me:hunter-2@db/studies",
        "postgresql://me:hunter-2@db",
        "postgresql://me:hunter-2@db/",
        "postgresql://me:hunter-2@db:port/studies",
        "postgresql://me:hunter-2@[db/studies",
        "postgresql://me:hunter-2@db/studies\n",
        "https://me:hunter-2@db/studies",
        "me:hunter-2@db/studies",
        "postgresql:me:hunter-2@db/studies",
        "postgresql://me:hunter-2",
        "postgresql://me:hunter-2/studies",
        "postgresql:/me:hunter-2@db/studies",
        "mysql://db/studies?password=hunter-2",
        "mysql://db/studies?password=a hunter-2",
        "mysql://db/studies?password=a@hunter-2",
        "mysql://db/studies?pass%77ord=hunter-2",
        "host=db password='a hunter-2'",
        "host=db password='hunter-2://db/x'",
    ],
)
def test_other_addresses_are_refused_without_their_passwords(bad: str) -> None:
    with pytest.raises(SpecError) as caught:
        storage_address(bad)
    assert str(caught.value).startswith("--storage must be the address of a PostgreSQL database, postgresql://")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        "postgresql://me@server:hunter-2@db/x",
        "postgresql://me:hunter-2 hunter-2@db/x",
        "postgresql://me:hunter-2@hunter-2@db/x",
        "postgresql://me:hunter-2@hunter-2:hunter-2@db/x",
        "postgresql://me:{hunter-2}@db/x",
    ],
)
def test_addresses_that_could_be_read_otherwise_are_refused_without_their_passwords(bad: str) -> None:
    with pytest.raises(SpecError) as caught:
        storage_address(bad)
    assert str(caught.value) == f"{UNCLEAR}, got 'postgresql://***@db/x'"


@pytest.mark.parametrize(
    ("bad", "shown"),
    [
        ("postgresql://db/x?password=hunter-2 hunter-2", "postgresql://db/x***"),
        ("postgresql://db/x?password={hunter-2}", "postgresql://db/x***"),
        # Which @ and which slash end the password?
        ("postgresql://db/x?password=a@hunter-2", "***"),
        ("postgresql://db:1/x?password=a@hunter-2", "***"),
        ("postgresql://me:1/hunter-2@db/x", "***"),
        ("postgresql://me/x:hunter-2@db/x", "***"),
    ],
)
def test_of_an_address_that_is_refused_only_what_is_clear_is_shown(bad: str, shown: str) -> None:
    with pytest.raises(SpecError) as caught:
        storage_address(bad)
    assert str(caught.value) == f"{UNCLEAR}, got {shown!r}"


def test_a_shared_study_does_not_print_its_address() -> None:
    run = RunFolder(Path("runs/x"), Shared(f"postgresql://me:{SECRET}@db/x", f"s3://{SECRET}/x"))
    assert SECRET not in repr(run)


def test_the_command_is_noted_without_its_password(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    note_command(run, ["--storage", f"postgresql://me:{SECRET}@db/x", "--name", "a"], threads=1)
    told = run.about_file.read_text()
    assert "postgresql://me:***@db/x" in told
    assert SECRET not in told


@pytest.mark.parametrize("option", ["password", "pass%77ord", "sslpassword"])
@pytest.mark.parametrize("password", ["hun'ter-2", 'hun"ter-2', "hun&ter-2", "hun'\"&'ter-2", "hun%20ter-2"])
def test_what_is_written_of_a_shared_study_holds_no_part_of_a_password(
    option: str, password: str, tmp_path: Path
) -> None:
    address = f"postgresql://db/x?{option}={password}&sslmode=require"
    run = joined_run(resolve(None, {"out": tmp_path, "name": "a"}), Shared(storage_address(address)))
    note_command(run, ["--storage", address, f"--storage={address}", "--name", "a"], threads=1)
    shown = f"postgresql://db/x?{option}=***&sslmode=require"
    (noted,) = json.loads(run.about_file.read_text())["commands"]
    assert shlex.split(noted["command"]) == ["sca-search", "--storage", shown, f"--storage={shown}", "--name", "a"]
    assert json.loads(run.shared_file.read_text()) == {"storage": shown.replace("postgresql", "postgresql+psycopg")}


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["postgresql://me:hunter-2@db/x"], "the command line"),
        (["show", "postgresql://me:hunter-2@db/x"], "the command line"),
        (["worker", "x", "postgresql://me:hunter-2@db/x"], "the command line"),
        (["--storage", "postgresql://me@db/x", "postgresql://me:hunter-2@db/x"], "the command line"),
        (["--out", "postgresql://me:hunter-2@db/x"], "--out"),
        (["--out=postgresql://me:hunter-2@db/x"], "--out"),
        (["--storge", "postgresql://me:hunter-2@db/x"], "--storge"),
        (["--storage", "--name", "postgresql://me:hunter-2 hunter-2@db/x"], "--name"),
    ],
)
def test_an_address_with_a_password_in_the_wrong_place_is_refused(arguments: list[str], where: str) -> None:
    with pytest.raises(SpecError) as caught:
        require_addresses_in_place(arguments)
    rule = "an address with a password is taken by --storage alone"
    assert str(caught.value) == f"{where}: {rule}, got 'postgresql://***@db/x'"


@pytest.mark.parametrize("bad", ["--postgresql://me:hunter-2=a@db/x", "postgresql://db/x?pass%77ord=a@hunter-2"])
def test_of_an_address_in_the_wrong_place_only_what_is_clear_is_shown(bad: str) -> None:
    with pytest.raises(SpecError, match=r"^the command line: an address with a password .*") as caught:
        require_addresses_in_place([bad])
    assert SECRET not in str(caught.value)


def test_addresses_in_their_places_are_taken() -> None:
    require_addresses_in_place(["--storage", "postgresql://me:hunter-2@db/x", "--out", "C:/runs", "--name", "a@b:c"])
    require_addresses_in_place(["--storage=postgresql://db/x?password=hunter-2"])
    require_addresses_in_place(["--artifacts", "s3://me:hunter-2@bucket/x", "--model", "net.py:build"])


def test_flags_stand_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_by(None, None) is None
    monkeypatch.setenv(STORAGE_VARIABLE, "postgresql://me@there/x")
    named = shared_by("postgresql://me@here/x", "file:///files")
    assert named is not None
    assert (named.storage, named.artifacts) == ("postgresql+psycopg://me@here/x", "file:///files")
    taken = shared_by(None, None)
    assert taken is not None
    assert taken.storage == "postgresql+psycopg://me@there/x"


def test_artifacts_alone_are_refused() -> None:
    with pytest.raises(SpecError, match="--artifacts goes with --storage, got 'file:///x' alone"):
        shared_by(None, "file:///x")


def test_artifacts_are_a_folder_or_a_bucket() -> None:
    assert artifact_address("file:///mnt/a%20b").folder == Path("/mnt/a b")
    bucket = artifact_address("s3://my-bucket/some/where/")
    assert (bucket.bucket, bucket.prefix) == ("my-bucket", "some/where")


@pytest.mark.parametrize(
    "bad", ["", "/mnt", "file://host/x", "file:///", "s3://", "s3://A_b/x", "gs://b/x", "s3://[/x"]
)
def test_other_places_for_artifacts_are_refused(bad: str) -> None:
    with pytest.raises(SpecError, match="--artifacts must be file:///FOLDER or s3://BUCKET/PREFIX, got"):
        artifact_address(bad)


@pytest.mark.parametrize("bad", ["s3://bucket/x?aws_secret_access_key=hunter-2", "file:///mnt/x#hunter-2"])
def test_artifacts_with_a_query_are_refused_and_not_shown(bad: str) -> None:
    with pytest.raises(
        SpecError, match=r"--artifacts must have no \? and no # in it, write %3F and %23, got"
    ) as refused:
        artifact_address(bad)
    assert "hunter-2" not in str(refused.value)
