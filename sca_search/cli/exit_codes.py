"""How a command ends: its exit code, and one sentence where something went wrong.

| code | meaning |
| --- | --- |
| 0 | done |
| 1 | the answer is no: no trial meets the goal, an export or a trial trained again differs, a self-test fails |
| 2 | a mistake in what was given, or a disk that cannot be written |
| 70 | a fault of sca-search itself, with its traceback |
| 130 | stopped by Ctrl-C; what is finished is kept |
| 143 | likewise by SIGTERM |
| 141 | whoever read the output left before its end |
"""

import errno
import logging
import traceback
from collections.abc import Callable
from typing import Any

import typer

from sca_search.errors import ScaError
from sca_search.system.console import LOGGER, PIPE_CLOSED, answer, errors, manner
from sca_search.system.secrets import scrub

DONE, NO, REFUSED, FAULT, INTERRUPTED = 0, 1, 2, 70, 130
# A disk that is full or may not be written, wherever it shows.
_MACHINES_FAULTS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}
# A name that no file can have, or that leads in a circle.
_IMPOSSIBLE_NAMES = {errno.ENAMETOOLONG, errno.ELOOP}
# A sentence may quote what was given; of what is longer, its end tells the rule.
_LONGEST, _TAIL = 1500, 300


def ended(command: Callable[[], Any]) -> int:
    """Runs the command line and gives its exit code: a user's mistake is one sentence, never a traceback."""
    try:
        code = command()
        return code if isinstance(code, int) else DONE
    except BrokenPipeError:
        return PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        _tell("stopped", INTERRUPTED)
        return INTERRUPTED
    except Exception as error:
        sentences = _sentences(error)
        return _fault(error) if sentences is None else _refuse(sentences, error)


def _sentences(error: Exception) -> str | None:
    """What to tell a user; None where it is not the user's business."""
    if isinstance(error, ScaError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _MACHINES_FAULTS:
        return f"{error.filename or 'a file'} cannot be written: {error.strerror}"
    if isinstance(error, OSError) and error.errno in _IMPOSSIBLE_NAMES:
        return f"{error.filename}: {error.strerror}"
    # Typer's own errors about flags have no public class in common, but all know their sentence.
    told = getattr(error, "format_message", None)
    return _usage(told()) if told else None


def _usage(sentence: str) -> str:
    return f"{' '.join(sentence.split()).rstrip('.')}; see sca-search --help"


def _refuse(sentences: str, error: Exception) -> int:
    # Shortened first, half a password would no longer be known as one.
    sentences = "\n".join(map(_short, scrub(sentences).split("\n")))
    if manner.verbose and error.__cause__ is not None:
        _print("".join(traceback.format_exception(error.__cause__)), style=None)
    _print(sentences, style="red")
    _tell(sentences, REFUSED)
    return REFUSED


def _short(line: str) -> str:
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - _TAIL]} … {line[-_TAIL:]}"


def _fault(error: Exception) -> int:
    logging.getLogger(LOGGER).debug("a fault of sca-search itself", exc_info=error)
    _print("".join(traceback.format_exception(error)), style=None)
    _tell(f"a fault of sca-search itself: {error!r}", FAULT)
    return FAULT


def _print(text: str, style: str | None) -> None:
    for line in text.rstrip("\n").split("\n"):  # a name may hold other ends of lines, which are none here
        errors().print(line, style=style, highlight=False, soft_wrap=True, markup=False)


def _tell(sentence: str, code: int) -> None:
    answer({"error": sentence, "exit_code": code})
