"""The run folder: where a study's files lie, so that commands can hand over to each other.

runs/<name>/
  study.toml            the resolved spec
  study.db              the Optuna study (SQLite)
  dense.safetensors     the warm start; dense.json: its scores
  candidates/007/       model.safetensors, candidate.json, history.csv; refit-1/ … of the chosen one
  trials.csv front.csv summary.json dashboard.html
  chosen.safetensors    the exported model
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from sca_search.errors import RunError, StorageError
from sca_search.files import write_text_atomic
from sca_search.spec import StudySpec, differences, resolve


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run."""

    path: Path

    @property
    def spec_file(self) -> Path:
        return self.path / "study.toml"

    @property
    def storage_url(self) -> str:
        return f"sqlite:///{(self.path / 'study.db').resolve()}"

    @property
    def dense_file(self) -> Path:
        return self.path / "dense.safetensors"

    @property
    def trials_file(self) -> Path:
        return self.path / "trials.csv"

    @property
    def front_file(self) -> Path:
        return self.path / "front.csv"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def dashboard_file(self) -> Path:
        return self.path / "dashboard.html"

    @property
    def chosen_file(self) -> Path:
        return self.path / "chosen.safetensors"

    def candidate(self, number: int, refit: int = 0) -> Path:
        folder = self.path / "candidates" / f"{number:03d}"
        return folder / f"refit-{refit}" if refit else folder

    def spec(self) -> StudySpec:
        if not self.spec_file.is_file():
            raise RunError(f"{self.path}: is not a run folder, it has no {self.spec_file.name}")
        return resolve(self.spec_file, {})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works on this run while it is held: whatever is still marked as running is dead."""
        try:
            with FileLock(self.path / ".lock", timeout=0):
                yield
        except Timeout as error:
            raise RunError(f"{self.path}: another sca-search is working on this run") from error


def new_run(spec: StudySpec) -> RunFolder:
    """A folder of its own for a new study. A name given must be free; a name of ours takes the next number."""
    if spec.name:
        path = spec.out / spec.name
        if path.exists() and any(path.iterdir()):
            raise RunError(
                f"{path}: holds {_holding(RunFolder(path), spec)}; go on with --resume or choose another --name"
            )
    else:
        path = next(path for path in _numbered(spec) if not path.exists())
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path}: the run folder cannot be made: {error.strerror}") from error
    run = RunFolder(path)
    write_text_atomic(run.spec_file, spec.to_toml())
    return run


def resumed_run(spec: StudySpec) -> RunFolder:
    """The folder of a study that goes on: the one named, else the newest that the same command made."""
    if spec.name:
        paths = [spec.out / spec.name]
    else:
        taken = []
        for path in _numbered(spec):
            if not path.exists():
                break
            taken.append(path)
        paths = taken[::-1]
    run = next((RunFolder(path) for path in paths if path.is_dir()), None)
    if run is None:
        raise RunError(f"{spec.out / (spec.name or spec.base_name)}: there is no run to resume")
    changed = differences(spec, run.spec())
    if changed:
        raise RunError(f"{run.path}: holds another study, it differs in {', '.join(changed)}; choose another --name")
    write_text_atomic(run.spec_file, spec.to_toml())
    return run


def _numbered(spec: StudySpec) -> Iterator[Path]:
    yield spec.out / spec.base_name
    number = 2
    while True:
        yield spec.out / f"{spec.base_name}-{number}"
        number += 1


def _holding(run: RunFolder, spec: StudySpec) -> str:
    if not run.spec_file.is_file():
        return "files that are no study"
    return "another study" if differences(spec, run.spec()) else "this study already"
