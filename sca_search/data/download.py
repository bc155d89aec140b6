"""Downloads the files of a data set atomically: a folder has all of them, or is unchanged."""

import http.client
import shutil
import socket
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from sca_search.errors import DataError, StorageError

# torchvision sets no timeout, and a firewall that drops packets would block a study forever.
_TIMEOUT_S = 20.0

_FAILED = (OSError, RuntimeError, EOFError, http.client.HTTPException, tarfile.TarError, zlib.error)


def fetch_files(
    root: Path, download: Callable[[Path], object], *, name: str, files: Sequence[str], packed: Sequence[str]
) -> None:
    """Let `download` fill a temporary folder inside `root`, and move its files to `root` once all are present.

    Archives that `root` already has are copied to it first, so that they are unpacked and not downloaded.
    """
    with _folder(root, name), tempfile.TemporaryDirectory(prefix=".download-", dir=root) as work:
        folder = Path(work)
        try:
            _copy_present(packed, root, folder)
            with _timeout(_TIMEOUT_S):
                download(folder)
        except _FAILED as error:
            raise DataError(_nothing_found(root, name, files, error)) from None
        _install(folder, root)


def _nothing_found(root: Path, name: str, files: Sequence[str], error: Exception) -> str:
    reason = " ".join(str(error).split()) or type(error).__name__
    missing = [file for file in files if not (root / file).is_file()]
    found = f"no copy of {name} there (looked for {', '.join(files)})"
    if len(missing) < len(files):
        found = f"the copy of {name} must be complete, {missing[0]} is missing,"
    return (
        f"{root}: {found} and the download failed ({reason}); "
        f"give a folder that has these files with --data-dir DIR, or one file as npz:PATH"
    )


@contextmanager
def _folder(root: Path, name: str) -> Iterator[None]:
    """Create a folder for the block; folders that were created are removed if the block fails."""
    created = [path for path in (root, *root.parents) if not path.exists()]
    try:
        root.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        for path in created:
            with suppress(OSError):  # it was not created, or another process has written to it
                path.rmdir()
        if isinstance(error, OSError):
            raise StorageError(f"{root}: no copy of {name} there, and none can be stored ({error})") from None
        raise


@contextmanager
def _timeout(seconds: float) -> Iterator[None]:
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(seconds)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _copy_present(files: Sequence[str], source: Path, goal: Path) -> None:
    for file in files:
        if (source / file).is_file():
            (goal / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, goal / file)


def _install(source: Path, goal: Path) -> None:
    """Move every file but the archives, which are not needed once unpacked."""
    for path in sorted(source.rglob("*")):
        if path.is_file() and path.suffix != ".gz":
            target = goal / path.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
