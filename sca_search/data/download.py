"""Downloads the files of a data set atomically: a folder has all of them, or is unchanged."""

import http.client
import shutil
import socket
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from sca_search.errors import DataError, StorageError

# torchvision sets no timeout, and a firewall that drops packets would block a study forever.
_TIMEOUT_S = 20.0

_FAILED = (OSError, RuntimeError, EOFError, http.client.HTTPException, tarfile.TarError, zlib.error)


def fetch_files(
    root: Path, download: Callable[[Path], object], *, name: str, files: Sequence[str], packed: Sequence[str]
) -> None:
    """Let `download` fill a temporary folder inside `root`, and move its files to `root` once all are present.

    Archives that `root` already has are copied to it first, so that they are unpacked and not downloaded. Folders that
    were created are removed if it fails.
    """
    created = [path for path in (root, *root.parents) if not path.exists()]
    try:
        root.mkdir(mode=0o755, parents=True, exist_ok=True)  # may also hold compiled models: only the user writes to it
        with tempfile.TemporaryDirectory(prefix=".download-", dir=root) as work:
            try:
                _fill(Path(work), download, {file: root / file for file in packed if (root / file).is_file()})
            except _FAILED as error:
                raise DataError(_nothing_found(root, name, files, error)) from None
            for path in sorted(Path(work).rglob("*")):
                if path.is_file() and path.suffix != ".gz":  # archives are not needed once unpacked
                    target = root / path.relative_to(work)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    path.replace(target)
    except BaseException as error:
        for path in created:
            with suppress(OSError):  # it was not created, or another process has written to it
                path.rmdir()
        if isinstance(error, OSError):
            raise StorageError(f"{root}: no copy of {name} there, and none can be stored ({error})") from None
        raise


def _fill(folder: Path, download: Callable[[Path], object], present: dict[str, Path]) -> None:
    for file, path in present.items():
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / file)
    with ExitStack() as restored:
        restored.callback(socket.setdefaulttimeout, socket.getdefaulttimeout())
        socket.setdefaulttimeout(_TIMEOUT_S)
        download(folder)


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
