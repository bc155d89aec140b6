"""Records of a run: its log, its progress, and in about.json its commands, machine and versions."""

import logging
import math
import platform
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter

from sca_search.errors import RunError, StorageError
from sca_search.runs.candidates import read_json
from sca_search.runs.folder import FORMAT, RunFolder
from sca_search.system.console import LOGGER, PrintableFormatter, scrub
from sca_search.system.files import write_json_atomic
from sca_search.system.machine import processor, usable_cores, versions

logger = logging.getLogger(LOGGER)
# Without a run folder and without -v there is no handler: a library must not fall back on stderr.
logger.addHandler(logging.NullHandler())
logger.propagate = False
# A study whose progress file is older than this multiple of its usual interval counts as ended: epochs take minutes.
PATIENCE = 5.0
LEAST_PATIENCE_SECONDS = 60.0


class _Lines(PrintableFormatter):
    """`2026-01-31T09:05:07.250+0100 INFO dense warm start: epoch 3 of 30, …`"""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002
        at = time.localtime(record.created)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', at)}.{int(record.msecs):03d}{time.strftime('%z', at)}"


class _File(logging.FileHandler):
    """A full disk is reported where results are written; the log raises no additional errors."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore the error."""


@contextmanager
def logged(run: RunFolder, prefix: str = "") -> Iterator[None]:
    """Write log records and warnings to the run's log in this context, and the error that ends it."""
    try:
        handler = _File(run.log_file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"{run.log_file} cannot be written: {error.strerror}") from error
    handler.setFormatter(_Lines(f"%(asctime)s %(levelname)s {prefix}%(message)s"))
    before = logger.level
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        with _warnings_too():
            yield
    except BaseException as error:
        logger.error("ended by %s: %s", type(error).__name__, error, exc_info=True)
        raise
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
        handler.close()


@contextmanager
def _warnings_too() -> Iterator[None]:
    """Log Python's warnings, and show them as usual."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any) -> None:
        logger.warning("%s: %s (%s, line %d)", category.__name__, message, filename, lineno)
        show(message, category, filename, lineno, *more)

    warnings.showwarning = note  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = show


def log_epoch(training: str, epoch: Any) -> None:
    """Log one line per epoch."""
    figures = f"metric {epoch.soft_metric:.5g}, rounded {epoch.rounded_metric:.5g}, sparsity {epoch.sparsity:.3%}"
    logger.debug("%s: %s epoch %d of %d, %s", training, epoch.phase, epoch.epoch, epoch.epochs, figures)


def log_end(row: Mapping[str, Any]) -> None:
    """Log the result of a trial."""
    if row["state"] == "complete":
        figures = f"metric {row['metric']:.5g} at sparsity {row['sparsity']:.3%}"
        took = "" if row["seconds"] is None else f", {row['seconds']:.1f} s"
        logger.info("trial %d ended: %s%s", row["trial"], figures, took)
    else:
        because = f", {row['reason']}" if row.get("reason") else ""
        logger.warning("trial %d ended: %s%s", row["trial"], row["state"], because)


@dataclass(frozen=True)
class CurrentTraining:
    """The latest progress of a study."""

    what: str  # "dense warm start", "trial 7", "refit 1"
    epoch: int
    epochs: int
    at: float  # seconds since 1970
    pause_seconds: float  # since the progress before

    def is_alive(self, clock: float) -> bool:
        return clock - self.at <= max(LEAST_PATIENCE_SECONDS, PATIENCE * self.pause_seconds)


class ProgressFile:
    """Writes the latest progress at most once per second; removed when the study ends."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock
        self._last = -math.inf
        self._written = -math.inf

    def note(self, what: str, epoch: int, epochs: int) -> None:
        now = self._clock()
        pause, self._last = (0.0 if self._last == -math.inf else max(0.0, now - self._last)), now
        if not 0.0 <= now - self._written < 1.0:  # it must still be written after the clock was set back
            self._written = now
            write_json_atomic(self.path, asdict(CurrentTraining(what, epoch, epochs, now, pause)))

    def close(self) -> None:
        self.path.unlink(missing_ok=True)


def read_progress(path: Path) -> CurrentTraining | None:
    """The latest progress; None where the file is missing or cannot be read."""
    try:
        return TypeAdapter(CurrentTraining).validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None


def note_command(
    run: RunFolder, arguments: Sequence[str], threads: int, inputs: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Append a command to about.json; machine, threads per worker and versions are those of the newest.

    RunError if the run was started with other `inputs`: checksums of its data and network.
    """
    found = read_json(run.about_file, {})
    known = found if isinstance(found, dict) else {}
    started = known.get("inputs")
    require_same_inputs(f"{run.path}:", started, inputs)
    all_inputs = {**(started if isinstance(started, dict) else {}), **inputs}
    commands = known.get("commands")
    before = [each for each in commands if _is_command(each)] if isinstance(commands, list) else []
    # Before joining: shell quotes would split a password that contains a quote.
    shown = shlex.join(["sca-search", *map(scrub, arguments)])
    command = {"command": shown, "at": time.time()}
    write_json_atomic(
        run.about_file,
        {"format": FORMAT, "commands": [*before, command], "inputs": all_inputs, **training_environment(threads)},
    )


def require_same_inputs(where: str, then: object, now: Mapping[str, str]) -> None:
    """RunError that names the inputs of a study that are not those of its start."""
    started = then if isinstance(then, dict) else {}
    changed = [
        f"{name} ({str(started[name])[:40]}, here {value})"
        for name, value in now.items()
        if started.get(name, value) != value
    ]
    if changed:
        raise RunError(
            f"{where} was started with other {' and '.join(changed)}; restore what it was started with, or choose "
            "another --name"
        )


def training_environment(threads: int) -> dict[str, Any]:
    """Everything that determines a training bit by bit, besides its settings."""
    return {"machine": machine(), "threads": threads, "versions": versions()}


def _is_command(value: object) -> bool:
    """Whether it is a command of ours: a run may be untrusted."""
    if not isinstance(value, dict) or value.keys() != {"command", "at"}:
        return False
    return isinstance(value["command"], str) and isinstance(value["at"], int | float) and abs(value["at"]) < math.inf


def machine() -> dict[str, Any]:
    """What measured times depend on."""
    return {
        "processor": processor(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
