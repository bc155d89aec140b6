"""Addresses of shared studies: what is taken, what is refused, and that no password is shown anywhere."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sca_search.errors import SpecError
from sca_search.provenance import note_command
from sca_search.run_folder import RunFolder
from sca_search.shared_study import (
    STORAGE_VARIABLE,
    Shared,
    artifact_address,
    shared_by,
    storage_address,
    without_passwords,
)

SECRET = "hunter-2"


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
    rule = "--storage must have every space, brace and @ of its user and password written as %20, %7B, %7D and %40"
    assert str(caught.value) == f"{rule}, got 'postgresql://***@db/x'"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:hunter-2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me:hun@ter-2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://me@server:hunter-2@db/x", "postgresql://me@server:***@db/x"),
        ("--storage=postgresql://me:hunter-2@db/x --name a", "--storage=postgresql://me:***@db/x --name a"),
        ("postgresql://db/x?user=me&password=hunter-2&a=b", "postgresql://db/x?user=me&password=***&a=b"),
        ("postgresql://db/x?sslpassword=hunter-2", "postgresql://db/x?sslpassword=***"),
        ("postgresql://me@db/x", "postgresql://me@db/x"),
        ("ratio 1:2 me@db", "ratio 1:2 me@db"),
    ],
)
def test_passwords_are_hidden_and_nothing_else(text: str, shown: str) -> None:
    assert without_passwords(text) == shown


@given(st.text(st.characters(exclude_categories=["Z", "C"], exclude_characters="/?#"), min_size=3))
def test_no_password_survives(password: str) -> None:
    hidden = without_passwords(f"postgresql://user:{password}@host/database")
    assert hidden == "postgresql://user:***@host/database"


def test_a_shared_study_does_not_print_its_address() -> None:
    run = RunFolder(Path("runs/x"), Shared(f"postgresql://me:{SECRET}@db/x", f"s3://{SECRET}/x"))
    assert SECRET not in repr(run)


def test_the_command_is_noted_without_its_password(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    note_command(run, ["--storage", f"postgresql://me:{SECRET}@db/x", "--name", "a"], threads=1)
    told = run.about_file.read_text()
    assert "postgresql://me:***@db/x" in told
    assert SECRET not in told


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
