"""Atomic writes of files and folders: under a temporary name, synced, then renamed. Checks of files that are read."""

import contextlib
import ctypes
import glob
import json
import math
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import SafetensorError

from sca_search.errors import InputError, StorageError
from sca_search.system.machine import available_bytes

if TYPE_CHECKING:
    from torch import Tensor


# Names that `_temporary` gives; the number is that of the process.
_TEMPORARY = re.compile(r"\..*\.(\d+)-[0-9a-f]{8}(\.[^.]+)?")
# Arguments of Linux's renameat2.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2


@contextlib.contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to. It is renamed to `path` if the block succeeds, else removed."""
    final = Path(path)
    # In the same folder: a rename works only within one file system. Some writers choose the format by the suffix.
    temporary = _temporary(final.parent, final.stem, final.suffix)
    try:
        with _storage_errors(final):
            temporary.touch()
            usual = temporary.stat().st_mode
            yield temporary
            temporary.chmod(usual)  # safetensors writes private files; others must be able to read an export
            with temporary.open("rb+") as file:
                os.fsync(file.fileno())  # some file systems report a full disk only here
            temporary.replace(final)
            _sync_folder(final.parent)
    finally:
        # After the rename this name does not exist. A removal that fails too must not hide the first error.
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _temporary(folder: Path, name: str, suffix: str = "") -> Path:
    return folder / f".{name}.{os.getpid()}-{secrets.token_hex(4)}{suffix}"


def is_temporary(path: Path) -> bool:
    """Whether a file or folder has the name of one that is being written."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: Path, pattern: str = "**/.*") -> None:
    """Remove temporary files and folders in a folder that processes of this machine left when they were killed."""
    for path in filter(is_leftover, list(folder.glob(pattern))):
        with contextlib.suppress(OSError):  # two processes may remove it at the same time
            _remove(path)


def is_leftover(path: Path) -> bool:
    """Whether the process that wrote a temporary file or folder has ended."""
    match = _TEMPORARY.fullmatch(path.name)
    if match is None:
        return False
    try:
        os.kill(int(match[1]), 0)
    except (OSError, OverflowError) as error:  # PermissionError: of another user
        return isinstance(error, ProcessLookupError)
    return False


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
    """Yield a temporary folder. If the block succeeds, it is renamed to `folder`, or exchanged with an existing one.

    `folder` then has its old or its new content, even if the process is killed. Where folders cannot be exchanged, the
    old content is removed first, while the new one is complete.
    """
    final = folder.resolve()  # "." has no name
    there = final.is_dir()
    in_place = there and _must_stay(final)
    new = _temporary(final if in_place else final.parent, final.name)
    remove_leftovers(new.parent, f".{glob.escape(final.name)}.*")
    try:
        with _storage_errors(folder):
            new.mkdir(parents=True)
        yield new
        with _storage_errors(folder):
            _sync_folder(new)
            if not there:
                new.rename(final)
            elif in_place or not _exchanged(final, new):
                _replace_content(final, new)
            _sync_folder(final if in_place else final.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextlib.contextmanager
def staged_files(folder: Path, last: str, publishing: AbstractContextManager[None]) -> Iterator[Path]:
    """Yield a temporary folder. If the block succeeds, its files are moved to `folder` while `publishing` is entered.

    The file `last` marks a complete folder: the old one is removed first, and the new one is moved last.
    """
    new = _temporary(folder, folder.name)
    try:
        with _storage_errors(folder):
            new.mkdir(parents=True)
        yield new
        with publishing, _storage_errors(folder):
            (folder / last).unlink(missing_ok=True)
            for path in sorted(new.iterdir(), key=lambda path: path.name == last):
                path.rename(folder / path.name)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _must_stay(folder: Path) -> bool:
    """Whether an existing folder cannot be exchanged: it is this process's working directory, or where only its content
    can be written, as where a volume is mounted."""
    is_used = Path.cwd().is_relative_to(folder)
    return is_used or folder.is_mount() or not os.access(folder.parent, os.W_OK)


def _exchanged(folder: Path, new: Path) -> bool:
    """Exchange two folders in one system call; False where the system or the file system cannot."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    shutil.copymode(folder, new)
    return bool(rename(_AT_FDCWD, os.fsencode(folder), _AT_FDCWD, os.fsencode(new), _RENAME_EXCHANGE) == 0)


def _sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the system can: a file or folder may be lost without its name."""
    if os.name == "posix":
        with contextlib.suppress(OSError):  # not every file system can, and a folder may not be readable
            opened = os.open(folder, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)


def _replace_content(folder: Path, new: Path) -> None:
    """A file that is in both is there at any time, so that a folder whose replacement is killed is still recognized."""
    names = [path.name for path in new.iterdir()]
    for name in names:
        if (folder / name).is_dir():
            _remove(folder / name)
        (new / name).rename(folder / name)
    for old in [path for path in folder.iterdir() if path != new and path.name not in names]:
        _remove(old)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


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
