"""Files and folders that are either whole or absent: written under a temporary name, then renamed."""

import contextlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError

from sca_search.errors import StorageError


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path to write to; it becomes `path` if the block ends well, else it is removed."""
    final = Path(path)
    temporary = _temporary_beside(final)
    try:
        with _storage_errors(final):
            temporary.touch()
            usual = temporary.stat().st_mode
            yield temporary
            temporary.chmod(usual)  # safetensors makes its files private, which a colleague's export should not be
            _flush_to_disk(temporary)
            temporary.replace(final)
    finally:
        # After the rename there is nothing left under this name. A removal that fails too (a folder
        # that is gone) must not hide the first error.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Writes `text` as UTF-8, with its line ends as they are."""
    # An error message may quote a file name that is no Unicode; the record of a failed trial must still
    # be writable, so what cannot be encoded is spelled out.
    content = text.encode("utf-8", errors="backslashreplace")
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json_atomic(path: str | os.PathLike[str], value: object) -> None:
    """Writes `value` as JSON; NaN and infinity raise ValueError, since other readers refuse them."""
    write_text_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def stamp_of(path: Path) -> tuple[int, ...]:
    """Another one whenever the file is; empty where there is none.

    Its time alone does not tell: a clock moves back, or stands still between two writes. A file that was renamed into
    place has another number.
    """
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder; if the block ends well, it becomes `folder`, or its content that of the one there."""
    final = folder.resolve()  # "." has no name
    there = final.is_dir()
    # Inside of a folder that is there: it may be all that the user can write to, or be somebody's working directory.
    new = (final if there else final.parent) / f".{final.name}.{os.getpid()}-{secrets.token_hex(4)}"
    try:
        with _storage_errors(folder):
            new.mkdir(parents=True)
        yield new
        with _storage_errors(folder):
            if there:
                _replace_content(final, new)
            else:
                new.rename(final)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _replace_content(folder: Path, new: Path) -> None:
    for old in [path for path in folder.iterdir() if path != new]:
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()
    for path in list(new.iterdir()):
        path.rename(folder / path.name)


def _temporary_beside(final: Path) -> Path:
    """A name in the same folder (a rename works only within one file system) that no other worker has."""
    # The suffix stays last: some writers choose the format by it.
    return final.with_name(f".{final.stem}.{os.getpid()}-{secrets.token_hex(4)}{final.suffix}")


def _flush_to_disk(path: Path) -> None:
    """Some file systems report a full disk only here; it must be known before the old file is replaced."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Turns what the system refused into one sentence about `path`."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
    except SafetensorError as error:
        # The library keeps the system's error only as text: "... (os error 28)".
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise StorageError(f"{path} cannot be written: {os.strerror(int(number[1]))}") from error
