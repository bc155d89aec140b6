"""The run folder: where a study's files lie, so that commands can hand over to each other.

runs/<name>/
  study.toml            the resolved spec
  study.db              the Optuna study (SQLite), unless machines share it
  shared.json           where the trials are kept, if machines share them; without a password
  dense-checkpoint.safetensors  the warm start while it is trained
  dense.safetensors     the warm start; dense.json: its scores and the metric's name
  candidates/007/       model.safetensors, candidate.json, history.csv, distribution.json (tanh Θ over epochs),
                        features.json (maps beside the dense network's); refit-1/ … of the chosen one;
                        checkpoint.safetensors of one that is not finished
  prior.json            asked and reached sparsity; given-prior.json: the one that the study started from
  closed-form.json      the prior's α against sparsity, a layer, on the warm start
  sensitivity.json      what rounding each layer costs, where the split of the zeros is searched
  latency.json          the calibration, where the goal is in milliseconds
  trials.csv front.csv summary.json dashboard.html
  about.json            the folder's format, commands, machine, threads, versions
  log.txt               what happened when: trials, warnings, errors with their tracebacks
  progress.json         what is being trained now; gone when nothing is
  chosen.safetensors    the exported model
"""

import errno
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from filelock import FileLock, Timeout

from sca_search.config.load import differences, resolve
from sca_search.config.names import ACCURACY
from sca_search.config.storage_url import Shared, shown_address
from sca_search.config.study import StudySpec
from sca_search.errors import RunError, StorageError, TakenError
from sca_search.runs.integrity import refuse_links_out, refuse_own_code
from sca_search.runs.run_format import require_known_format
from sca_search.system.files import write_json_atomic, write_text_atomic

# The name of the one study in a run folder's own database.
LOCAL_STUDY = "sca-search"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run, and where its trials are kept if not in it."""

    path: Path
    shared: Shared | None = None

    @property
    def spec_file(self) -> Path:
        return self.path / "study.toml"

    @property
    def study_name(self) -> str:
        """What the study is called in its storage."""
        return LOCAL_STUDY if self.shared is None else self.path.name

    @property
    def dense_file(self) -> Path:
        return self.path / "dense.safetensors"

    @property
    def dense_scores_file(self) -> Path:
        return self.dense_file.with_suffix(".json")

    @property
    def dense_checkpoint(self) -> Path:
        return self.path / "dense-checkpoint.safetensors"

    @property
    def shared_file(self) -> Path:
        return self.path / "shared.json"

    @property
    def metric(self) -> str:
        """The name of what the study calls accuracy in its tables; it is settled with the dense network."""
        try:
            return str(json.loads(self.dense_scores_file.read_text(encoding="utf-8")).get("metric", ACCURACY))
        except (OSError, ValueError, AttributeError, RecursionError):
            return ACCURACY

    @property
    def trials_file(self) -> Path:
        return self.path / "trials.csv"

    @property
    def front_file(self) -> Path:
        return self.path / "front.csv"

    @property
    def sensitivity_file(self) -> Path:
        return self.path / "sensitivity.json"

    @property
    def latency_file(self) -> Path:
        return self.path / "latency.json"

    @property
    def summary_file(self) -> Path:
        return self.path / "summary.json"

    @property
    def dashboard_file(self) -> Path:
        return self.path / "dashboard.html"

    @property
    def chosen_file(self) -> Path:
        return self.path / "chosen.safetensors"

    @property
    def prior_file(self) -> Path:
        return self.path / "prior.json"

    @property
    def given_prior_file(self) -> Path:
        return self.path / "given-prior.json"

    @property
    def closed_form_file(self) -> Path:
        return self.path / "closed-form.json"

    @property
    def about_file(self) -> Path:
        return self.path / "about.json"

    @property
    def log_file(self) -> Path:
        return self.path / "log.txt"

    @property
    def progress_file(self) -> Path:
        return self.path / "progress.json"

    def checkpoint(self, number: int) -> Path:
        return self.candidate(number) / "checkpoint.safetensors"

    def candidate(self, number: int, refit: int = 0) -> Path:
        folder = self.path / "candidates" / f"{number:03d}"
        return folder / f"refit-{refit}" if refit else folder

    def spec(self) -> StudySpec:
        if not self.spec_file.is_file():
            raise RunError(f"{self.path}: is not a run folder, it has no {self.spec_file.name}")
        require_known_format(self.about_file)
        refuse_links_out(self.path)
        spec = resolve(self.spec_file, {})
        refuse_own_code(self.path, spec.references)
        return spec

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else works on this run while it is held: whatever is still marked as running is dead."""
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            with self._lock_errors():
                lock.acquire()
        except Timeout as error:
            raise TakenError(f"{self.path}: another sca-search is working on this run") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def queue_locked(self) -> Iterator[None]:
        """One worker at a time takes a trial or promotes one."""
        lock = FileLock(self.path / ".queue")
        with self._lock_errors():
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _lock_errors(self) -> Iterator[None]:
        """Some network file systems cannot lock: two processes there would write over each other."""
        try:
            yield
        except (NotImplementedError, OSError) as error:
            if isinstance(error, Timeout) or getattr(error, "errno", None) not in {None, *_NO_LOCKS}:
                raise
            raise StorageError(
                f"{self.path}: the file system cannot lock files, without which two commands may write at once; choose "
                "--out on another one"
            ) from error


