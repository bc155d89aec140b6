"""Atomic writes of files and folders, under a temporary name, then renamed; and a check before files are read."""

import contextlib
import json
import math
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from sca_search.errors import InputError, StorageError
from sca_search.system.machine import available_bytes

if TYPE_CHECKING:
    from torch import Tensor


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to. It is renamed to `path` if the block succeeds, else removed."""
    final = Path(path)
    # In the same folder: a rename works only within one file system. Some writers choose the format by the suffix.
    temporary = final.with_name(f".{final.stem}.{os.getpid()}-{secrets.token_hex(4)}{final.suffix}")
    try:
        with _storage_errors(final):
            temporary.touch()
            usual = temporary.stat().st_mode
            yield temporary
            temporary.chmod(usual)  # safetensors writes private files; others must be able to read an export
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())  # some file systems report a full disk only here
            temporary.replace(final)
    finally:
        # After the rename this name does not exist. A removal that fails too must not hide the first error.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def write_text_atomic(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, with its line ends unchanged."""
    # An error message may quote a file name that is not valid Unicode, and must still be writable.
    content = text.encode("utf-8", errors="backslashreplace")
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json_atomic(path: str | os.PathLike[str], value: object) -> None:
    """Write `value` as JSON. NaN and infinity raise ValueError, because other readers reject them."""
    write_text_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write tensors to a safetensors file.

    The format rejects tensors that share memory, such as tied weights: each is written as a copy.
    """
    from safetensors.torch import save_file  # noqa: PLC0415 - commands without torch import this module

    written: set[int] = set()
    separate: dict[str, Tensor] = {}
    for name, value in tensors.items():
        memory = value.untyped_storage().data_ptr()
        plain = value.detach().contiguous().cpu()
        separate[name] = plain.clone() if memory in written and plain.data_ptr() == value.data_ptr() else plain
        written.add(memory)
    with atomic_path(path) as temporary:
        save_file(separate, temporary, metadata=metadata)


# Far beyond what is ever written; other files that are loaded must fit into memory.
_MOST_BYTES = {".toml": 100_000, ".json": 64 * 2**20, ".csv": 256 * 2**20, ".c": 2**30, ".onnx": 2**31, ".db": 2**33}


def require_regular(path: Path, error: type[InputError], suffix: str = "") -> None:
    """Raise `error` for a pipe or device, and for a file that is too large for its type; no error if there is no file.

    Opening a pipe waits for a writer, and a sparse file of a few bytes on disk can have any size.
    """
    try:
        found = path.stat()
    except OSError:
        return  # reported where it is read
    if stat.S_ISDIR(found.st_mode):
        return
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{path}: must be a regular file, got a pipe or device")
    most = _MOST_BYTES.get(suffix or path.suffix, math.inf)
    if found.st_size > most:
        raise error(f"{path}: must have at most {most:,} bytes, got {found.st_size:,}")


def require_loadable(path: Path, error: type[InputError]) -> None:
    """Raise `error` also for a file that does not fit into memory, into which it is read as a whole."""
    require_regular(path, error)
    if path.is_file() and (size := path.stat().st_size) > (most := available_bytes()):
        raise error(f"{path}: must fit into the available memory, {most:,} bytes, got {size:,}")


def stamp_of(path: Path) -> tuple[int, ...]:
    """A value that changes whenever the file changes; empty if there is none.

    The modification time is not enough: a clock may be moved back, or not advance between two writes. A file that was
    renamed into place has another inode.
    """
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


@contextlib.contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder. If the block succeeds, it is renamed to `folder` or replaces the content of that."""
    final = folder.resolve()  # "." has no name
    there = final.is_dir()
    # Inside an existing folder: it may be the only one that is writable, or a process's working directory.
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


@contextlib.contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    """Raise StorageError about `path` for errors of the operating system."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error.strerror or error}") from error
    except SafetensorError as error:
        # The library reports the error of the operating system only in its message: "... (os error 28)".
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise StorageError(f"{path} cannot be written: {os.strerror(int(number[1]))}") from error
