"""Where a study that several machines share is kept: the addresses, and how they are shown without their passwords.

The trials are in a PostgreSQL database. Files are in the run folder, which all machines then see, or in a store of
artifacts: a folder that all of them see, or a bucket.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sca_search.errors import SpecError

STORAGE_VARIABLE = "SCA_SEARCH_STORAGE"
_DRIVER = "postgresql+psycopg"
_HIDDEN = "***"
# Up to the last @: a password with an @ in it that should have been written as %40 is hidden whole.
_USER_AND_PASSWORD = re.compile(r"(?<=://)([^:/?#\s]*):\S*@")
# Optuna fills in what stands between braces.
_UNCLEAR = re.compile(r"[\s{}]")
_PASSWORD_OPTION = re.compile(r"((?:ssl)?password=)[^&\s'\"]*", re.IGNORECASE)


@dataclass(frozen=True)
class Shared:
    """Addresses of a shared study; they may hold a password, and so are left out where this is printed."""

    storage: str = field(repr=False)
    artifacts: str | None = field(default=None, repr=False)


def shared_by(storage: str | None, artifacts: str | None) -> Shared | None:
    """What the flags, or else the environment, say of a shared study; None where there is none."""
    given = storage or os.environ.get(STORAGE_VARIABLE) or None
    if given is None:
        if artifacts is not None:
            raise SpecError(f"--artifacts goes with --storage, got {without_passwords(artifacts)!r} alone")
        return None
    if artifacts is not None:
        artifact_address(artifacts)
    return Shared(storage_address(given), artifacts)


def without_passwords(text: str) -> str:
    """A text in which the passwords of addresses are hidden."""
    return _PASSWORD_OPTION.sub(rf"\1{_HIDDEN}", _USER_AND_PASSWORD.sub(rf"\1:{_HIDDEN}@", text))


def storage_address(given: str) -> str:
    """A database's address as SQLAlchemy takes it; SpecError where it is none."""
    scheme, colon, rest = given.partition("://")
    try:
        parts = urlsplit(f"x://{rest}")
        is_whole = bool(colon) and len(parts.path) > 1 and (parts.port or 1) > 0
    except ValueError:  # a port that is no number, a bracket that is not closed
        is_whole = False
    if scheme not in {"postgresql", "postgres", _DRIVER} or not is_whole or not given.isprintable():
        rule = "be the address of a PostgreSQL database, postgresql://USER@HOST/DATABASE"
        raise SpecError(f"--storage must {rule}, got {_unknown_address(given)!r}")
    if _UNCLEAR.search(rest) or rest.count("@") > 1:
        rule = "have every space, brace and @ of its user and password written as %20, %7B, %7D and %40"
        raise SpecError(f"--storage must {rule}, got {_unknown_address(given)!r}")
    return f"{_DRIVER}://{rest}"


def _unknown_address(given: str) -> str:
    """What is no address may hold a password anywhere before its last @."""
    scheme, colon, rest = given.partition("://") if "://" in given else ("", "", given)
    user, at, place = rest.rpartition("@")
    return without_passwords(f"{scheme}{colon}{_HIDDEN if user else ''}{at}{place}")


@dataclass(frozen=True)
class ArtifactAddress:
    """A folder, or a bucket and the beginning of the names in it."""

    folder: Path | None = None
    bucket: str = ""
    prefix: str = ""


def artifact_address(given: str) -> ArtifactAddress:
    """What --artifacts names; SpecError where it names nothing that is known."""
    try:
        parts = urlsplit(given)
    except ValueError:
        parts = urlsplit("")
    path = unquote(parts.path)
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and len(path) > 1 and "\0" not in path:
        return ArtifactAddress(folder=Path(path))
    if parts.scheme == "s3" and re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc):
        return ArtifactAddress(bucket=parts.netloc, prefix=path.strip("/"))
    raise SpecError(f"--artifacts must be file:///FOLDER or s3://BUCKET/PREFIX, got {without_passwords(given)!r}")
