"""Where a study that several machines share is kept: the addresses, and that they are given nowhere else.

The trials are in a PostgreSQL database. Files are in the run folder, which all machines then see, or in a store of
artifacts: a folder that all of them see, or a bucket.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sca_search.errors import SpecError
from sca_search.system.secrets import HIDDEN, address_without_password, holds_password

STORAGE_VARIABLE = "SCA_SEARCH_STORAGE"
_DRIVER = "postgresql+psycopg"
_TAKE_ADDRESSES = ("--storage", "--artifacts")
# Optuna fills in what stands between braces.
_UNCLEAR = re.compile(r"[\s{}]")
# Host, port and database, as far as they can be nothing else: a port with letters is a password without its @.
_PLACE = re.compile(r"(?:\[[\da-f:.]*\]|[\w.-]*)(?::\d+(?=/|$))?(?:/[\w./-]*)?")


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
            raise SpecError(f"--artifacts goes with --storage, got {address_without_password(artifacts)!r} alone")
        return None
    if artifacts is not None:
        artifact_address(artifacts)
    return Shared(storage_address(given), artifacts)


def require_addresses_in_place(arguments: Sequence[str]) -> None:
    """An address with a password elsewhere would be taken for the name of a file or folder, and be written down."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        flag, is_joined, _ = argument.partition("=") if argument.startswith("--") else (before, "", "")
        if holds_password(argument) and flag not in _TAKE_ADDRESSES:
            where = flag if re.fullmatch(r"--[a-z-]+", flag) else "the command line"
            shown = _unknown_address(argument.removeprefix(f"{flag}=") if is_joined else argument)
            raise SpecError(f"{where}: an address with a password is taken by --storage alone, got {shown!r}")


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
    if _UNCLEAR.search(rest) or rest.count("@") != parts.netloc.count("@") or rest.count("@") > 1:
        signs = "space, brace, slash, question mark and @"
        rule = f"have every {signs} of its user and password written as %20, %7B, %7D, %2F, %3F and %40"
        raise SpecError(f"--storage must {rule}, got {_unknown_address(given)!r}")
    return f"{_DRIVER}://{rest}"


def _unknown_address(given: str) -> str:
    """What is no address may hold a password anywhere before its last @, and behind it what is no place."""
    scheme, colon, rest = given.partition("://") if "://" in given else ("", "", given)
    user, at, place = rest.rpartition("@")
    # The @ may be the password's own: db/x?password=hun@ter.
    if not re.fullmatch(r"[\w+.-]*", scheme) or re.search(r"[/?=]", user):
        return HIDDEN
    clear = _PLACE.match(place)
    known = clear[0] if clear else ""
    return f"{scheme}{colon}{HIDDEN if user else ''}{at}{known}{HIDDEN if known != place else ''}"


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
    if parts.query or parts.fragment:  # which nobody would look at; who writes a key into an address does so there
        raise SpecError(
            f"--artifacts must have no ? and no # in it, write %3F and %23, got {_unknown_address(given)!r}"
        )
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and len(path) > 1 and "\0" not in path:
        return ArtifactAddress(folder=Path(path))
    if parts.scheme == "s3" and re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc):
        return ArtifactAddress(bucket=parts.netloc, prefix=path.strip("/"))
    shown = address_without_password(given)
    raise SpecError(f"--artifacts must be file:///FOLDER or s3://BUCKET/PREFIX, got {shown!r}")
