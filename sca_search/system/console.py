"""Output of a command, by `--json`, `-q` and `-v`, which every command has.

Results go to stdout. With `--json`, stdout has exactly one JSON document, and all other text goes to stderr. With `-q`,
only results and errors are printed; with `-v`, also the lines of the run's log. Passwords of URLs are hidden in all of
it.
"""

import json
import logging
import math
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

LOGGER = "sca_search"
PIPE_CLOSED = 141  # 128 + SIGPIPE, as in shells


# Control characters of a terminal, marks of text direction, and surrogates, which cannot be encoded.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Escape control characters: names and files may come from others."""
    return _HIDDEN.sub(lambda hidden: hidden[0].encode("unicode_escape").decode(), text)


class SafeConsole(Console):
    """A console that prints text literally: without markup, control characters and passwords."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        if isinstance(renderable, Text) and (shown := scrub(renderable.plain)) != renderable.plain:
            renderable = renderable.blank_copy(shown)
        for part in super().render(renderable, options):
            yield part if part.control else Segment(self._encodable(printable(part.text)), part.style)

    def _encodable(self, text: str) -> str:
        """The text with a question mark for each character that the terminal's encoding does not have."""
        return text.encode(self.encoding, errors="replace").decode(self.encoding)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(scrub(text), **options)

    # A reader that closes the pipe early (`| head`) is not an error, so the exit code is not 1.
    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(PIPE_CLOSED)


class PrintableFormatter(logging.Formatter):
    """Formats log lines for a terminal, and for a file that is shown on one."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(scrub(super().format(record)))


@dataclass
class OutputMode:
    """The output options of this process."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False


output_mode = OutputMode()
_out = SafeConsole()
_err = SafeConsole(stderr=True)
_nothing = SafeConsole(quiet=True)


def configure_output(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
    """Set the output mode; with `verbose`, print the log."""
    output_mode.json, output_mode.quiet, output_mode.verbose = json, quiet, verbose
    logger = logging.getLogger(LOGGER)
    for shown in [handler for handler in logger.handlers if handler.name == "screen"]:
        logger.removeHandler(shown)
    if verbose:
        handler = logging.StreamHandler()
        handler.name = "screen"
        handler.setFormatter(PrintableFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)


def results() -> Console:
    """The console for results."""
    if not output_mode.json:
        return _out
    return _nothing if output_mode.quiet else _err


def info() -> Console:
    """The console for progress and details."""
    return _nothing if output_mode.quiet else results()


def errors() -> Console:
    """The console for errors."""
    return _err


def say(line: str) -> None:
    """Print a message about work that takes some time."""
    info().print(f"{line} …", style="dim", soft_wrap=True)


def warn(line: str) -> None:
    console = _nothing if output_mode.quiet else _err
    console.print(line, style="yellow", soft_wrap=True)


def print_json(document: Mapping[str, Any]) -> None:
    """Print the JSON document of a command with `--json`."""
    if output_mode.json:
        # In ASCII: control characters and those that the terminal's encoding does not have are JSON escapes.
        _out.file.write(json.dumps(jsonable(document), indent=2, allow_nan=False) + "\n")
        _out.file.flush()


def jsonable(value: Any) -> Any:
    """A value for JSON: null for NaN and infinity, strings for paths, numbers for numpy scalars; without passwords."""
    if isinstance(value, Mapping):
        return {str(key): jsonable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(each) for each in value]
    if isinstance(value, Path):
        return jsonable(os.fsencode(value).decode("utf-8", errors="backslashreplace"))
    if isinstance(value, str):
        return scrub(value)
    if hasattr(value, "item"):
        return jsonable(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


HIDDEN = "***"
# Options of PostgreSQL and S3 URLs that are secrets; others, such as passfile, name the place of one.
# An & that is not percent-encoded does not end a password unless another option follows. Quotes and punctuation after
# the URL belong to the sentence around it.
_OPTION = re.compile(
    r"((?:password|passwd|secret|(?:client|server|access)_key|token)\s*=\s*)"
    r"(?:[^&\s]|&(?!\w+=))*?(?=['\"]?[\])},.:;]{0,3}(?:\s|$|&\w+=))",
    re.IGNORECASE,
)
# The scheme's slashes and the user name. One slash remains where a URL became a path.
_USER = re.compile(r":/+[^:/?#]*?(?::|%3A)", re.IGNORECASE)


def scrub(text: str) -> str:
    """Replace the passwords of all URLs in a text. A URL ends at a space."""
    return _OPTION.sub(rf"\1{HIDDEN}", re.sub(r"\S+", lambda word: _scrub_word(word[0]), text))


def _scrub_word(word: str) -> str:
    # The last @ ends a password: an @ in it may not be percent-encoded.
    front, at, host = word.rpartition("@")
    user = _USER.search(front)
    return f"{word[: user.end()]}{HIDDEN}{at}{host}" if user else word


def holds_password(argument: str) -> bool:
    """Whether a text is a URL with a password; a URL that became a path has lost a slash."""
    return ":/" in argument and scrub(argument) != argument
