"""What the machines of a shared study exchange: files, and tasks that one of them does.

Machines without a common run folder have an artifact store, a folder or a bucket. The name of a file in it has a random
part, and is recorded only after the upload. So no machine reads an incomplete file or overwrites a file that another
one reads.

One machine trains the dense warm start and each refit. It holds an advisory lock of the database while it works; the
others wait for the lock. The result is recorded with the study, together with the names of its files in the artifact
store. The lock is released if the process ends, if its machine is lost, or if the database restarts. In the last case
two machines may do the same task: the first recorded result counts, and all machines use its files.
"""

import contextlib
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import optuna
from optuna.artifacts import Boto3ArtifactStore, FileSystemArtifactStore
from optuna.artifacts.exceptions import ArtifactNotFound

from sca_search.config.storage_url import artifact_address
from sca_search.errors import RunError, SpecError, StorageError
from sca_search.runs.candidates import read_table
from sca_search.runs.folder import RunFolder
from sca_search.study.events import Emit, Note, ignore
from sca_search.study.optuna_internals import queue_locked
from sca_search.study.queue import create_study
from sca_search.study.storage import PostgresStorage, open_storage
from sca_search.system.files import atomic_path, write_json_atomic
from sca_search.training.fit import StopRequestedError

FILES = "files"
"""User attribute of a trial: its files in the store."""
Uploaded = dict[str, str]
"""Names in the store, keyed by the path in the run folder."""

_RESULT = "result of "
_POLL_SECONDS = 0.5
_RECORD = "artifacts.json"  # which files of the store a folder contains
_PRESENT: set[tuple[Path, str]] = set()  # files that this process has found or downloaded
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class ArtifactStore:
    """Uploads files of the run folder, and downloads files of other machines."""

    def __init__(self, run: RunFolder) -> None:
        assert run.shared is not None
        assert run.shared.artifacts is not None
        self._run = run
        self._store, self._prefix = _open_store(run.shared.artifacts)

    def upload(self, paths: Iterable[Path]) -> Uploaded:
        """Upload files, and return their names in the store."""
        uploaded = {}
        for path in paths:
            name = uploaded[path] = f"{self._prefix}{self._run.study_name}--{secrets.token_hex(8)}--{path.name}"
            with _store_errors(f"{path} cannot be uploaded to the artifact store"), path.open("rb") as file:
                self._store.write(name, file)
        for path, name in uploaded.items():
            _record(path, name)
        return {str(path.relative_to(self._run.path)): name for path, name in uploaded.items()}

    def download(self, uploaded: Mapping[str, Any]) -> None:
        """Download files into the run folder; candidate.json last, because it marks a complete candidate.

        Files of this machine for a candidate or task that another machine completed are replaced.
        """
        for relative, name in sorted(uploaded.items(), key=lambda item: item[0].endswith("candidate.json")):
            if not isinstance(name, str) or not _NAME.fullmatch(relative):
                raise RunError(f"{self._run.path}: the study has an invalid file name: {relative!r}")
            path = self._run.path / relative
            if (path, name) not in _PRESENT and (_records(path).get(path.name) != name or not path.exists()):
                self.download_as(name, path)
                _record(path, name)
            _PRESENT.add((path, name))

    def download_as(self, name: str, path: Path) -> None:
        """Download one file of the store."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            _store_errors(f"{path} cannot be downloaded from the artifact store"),
            atomic_path(path) as temporary,
            self._store.open_reader(name) as source,
            temporary.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)

    def delete(self, name: str) -> None:
        """Delete a file that is no longer needed. Errors are ignored: an unused file does no harm."""
        with contextlib.suppress(Exception):
            self._store.remove(name)


def files_in(folder: Path) -> list[Path]:
    """The files of a folder, without its subfolders."""
    return [path for path in sorted(folder.glob("*")) if path.is_file() and path.name != _RECORD]


def _record(path: Path, name: str) -> None:
    """Record which file of the store this one is."""
    write_json_atomic(path.with_name(_RECORD), _records(path) | {path.name: name})


def _records(path: Path) -> dict[str, Any]:
    return read_table(path.with_name(_RECORD))


def artifact_store(run: RunFolder) -> ArtifactStore | None:
    """The artifact store of a study; None if all machines use the same run folder."""
    return ArtifactStore(run) if run.shared is not None and run.shared.artifacts is not None else None


@contextlib.contextmanager
def _store_errors(message: str) -> Iterator[None]:
    try:
        yield
    except StorageError:
        raise
    except ArtifactNotFound as error:
        raise StorageError(f"{message}: it does not exist") from error
    except Exception as error:  # the S3 client, which is optional, has its own errors
        raise StorageError(f"{message}: {(str(error).splitlines() or [repr(error)])[0]}") from error


def _open_store(url: str) -> tuple[Any, str]:
    address = artifact_address(url)
    try:
        if isinstance(address, Path):
            address.mkdir(parents=True, exist_ok=True)
            return FileSystemArtifactStore(address), ""
        bucket, prefix = address
        return Boto3ArtifactStore(bucket), f"{prefix}/" if prefix else ""
    except OSError as error:
        raise StorageError(f"--artifacts: {address} cannot be created: {error.strerror}") from error
    except ImportError as error:
        raise SpecError("--artifacts s3:// needs the S3 client: pip install 'sca-search[s3]'") from error


def do_once(
    run: RunFolder,
    name: str,
    do: Callable[[], None],
    files: Callable[[], Iterable[Path]],
    stop_requested: Callable[[], bool] = lambda: False,
    emit: Emit = ignore,
) -> bool:
    """Do a task, or wait until another machine has done it. Its files are then in the run folder.

    Returns whether they are the files that `do` wrote.
    """
    store, key, is_own, waits = artifact_store(run), _RESULT + name, False, False
    storage = open_storage(run, stop_requested)
    assert isinstance(storage, PostgresStorage)
    with contextlib.closing(storage):
        study = create_study(run, storage)
        while (result := study.user_attrs.get(key)) is None:
            if stop_requested():
                raise StopRequestedError
            with storage.try_locked(name) as is_held:
                if is_held and key not in study.user_attrs:
                    do()
                    uploaded = store.upload(path for path in files() if path.exists()) if store else {}
                    is_own = _is_first(study, key, uploaded)
                    continue
            if not (is_held or waits):
                emit(Note(f"waiting for another machine to finish: {name}"))
                waits = True
            time.sleep(_POLL_SECONDS)
    if store is not None:
        store.download(result)
    return is_own


def _is_first(study: optuna.Study, key: str, uploaded: Uploaded) -> bool:
    """Record a result, unless another machine did: the lock of a task may have been lost."""
    with queue_locked(study):
        is_first = key not in study.user_attrs
        if is_first:
            study.set_user_attr(key, uploaded)
    return is_first