def require_joinable(run: RunFolder, spec: StudySpec) -> None:
    """Raises RunError where a shared study's folder holds something else."""
    if not run.path.exists() or (run.path.is_dir() and not any(run.path.iterdir())):
        return
    if not run.spec_file.is_file() or not run.shared_file.is_file():
        raise RunError(f"{run.path}: holds files of no shared study; choose another --name or --out")
    if changed := differences(spec, run.spec()):
        raise RunError(f"{run.path}: holds another study, it differs in {', '.join(changed)}; choose another --name")


def joined_run(spec: StudySpec, shared: Shared) -> RunFolder:
    """This machine's folder of a shared study, which it takes part in by its name; made where it does not exist."""
    run = RunFolder(spec.out / (spec.name or spec.base_name), shared)
    require_joinable(run, spec)
    if not run.spec_file.is_file():
        _make(run.path, exist_ok=True)
        write_json_atomic(run.shared_file, {"storage": shown_address(shared.storage)})
        write_text_atomic(run.spec_file, spec.to_toml())
    return run


def _require_local(run: RunFolder) -> RunFolder:
    if run.shared_file.exists():
        raise RunError(f"{run.path}: its trials are kept elsewhere, since machines share them; give --storage")
    return run


def new_run(spec: StudySpec) -> RunFolder:
    """A folder of its own for a new study. A name given must be free; a name of ours takes the next number."""
    if spec.name:
        path = spec.out / spec.name
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path}: holds {_holding(path, spec)}")
        _make(path, exist_ok=True)
    else:
        path = _make_numbered(spec)
    run = RunFolder(path)
    write_text_atomic(run.spec_file, spec.to_toml())
    return run


def resumed_run(spec: StudySpec, *, training_is_whole: bool = True) -> RunFolder:
    """The folder of a study that goes on: the one named, else the newest that the same command made.

    Unreadable files may be left out from now on where `training_is_whole`, so that only test images are concerned: what
    is trained and compared stays what it was.
    """

    def changed(run: RunFolder) -> list[str]:
        may_skip = spec.data.skip_unreadable and training_is_whole
        return [key for key in differences(spec, run.spec()) if not (may_skip and key == "data.skip_unreadable")]

    if spec.name:
        found = [RunFolder(spec.out / spec.name)] if (spec.out / spec.name).is_dir() else []
    else:
        found = [RunFolder(path) for path in _newest_first(spec)]
    if not found:
        raise RunError(f"{spec.out / (spec.name or spec.base_name)}: there is no run to resume")
    same = [run for run in found if not changed(run)]
    if not same:
        what = ", ".join(changed(found[0]))
        raise RunError(f"{found[0].path}: holds another study, it differs in {what}; choose another --name")
    return _require_local(same[0])


def _make(path: Path, *, exist_ok: bool) -> None:
    try:
        path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(f"{path}: the run folder cannot be made: {error.strerror}") from error


def _make_numbered(spec: StudySpec) -> Path:
    """The first free of name, name-2, name-3, …; made here, so that two commands at once do not share it."""
    for number in count(1):
        path = spec.out / (spec.base_name if number == 1 else f"{spec.base_name}-{number}")
        try:
            _make(path, exist_ok=False)
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")


def _newest_first(spec: StudySpec) -> list[Path]:
    pattern = re.compile(re.escape(spec.base_name) + r"(?:-(\d+))?")
    folders = [path for path in spec.out.glob(f"{spec.base_name}*") if (path / "study.toml").is_file()]
    numbered = [(int(match[1] or 1), path) for path in folders if (match := pattern.fullmatch(path.name))]
    return [path for _, path in sorted(numbered, reverse=True)]


def _holding(path: Path, spec: StudySpec) -> str:
    """What is in the way, and what to do about it."""
    if not (path / "study.toml").is_file():
        return "files that are no study; choose another --name"
    if (path / "shared.json").is_file():
        return "a study that machines share; give --storage or choose another --name"
    if differences(spec, RunFolder(path).spec()):
        return "another study; choose another --name"
    return "this study already; go on with --resume or choose another --name"
