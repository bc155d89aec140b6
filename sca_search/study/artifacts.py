"""Files of a study that several machines share, where these do not see each other's run folders: an Optuna artifact
store holds them, a folder or a bucket.

A file's name there holds a random part, and is told to others only when the file is there: nobody reads half a file,
and nobody writes where somebody else reads.
"""

import contextlib
import re
import secrets
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from optuna.artifacts import Boto3ArtifactStore, FileSystemArtifactStore
from optuna.artifacts.exceptions import ArtifactNotFound

from sca_search.config.storage_url import artifact_address
from sca_search.errors import RunError, SpecError, StorageError
from sca_search.runs.candidates import read_table
from sca_search.runs.folder import RunFolder
from sca_search.system.files import atomic_path, write_json_atomic

FILES = "files"
"""Under this name a trial or a chore tells which files it left."""
Kept = dict[str, str]
"""File names, relative to the run folder, and what the store calls them."""

_NOTES = "artifacts.json"
_HERE: set[tuple[Path, str]] = set()  # what this process has seen to be in its place
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")


class Shelf:
    """A store as the study sees it: files of the run folder are put there and fetched from there."""

    def __init__(self, run: RunFolder) -> None:
        assert run.shared is not None
        assert run.shared.artifacts is not None
        self._run = run
        self._store, self._prefix = _store(run.shared.artifacts)

    def put(self, paths: Iterable[Path]) -> Kept:
        """Uploads files, and gives their names there."""
        kept = {str(path.relative_to(self._run.path)): self._put(path) for path in paths}
        for relative, name in kept.items():
            _note(self._run.path / relative, name)
        return kept

    def _put(self, path: Path) -> str:
        name = f"{self._prefix}{self._run.study_name}--{secrets.token_hex(8)}--{path.name}"
        with _refused(f"{path} cannot be put into the store of artifacts"), path.open("rb") as file:
            self._store.write(name, file)
        return name

    def fetch(self, kept: Mapping[str, Any]) -> None:
        """Downloads files into the run folder, the record of a candidate last: where it is, all is.

        What this machine has left of a candidate or a chore that another one completed is replaced.
        """
        for relative, name in sorted(kept.items(), key=lambda item: item[0].endswith("candidate.json")):
            if not isinstance(name, str) or not _NAME.fullmatch(relative):
                raise RunError(f"{self._run.path}: the study names a file that cannot be one of a run: {relative!r}")
            path = self._run.path / relative
            if (path, name) not in _HERE and (_noted(path) != name or not path.exists()):
                self.fetch_as(name, path)
                _note(path, name)
            _HERE.add((path, name))

    def fetch_as(self, name: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            _refused(f"{path} cannot be fetched from the store of artifacts"),
            atomic_path(path) as temporary,
            self._store.open_reader(name) as source,
            temporary.open("wb") as target,
        ):
            shutil.copyfileobj(source, target)

    def drop(self, name: str) -> None:
        """What is not needed any more; that it is there still does no harm."""
        with contextlib.suppress(Exception):
            self._store.remove(name)


def files_in(folder: Path) -> list[Path]:
    """What a folder holds itself, without the folders in it."""
    return [path for path in sorted(folder.glob("*")) if path.is_file() and path.name != _NOTES]


def _note(path: Path, name: str) -> None:
    """Writes down which file of the store this one is."""
    write_json_atomic(path.with_name(_NOTES), _notes(path) | {path.name: name})


def _noted(path: Path) -> object:
    return _notes(path).get(path.name)


def _notes(path: Path) -> dict[str, Any]:
    return read_table(path.with_name(_NOTES))


def shelf_of(run: RunFolder) -> Shelf | None:
    """Where files are kept besides the run folder; None where all machines see that."""
    return Shelf(run) if run.shared is not None and run.shared.artifacts is not None else None


@contextlib.contextmanager
def _refused(sentence: str) -> Any:
    try:
        yield
    except StorageError:
        raise
    except ArtifactNotFound as error:
        raise StorageError(f"{sentence}: it is not there") from error
    except Exception as error:  # a bucket's client has errors of its own, which need not be installed here
        raise StorageError(f"{sentence}: {(str(error).splitlines() or [repr(error)])[0]}") from error


def _store(given: str) -> tuple[Any, str]:
    address = artifact_address(given)
    if address.folder is not None:
        try:
            address.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StorageError(f"--artifacts: {address.folder} cannot be made: {error.strerror}") from error
        return FileSystemArtifactStore(address.folder), ""
    try:
        return Boto3ArtifactStore(address.bucket), f"{address.prefix}/" if address.prefix else ""
    except ImportError as error:
        raise SpecError("--artifacts s3:// needs the bucket's client: pip install 'sca-search[s3]'") from error
