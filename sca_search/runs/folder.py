"""The run folder: the files of a study. RunFolder lists them; docs/file-formats.md describes them."""

import errno
import json
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from sca_search.config.load import differences, resolve
from sca_search.config.names import ACCURACY
from sca_search.config.storage_url import Shared, shown_address
from sca_search.config.study import StudySpec
from sca_search.errors import RunError, StorageError, TakenError
from sca_search.runs.integrity import require_plain_files
from sca_search.system.files import is_temporary, remove_leftovers, write_json_atomic, write_text_atomic

# Layout of the run folder, stored in about.json. A change that other versions cannot read raises it.
# 1: the first. 2: columns `metric` and `param.NAME` in trials.csv, cost columns, other
# names of keys, `max_kb` of the whole file.
FORMAT = 2
# The name of the one study in a run folder's own database.
LOCAL_STUDY = "sca-search"
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class _File:
    """The path of a file of a run folder."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, run: "RunFolder", _owner: type) -> Path:
        return run.path / self._name


@dataclass(frozen=True)
class RunFolder:
    """Paths of one run, and the shared storage of its trials, if any."""

    path: Path
    shared: Shared | None = None

    spec_file = _File("study.toml")  # the resolved spec
    shared_file = _File("shared.json")  # address of the storage, if machines share the study; without a password
    dense_checkpoint = _File("dense-checkpoint.safetensors")  # of the warm start during its training
    dense_file = _File("dense.safetensors")  # the warm start
    dense_scores_file = _File("dense.json")  # its scores and the name of the metric
    closed_form_file = _File("closed-form.json")  # α against sparsity by the prior, per layer, on the warm start
    sensitivity_file = _File("sensitivity.json")  # layer sensitivity, where the allocation is searched
    latency_file = _File("latency.json")  # the calibration, where the goal involves latency
    trials_file = _File("trials.csv")
    front_file = _File("front.csv")
    summary_file = _File("summary.json")
    dashboard_file = _File("dashboard.html")
    about_file = _File("about.json")  # format of the folder, commands, machine, threads, versions
    log_file = _File("log.txt")  # trials, warnings, errors with their tracebacks, with times
    progress_file = _File("progress.json")  # what is being trained now; deleted at the end
    chosen_file = _File("chosen.safetensors")  # the exported model

    @property
    def study_name(self) -> str:
        """Name of the study in its storage."""
        return LOCAL_STUDY if self.shared is None else self.path.name

    @property
    def metric(self) -> str:
        """Name of the study's metric; it is determined with the dense network."""
        return str(_known(self.dense_scores_file).get("metric_name", ACCURACY))

    def candidate(self, number: int, refit: int = 0) -> Path:
        """Its model.safetensors, candidate.json, history.csv, distribution.json (tanh Θ over epochs) and features.json
        (feature maps, also of the dense network); refit-1/ … of the chosen one have the same files."""
        folder = self.path / "candidates" / f"{number:03d}"
        return folder / f"refit-{refit}" if refit else folder

    def checkpoint(self, number: int) -> Path:
        """The state of an unfinished candidate."""
        return self.candidate(number) / "checkpoint.safetensors"

    def spec(self, *, trust: bool = False) -> StudySpec:
        """Read the study of the run; RunError if the folder is none, of another format, or unsafe to read.

        SpecError if it names code, unless `trust` is set: by the user, or because the caller does not load that code.
        """
        if not self.spec_file.is_file():
            raise RunError(f"{self.path}: is not a run folder, it has no {self.spec_file.name}")
        require_plain_files(self.path)
        self._check_format()
        return resolve(self.spec_file, {}, trust=trust)

    def _check_format(self) -> None:
        number = _known(self.about_file).get("format", 1)
        if type(number) is int and number == FORMAT:
            return
        age = "a newer" if type(number) is int and number > FORMAT else "an older"
        raise RunError(
            f"{self.path}: was written by {age} sca-search, as a run folder of format {str(number)[:20]}; this version "
            f"reads format {FORMAT}"
        )

    def locked(self) -> AbstractContextManager[None]:
        """Lock the run for one process: trials still marked as running are stale."""
        return self._lock(".lock", timeout=0.0)

    def queue_locked(self) -> AbstractContextManager[None]:
        """Lock the queue: one worker at a time starts, ends or promotes a trial. A thread may lock it repeatedly."""
        return self._lock(".queue", timeout=-1.0, is_singleton=True)

    @contextmanager
    def _lock(self, name: str, timeout: float, *, is_singleton: bool = False) -> Iterator[None]:
        """StorageError on file systems without locks, where two processes would overwrite each other's files."""
        lock = FileLock(self.path / name, timeout=timeout, is_singleton=is_singleton)
        try:
            lock.acquire()
        except Timeout as error:
            raise TakenError(f"{self.path}: is in use by another process") from error
        except (NotImplementedError, OSError) as error:
            if getattr(error, "errno", None) not in {None, *_NO_LOCKS}:
                raise
            raise StorageError(
                f"{self.path}: the file system does not support locks, without which two commands may write at once; "
                "choose --out on another one"
            ) from error
        try:
            yield
        finally:
            lock.release()


