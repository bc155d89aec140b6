"""URLs of a study that several machines share.

The trials are in a PostgreSQL database. Files are in the run folder, if all machines can access it, or in an artifact
store: a shared folder or an S3 bucket.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sca_search.errors import SpecError
from sca_search.system.console import HIDDEN, holds_password, scrub

STORAGE_VARIABLE = "SCA_SEARCH_STORAGE"
_DRIVER = "postgresql+psycopg"
_URL_FLAGS = ("--storage", "--artifacts")
_SECRET_OPTION = re.compile(r"pass(?!file)|pwd|secret|key|token", re.IGNORECASE)


@dataclass(frozen=True)
class Shared:
    """URLs of a shared study. They may contain a password, so `repr` leaves them out."""

    storage: str = field(repr=False)
    artifacts: str | None = field(default=None, repr=False)
    ray: str | None = None  # address of the Ray cluster that runs the workers


def shared_by(storage: str | None, artifacts: str | None, ray: str | None = None) -> Shared | None:
    """The shared study that the flags, or else the environment, name; None if there is none."""
    given = storage or os.environ.get(STORAGE_VARIABLE) or None
    if given is None:
        for flag, value in (("--artifacts", artifacts), ("--ray", ray)):
            if value is not None:
                raise SpecError(f"{flag} requires --storage, got only {scrub(value)!r}")
        return None
    if artifacts is not None:
        artifact_address(artifacts)
    return Shared(storage_address(given), artifacts, ray)


def require_addresses_in_place(arguments: Sequence[str]) -> None:
    """Reject a URL with a password in any other argument: it would be used as a path, and written to files."""
    for before, argument in zip(("", *arguments), arguments, strict=False):
        flag, _, _ = argument.partition("=") if argument.startswith("--") else (before, "", "")
        if holds_password(argument) and flag not in _URL_FLAGS:
            where = flag if re.fullmatch(r"--[a-z-]+", flag) else "the command line"
            shown = _shown_invalid(argument.removeprefix(f"{flag}="))
            raise SpecError(f"{where}: only --storage may be a URL with a password, got {shown!r}")


def storage_address(given: str) -> str:
    """The URL of a PostgreSQL database with its driver; SpecError for other URLs."""
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(given)
    except (ArgumentError, ValueError):  # ValueError: the port is not a number
        url = None
    is_ours = url is not None and url.drivername in {"postgresql", "postgres", _DRIVER} and given.isprintable()
    if url is None or not is_ours or not url.database:
        rule = "be the URL of a PostgreSQL database, postgresql://USER@HOST/DATABASE"
    elif re.search(r"[@{}]", f"{url.host}{url.database}"):  # the @ of a password; Optuna fills in braces
        rule = "have every @ and / of its user name and password written as %40 and %2F, and no braces in other parts"
    else:
        return url.set(drivername=_DRIVER).render_as_string(hide_password=False)
    raise SpecError(f"--storage must {rule}, got {_shown_invalid(given)!r}")


def shown_address(address: str) -> str:
    """A valid storage URL as messages and files show it: without driver and secrets."""
    from sqlalchemy import make_url

    url = make_url(address)
    public = url.difference_update_query([name for name in url.query if _SECRET_OPTION.search(name)])
    return public.set(drivername="postgresql").render_as_string(hide_password=True)


def _shown_invalid(given: str) -> str:
    """An invalid URL may contain a password anywhere: only its scheme is shown."""
    if not re.search(r"[:@=%]", given):
        return given
    scheme, separator, _ = given.partition("://")
    return f"{scheme}{separator}{HIDDEN}" if separator and re.fullmatch(r"[a-z][a-z0-9+.]*", scheme) else HIDDEN


def artifact_address(given: str) -> Path | tuple[str, str]:
    """The folder of --artifacts, or its bucket and the prefix of the names in it; SpecError if it is neither."""
    try:
        parts = urlsplit(given)
    except ValueError:
        parts = urlsplit("")
    path = unquote(parts.path)
    if parts.query or parts.fragment:  # unused, and users put access keys there
        raise SpecError(f"--artifacts must have no ? and no #, write %3F and %23, got {_shown_invalid(given)!r}")
    if parts.scheme == "file" and parts.netloc in {"", "localhost"} and len(path) > 1 and "\0" not in path:
        return Path(path)
    if parts.scheme == "s3" and re.fullmatch(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", parts.netloc):
        return parts.netloc, path.strip("/")
    raise SpecError(f"--artifacts must be file:///FOLDER or s3://BUCKET/PREFIX, got {scrub(given)!r}")
