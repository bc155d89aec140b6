"""The run folder: the files of a study.

runs/<name>/
  study.toml            the resolved spec
  study.db              the Optuna study (SQLite), unless machines share it
  shared.json           address of the storage, if machines share the study; without a password
  dense-checkpoint.safetensors  checkpoint of the warm start during its training
  dense.safetensors     the warm start; dense.json: its scores and the name of the metric
  candidates/007/       model.safetensors, candidate.json, history.csv, distribution.json (tanh Θ over epochs),
                        features.json (feature maps, also of the dense network); refit-1/ … of the chosen one;
                        checkpoint.safetensors of an unfinished one
  closed-form.json      α against sparsity by the prior, per layer, on the warm start
  sensitivity.json      layer sensitivity, where the allocation is searched
  latency.json          the calibration, where the goal involves latency
  trials.csv front.csv summary.json dashboard.html
  about.json            format of the folder, commands, machine, threads, versions
  log.txt               trials, warnings, errors with their tracebacks, with times
  progress.json         what is being trained now; deleted at the end
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
from sca_search.system.files import write_json_atomic, write_text_atomic

# Layout of the run folder, stored in about.json. A change that other versions cannot read raises it.
# 1: the first. 2: columns `metric` and `param.NAME` in trials.csv, cost columns, `max_kb` of the whole file. 3: without
# the prior correction in study.toml and candidate.json.
FORMAT = 3
# The name of the one study in a run folder's own database.
LOCAL_STUDY = "sca-search"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run, and the shared storage of its trials, if any."""

    path: Path
    shared: Shared | None = None

    @property
    def spec_file(self) -> Path:
        return self.path / "study.toml"

    @property
    def study_name(self) -> str:
        """Name of the study in its storage."""
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
        """Name of the study's metric; it is determined with the dense network."""
        try:
            return str(json.loads(self.dense_scores_file.read_text(encoding="utf-8")).get("metric_name", ACCURACY))
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
        """Read the study of the run; RunError if the folder is none, of another format, or unsafe to read."""
        if not self.spec_file.is_file():
            raise RunError(f"{self.path}: is not a run folder, it has no {self.spec_file.name}")
        refuse_links_out(self.path)
        self._check_format()
        spec = resolve(self.spec_file, {})
        refuse_own_code(self.path, spec.references)
        return spec

    def _check_format(self) -> None:
        try:
            about = json.loads(self.about_file.read_text(encoding="utf-8"))
            number = about.get("format", 1)
        except (OSError, ValueError, AttributeError, RecursionError):
            number = 1
        if type(number) is int and number == FORMAT:
            return
        age = "a newer" if type(number) is int and number > FORMAT else "an older"
        raise RunError(
            f"{self.path}: was written by {age} sca-search, as a run folder of format {str(number)[:20]}; this version "
            f"reads format {FORMAT}"
        )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the run for one process: trials still marked as running are stale."""
        lock = FileLock(self.path / ".lock", timeout=0)
        try:
            with self._lock_errors():
                lock.acquire()
        except Timeout as error:
            raise TakenError(f"{self.path}: is in use by another process") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def queue_locked(self) -> Iterator[None]:
        """Lock the queue: one worker at a time takes or promotes a trial."""
        lock = FileLock(self.path / ".queue")
        with self._lock_errors():
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def _lock_errors(self) -> Iterator[None]:
        """StorageError on file systems without locks, where two processes would overwrite each other's files."""
        try:
            yield
        except (NotImplementedError, OSError) as error:
            if isinstance(error, Timeout) or getattr(error, "errno", None) not in {None, *_NO_LOCKS}:
                raise
            raise StorageError(
                f"{self.path}: the file system does not support locks, without which two commands may write at once; "
                "choose --out on another one"
            ) from error


def require_joinable(run: RunFolder, spec: StudySpec) -> None:
    """RunError if the folder of a shared study holds something else."""
    if not run.path.exists() or (run.path.is_dir() and not any(run.path.iterdir())):
        return
    if not run.spec_file.is_file() or not run.shared_file.is_file():
        raise RunError(f"{run.path}: holds files that are not of a shared study; choose another --name or --out")
    if changed := differences(spec, run.spec()):
        raise RunError(f"{run.path}: holds another study, it differs in {', '.join(changed)}; choose another --name")


def joined_run(spec: StudySpec, shared: Shared) -> RunFolder:
    """This machine's folder of a shared study, by its name; created if it does not exist."""
    run = RunFolder(spec.out / (spec.name or spec.base_name), shared)
    require_joinable(run, spec)
    if not run.spec_file.is_file():
        _make(run.path, exist_ok=True)
        write_json_atomic(run.about_file, {"format": FORMAT})
        write_json_atomic(run.shared_file, {"storage": shown_address(shared.storage)})
        write_text_atomic(run.spec_file, spec.to_toml())
    return run


def _require_local(run: RunFolder) -> RunFolder:
    if run.shared_file.exists():
        raise RunError(f"{run.path}: its trials are in a shared storage; give --storage")
    return run


def new_run(spec: StudySpec) -> RunFolder:
    """Create the folder of a new study. A requested name must be free; a default name gets the next number."""
    if spec.name:
        path = spec.out / spec.name
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(f"{path}: holds {_holding(path, spec)}")
        _make(path, exist_ok=True)
    else:
        path = _make_numbered(spec)
    run = RunFolder(path)
    write_json_atomic(run.about_file, {"format": FORMAT})
    write_text_atomic(run.spec_file, spec.to_toml())
    return run


def resumed_run(spec: StudySpec, *, training_is_whole: bool = True) -> RunFolder:
    """The folder of a study to resume: the one with the requested name, else the newest of the same settings.

    Unreadable files may be skipped from now on if `training_is_whole`: then only test images are concerned, and what is
    trained and compared stays the same.
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
        raise StorageError(f"{path}: the run folder cannot be created: {error.strerror}") from error


def _make_numbered(spec: StudySpec) -> Path:
    """Create the first free of name, name-2, name-3, …; here, so that two commands at once do not share it."""
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
    """What the folder already holds, and what to do about it."""
    if not (path / "study.toml").is_file():
        return "files that are not a study; choose another --name"
    if (path / "shared.json").is_file():
        return "a study that machines share; give --storage or choose another --name"
    if differences(spec, RunFolder(path).spec()):
        return "another study; choose another --name"
    return "this study already; continue with --resume or choose another --name"
