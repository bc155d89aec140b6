"""Exit codes, and errors as one sentence."""

import errno
import logging
import traceback
from collections.abc import Callable
from typing import Any

import typer

from sca_search.errors import ScaError
from sca_search.system.console import LOGGER, PIPE_CLOSED, errors, output_mode, print_json
from sca_search.system.secrets import scrub

SUCCESS, NEGATIVE, INVALID, INTERNAL_ERROR, INTERRUPTED, TERMINATED = 0, 1, 2, 70, 130, 143
EXIT_CODES = {
    SUCCESS: "success",
    NEGATIVE: (
        "negative result: no trial meets the goal, an exported file or a repeated trial differs, a self-test fails"
    ),
    INVALID: "invalid input, or a disk that cannot be written: one sentence on stderr",
    INTERNAL_ERROR: "internal error, with its traceback",
    INTERRUPTED: "interrupted by Ctrl-C; finished work is saved, and `--resume` continues",
    TERMINATED: "the same by SIGTERM",
    PIPE_CLOSED: "stdout was closed early (SIGPIPE)",
}
# A disk that is full or must not be written to, or a path that no file can have: not our error, whatever raised it.
_DISK_ERRORS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM),
        "{error.filename} cannot be written: {error.strerror}",
    ),
    **dict.fromkeys((errno.ENAMETOOLONG, errno.ELOOP), "{error.filename}: {error.strerror}"),
}
# A message can quote the input. The end of a long one states the rule.
_MAX_CHARACTERS, _MAX_TAIL = 1500, 300


def exit_code_of(command: Callable[[], Any]) -> int:
    """Run the command line and return its exit code; an error is printed."""
    try:
        code = command()
        return code if isinstance(code, int) else SUCCESS
    except BrokenPipeError:
        return PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        print_json({"error": "interrupted", "exit_code": INTERRUPTED})
        return INTERRUPTED
    except Exception as error:
        message = _message(error)
        return _report_internal(error) if message is None else _report_invalid(message, error)


def _message(error: Exception) -> str | None:
    """The message of an error that the user can correct; None for an internal error."""
    if isinstance(error, ScaError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        error.filename = error.filename or "a file"
        return _DISK_ERRORS[error.errno].format(error=error)
    # Typer's errors about options have no public base class, but all have this method.
    format_message = getattr(error, "format_message", None)
    return f"{' '.join(format_message().split()).rstrip('.')}; see sca-search --help" if format_message else None


def _report_invalid(message: str, error: Exception) -> int:
    # Passwords are removed first: the scrubber does not recognize half of one.
    message = "\n".join(map(_truncated, scrub(message).split("\n")))
    if output_mode.verbose and error.__cause__ is not None:
        _print("".join(traceback.format_exception(error.__cause__)), style=None)
    _print(message, style="red")
    print_json({"error": message, "exit_code": INVALID})
    return INVALID


def _truncated(line: str) -> str:
    return line if len(line) <= _MAX_CHARACTERS else f"{line[: _MAX_CHARACTERS - _MAX_TAIL]} … {line[-_MAX_TAIL:]}"


def _report_internal(error: Exception) -> int:
    logging.getLogger(LOGGER).debug("internal error", exc_info=error)
    _print("".join(traceback.format_exception(error)), style=None)
    print_json({"error": f"internal error: {error!r}", "exit_code": INTERNAL_ERROR})
    return INTERNAL_ERROR


def _print(text: str, style: str | None) -> None:
    for line in text.rstrip("\n").split("\n"):  # not splitlines: a file name can contain other line separators
        errors().print(line, style=style, soft_wrap=True)