def _known(path: Path) -> dict[str, Any]:
    """A JSON object; empty if there is none or it cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _is_free(folder: Path) -> bool:
    """Whether a study may be created here: at most, a command was killed while it created one."""
    return not folder.exists() or (folder.is_dir() and all(map(_precedes_study, folder.iterdir())))


def _precedes_study(path: Path) -> bool:
    """Whether it is one of the files that are written before study.toml."""
    keys = {"about.json": {"format"}, "shared.json": {"storage"}}
    return is_temporary(path) or _known(path).keys() == keys.get(path.name)


def require_joinable(run: RunFolder, spec: StudySpec) -> None:
    """RunError if the folder of a shared study holds something else."""
    if _is_free(run.path):
        return
    if not run.spec_file.is_file() or not run.shared_file.is_file():
        raise RunError(f"{run.path}: holds files that are not of a shared study; choose another --name or --out")
    if changed := differences(spec, run.spec(trust=True)):
        raise RunError(f"{run.path}: holds another study, it differs in {', '.join(changed)}; choose another --name")


def joined_run(spec: StudySpec, shared: Shared) -> RunFolder:
    """This machine's folder of a shared study, by its name; created if it does not exist."""
    run = RunFolder(spec.out / (spec.name or spec.base_name), shared)
    require_joinable(run, spec)
    return run if run.spec_file.is_file() else _created(run, spec, exist_ok=True)


def new_run(spec: StudySpec) -> RunFolder:
    """Create the folder of a new study. A requested name must be free; a default name gets the next number."""
    if spec.name:
        run = RunFolder(spec.out / spec.name)
        if not _is_free(run.path):
            raise RunError(f"{run.path}: holds {_holding(run, spec)}")
        return _created(run, spec, exist_ok=True)
    for number in count(1):  # name, name-2, name-3, …; created here, so that two commands at once do not share it
        path = spec.out / (spec.base_name if number == 1 else f"{spec.base_name}-{number}")
        with suppress(FileExistsError):
            return _created(RunFolder(path), spec, exist_ok=False)
    raise AssertionError("numbers do not end")


def _created(run: RunFolder, spec: StudySpec, *, exist_ok: bool) -> RunFolder:
    try:
        run.path.mkdir(parents=True, exist_ok=exist_ok)
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(f"{run.path}: the run folder cannot be created: {error.strerror}") from error
    if run.shared is None:
        remove_leftovers(run.path)
        run.shared_file.unlink(missing_ok=True)
    write_json_atomic(run.about_file, {"format": FORMAT})
    if run.shared is not None:
        write_json_atomic(run.shared_file, {"storage": shown_address(run.shared.storage)})
    write_text_atomic(run.spec_file, spec.to_toml())
    return run


def resumed_run(spec: StudySpec, *, training_is_whole: bool = True) -> RunFolder | None:
    """The folder of a study to resume: the one with the requested name, else the newest of the same settings.

    None if a command was killed while it created the folder: the study has not begun.

    Unreadable files may be skipped from now on if `training_is_whole`: then only test images are concerned, and what is
    trained and compared stays the same.
    """

    def changed(run: RunFolder) -> list[str]:
        may_skip = spec.data.skip_unreadable and training_is_whole
        keys = differences(spec, run.spec(trust=True))
        return [key for key in keys if not (may_skip and key == "data.skip_unreadable")]

    path, found = spec.out / (spec.name or spec.base_name), _existing_runs(spec)
    if found in ([], [RunFolder(path)]) and path.is_dir() and any(path.iterdir()) and _is_free(path):
        return None
    if not found:
        raise RunError(f"{path}: there is no run to resume")
    same = [run for run in found if not changed(run)]
    if not same:
        what = ", ".join(changed(found[0]))
        raise RunError(f"{found[0].path}: holds another study, it differs in {what}; choose another --name")
    if same[0].shared_file.exists():
        raise RunError(f"{same[0].path}: its trials are in a shared storage; give --storage")
    return same[0]


def _existing_runs(spec: StudySpec) -> list[RunFolder]:
    """The run with the requested name, else all with the default name and a number, newest first."""
    if spec.name:
        named = RunFolder(spec.out / spec.name)
        return [named] if named.path.is_dir() else []
    pattern = re.compile(re.escape(spec.base_name) + r"(?:-(\d+))?")
    folders = [path for path in spec.out.glob(f"{spec.base_name}*") if (path / "study.toml").is_file()]
    numbered = [(int(match[1] or 1), path) for path in folders if (match := pattern.fullmatch(path.name))]
    return [RunFolder(path) for _, path in sorted(numbered, reverse=True)]


def _holding(run: RunFolder, spec: StudySpec) -> str:
    """What the folder already holds, and what to do about it."""
    if not run.spec_file.is_file():
        return "files that are not a study; choose another --name"
    if run.shared_file.is_file():
        return "a study that machines share; give --storage or choose another --name"
    if differences(spec, run.spec(trust=True)):
        return "another study; choose another --name"
    return "this study already; continue with --resume or choose another --name"
