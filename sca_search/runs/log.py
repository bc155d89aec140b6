"""The log in a run folder: what happened when, every trial's start and end, warnings, errors with their tracebacks.

Plain lines in UTF-8, the time in the machine's zone with its offset; a study that goes on goes on with its log. Worker
processes add lines of their own.
"""

import logging
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sca_search.errors import StorageError
from sca_search.runs.folder import RunFolder
from sca_search.system.console import LOGGER, PrintableFormatter

logger = logging.getLogger(LOGGER)
# Without a run folder and without -v nobody listens: a library must not fall back on stderr.
logger.addHandler(logging.NullHandler())
logger.propagate = False


class _Lines(PrintableFormatter):
    """`2026-01-31T09:05:07.250+0100 INFO dense warm start: epoch 3 of 30, …`"""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002
        at = time.localtime(record.created)
        return f"{time.strftime('%Y-%m-%dT%H:%M:%S', at)}.{int(record.msecs):03d}{time.strftime('%z', at)}"


class _File(logging.FileHandler):
    """A disk that fills up ends the study where results are written; the log then adds no noise of its own."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Says nothing."""


@contextmanager
def logged(run: RunFolder, who: str = "") -> Iterator[None]:
    """What is logged and warned of meanwhile goes into the run's log, and so does the error that ends it."""
    try:
        handler = _File(run.log_file, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise StorageError(f"{run.log_file} cannot be written: {error.strerror}") from error
    handler.setFormatter(_Lines(f"%(asctime)s %(levelname)s {who}%(message)s"))
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
    """Python's warnings are logged and shown, as they would be anyway."""
    show = warnings.showwarning

    def note(message: Warning | str, category: type[Warning], filename: str, lineno: int, *more: Any) -> None:
        logger.warning("%s: %s (%s, line %d)", category.__name__, message, filename, lineno)
        show(message, category, filename, lineno, *more)

    warnings.showwarning = note  # type: ignore[assignment]
    try:
        yield
    finally:
        warnings.showwarning = show


def log_epoch(who: str, epoch: Any) -> None:
    """A line an epoch."""
    logger.debug(
        "%s: %s epoch %d of %d, metric %.5g, rounded %.5g, sparsity %.3f%%",
        who,
        epoch.phase,
        epoch.epoch,
        epoch.epochs,
        epoch.soft_metric,
        epoch.rounded_metric,
        100 * epoch.sparsity,
    )


def log_end(row: Mapping[str, Any]) -> None:
    """What became of a trial."""
    if row["state"] == "complete":
        figures = f"metric {row['metric']:.5g} at sparsity {row['sparsity']:.3%}"
        took = "" if row["seconds"] is None else f", {row['seconds']:.1f} s"
        logger.info("trial %d ended: %s%s", row["trial"], figures, took)
    else:
        logger.warning("trial %d ended: %s%s", row["trial"], row["state"], _because(row))


def _because(row: Mapping[str, Any]) -> str:
    return f", {row['reason']}" if row.get("reason") else ""
