"""URLs of shared studies: which are accepted and rejected, and that no password is shown or written."""

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
    shown_address,
    storage_address,
)
from sca_search.errors import SpecError
from sca_search.runs.folder import RunFolder, joined_run
from sca_search.runs.log import note_command

SECRET = "hunter-2"


@pytest.mark.parametrize(
    ("given_one", "used"),
    [
        ("postgresql://me@db/studies", "postgresql+psycopg://me@db/studies"),
        ("postgres://me:word@db:5432/studies", "postgresql+psycopg://me:word@db:5432/studies"),
        ("postgresql+psycopg://db/studies?sslmode=require", "postgresql+psycopg://db/studies?sslmode=require"),
        ("postgresql://me:@/studies?host=/run/pg", "postgresql+psycopg://me:@/studies?host=%2Frun%2Fpg"),
        # Optuna would fill in braces.
        ("postgresql://me:hun/ter{2}@db/x", "postgresql+psycopg://me:hun%2Fter%7B2%7D@db/x"),
    ],
)
def test_postgresql_urls_are_accepted(given_one: str, used: str) -> None:
    assert storage_address(given_one) == used


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
        "postgresql://me:hunter-2@db/studies\n",
        "me:hunter-2@db/studies",
        "postgresql://me:hunter-2",
        "postgresql://me:hunter-2/studies",
        "postgresql:/me:hunter-2@db/studies",
        "mysql://db/studies?password=hunter-2",
        "postgresql://db:1/x?password=a@hunter-2",
        "host=db password='hunter-2://db/x'",
    ],
)
def test_other_urls_are_rejected_without_their_passwords(bad: str) -> None:
    with pytest.raises(SpecError) as caught:
        storage_address(bad)
    assert str(caught.value).startswith("--storage must be the URL of a PostgreSQL database, postgresql://")
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "bad",
    [
        "postgresql://me:hunter-2@hunter-2@db/x",
        "postgresql://me/x:hunter-2@db/x",
        "postgresql://me:hunter-2@db/{x}",
    ],
)
def test_ambiguous_urls_are_rejected_without_their_passwords(bad: str) -> None:
    with pytest.raises(SpecError, match=r"--storage must have every @ and / of its user name and password") as caught:
        storage_address(bad)
    assert str(caught.value).endswith("got 'postgresql://***'")


@pytest.mark.parametrize(
    ("given_one", "shown"),
    [
        ("postgresql://me:hunter-2@db/x", "postgresql://me:***@db/x"),
        ("postgresql://db/x?password=hunter-2&sslmode=require", "postgresql://db/x?sslmode=require"),
        ("postgresql://db/x?pass%77ord=hunter-2", "postgresql://db/x"),
        ("postgresql://db/x?passfile=pgpass", "postgresql://db/x?passfile=pgpass"),
    ],
)
def test_a_url_is_shown_without_secrets_and_driver(given_one: str, shown: str) -> None:
    assert shown_address(storage_address(given_one)) == shown


def test_repr_of_a_shared_study_has_no_url() -> None:
    run = RunFolder(Path("runs/x"), Shared(f"postgresql://me:{SECRET}@db/x", f"s3://{SECRET}/x"))
    assert SECRET not in repr(run)


@pytest.mark.parametrize("password", ["hun'ter-2", 'hun"ter-2', "hun&ter-2", "hun%20ter-2"])
def test_files_of_a_shared_study_contain_no_part_of_a_password(password: str, tmp_path: Path) -> None:
    url = f"postgresql://me:{password}@db/x?password={password}&sslmode=require"
    run = joined_run(resolve(None, {"out": tmp_path, "name": "a"}), Shared(storage_address(url)))
    note_command(run, ["--storage", url, f"--storage={url}", "--name", "a"], threads=1)
    shown = "postgresql://me:***@db/x?password=***&sslmode=require"
    (noted,) = json.loads(run.about_file.read_text())["commands"]
    assert shlex.split(noted["command"]) == ["sca-search", "--storage", shown, f"--storage={shown}", "--name", "a"]
    assert json.loads(run.shared_file.read_text()) == {"storage": "postgresql://me:***@db/x?sslmode=require"}


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["postgresql://me:hunter-2@db/x"], "the command line"),
        (["worker", "x", "postgresql://me:hunter-2@db/x"], "the command line"),
        (["--storage", "postgresql://me@db/x", "postgresql://me:hunter-2@db/x"], "the command line"),
        (["--out", "postgresql://me:hunter-2@db/x"], "--out"),
        (["--out=postgresql://me:hunter-2@db/x"], "--out"),
        (["--storge", "postgresql://me:hunter-2@db/x"], "--storge"),
    ],
)
def test_a_url_with_a_password_in_the_wrong_place_is_rejected(arguments: list[str], where: str) -> None:
    with pytest.raises(SpecError) as caught:
        require_addresses_in_place(arguments)
    assert str(caught.value) == f"{where}: only --storage may be a URL with a password, got 'postgresql://***'"


def test_urls_in_their_places_are_accepted() -> None:
    require_addresses_in_place(["--storage", "postgresql://me:hunter-2@db/x", "--out", "C:/runs", "--name", "a@b:c"])
    require_addresses_in_place(["--storage=postgresql://db/x?password=hunter-2"])
    require_addresses_in_place(["--artifacts", "s3://me:hunter-2@bucket/x", "--model", "net.py:build"])


def test_flags_override_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shared_by(None, None) is None
    monkeypatch.setenv(STORAGE_VARIABLE, "postgresql://me@there/x")
    named = shared_by("postgresql://me@here/x", "file:///files")
    assert named is not None
    assert (named.storage, named.artifacts) == ("postgresql+psycopg://me@here/x", "file:///files")
    found = shared_by(None, None)
    assert found is not None
    assert found.storage == "postgresql+psycopg://me@there/x"


def test_artifacts_and_ray_without_a_storage_are_rejected() -> None:
    with pytest.raises(SpecError, match="--ray requires --storage, got only 'local'"):
        shared_by(None, None, "local")
    with pytest.raises(SpecError, match="--artifacts requires --storage, got only 'file:///x'"):
        shared_by(None, "file:///x")


def test_artifacts_are_a_folder_or_a_bucket() -> None:
    assert artifact_address("file:///mnt/a%20b") == Path("/mnt/a b")
    assert artifact_address("s3://my-bucket/some/where/") == ("my-bucket", "some/where")


@pytest.mark.parametrize(
    "bad", ["", "/mnt", "file://host/x", "file:///", "s3://", "s3://A_b/x", "gs://b/x", "s3://[/x"]
)
def test_other_places_for_artifacts_are_rejected(bad: str) -> None:
    with pytest.raises(SpecError, match="--artifacts must be file:///FOLDER or s3://BUCKET/PREFIX, got"):
        artifact_address(bad)


@pytest.mark.parametrize("bad", ["s3://bucket/x?aws_secret_access_key=hunter-2", "file:///mnt/x#hunter-2"])
def test_artifacts_with_a_query_are_rejected_and_not_shown(bad: str) -> None:
    with pytest.raises(SpecError, match=r"--artifacts must have no \? and no #, write %3F and %23, got") as caught:
        artifact_address(bad)
    assert "hunter-2" not in str(caught.value)
