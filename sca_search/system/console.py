"""Where a command's words go, and how many there are: `--json`, `-q` and `-v`, which every command has.

Results go to stdout. With `--json`, stdout holds exactly one JSON document, and all words go to stderr. With `-q`, only
results and errors are left; with `-v`, what the run's log holds is shown as well. Passwords of
addresses are hidden in all of it.
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

from sca_search.system.secrets import scrub

LOGGER = "sca_search"
PIPE_CLOSED = 141  # 128 + SIGPIPE, as shells have it


# What moves a terminal's cursor, colours it or turns its text around, and halves of characters, which no stream takes.
_HIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """The text with what cannot be seen spelled out: names and files may come from somebody else."""
    return _HIDDEN.sub(lambda hidden: hidden[0].encode("unicode_escape").decode(), text)


class Screen(Console):
    """A console that shows texts as they are: nothing in them is markup, nothing gives the terminal an order."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        if isinstance(renderable, Text) and (shown := scrub(renderable.plain)) != renderable.plain:
            renderable = renderable.blank_copy(shown)
        for part in super().render(renderable, options):
            yield part if part.control or not _HIDDEN.search(part.text) else Segment(printable(part.text), part.style)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(scrub(text), **options)

    # A reader that leaves early (`| head`) is no failure of the study: 1 would say so.
    def on_broken_pipe(self) -> None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(PIPE_CLOSED)


class PrintableLines(logging.Formatter):
    """Log lines for a terminal, and for a file that is shown on one."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(scrub(super().format(record)))


@dataclass
class Manner:
    """How the command of this process speaks."""

    json: bool = False
    quiet: bool = False
    verbose: bool = False


manner = Manner()
_out = Screen()
_err = Screen(stderr=True)
_nothing = Screen(quiet=True)


def speak(*, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
    """Sets the manner; the log is shown where more is wanted."""
    manner.json, manner.quiet, manner.verbose = json, quiet, verbose
    logger = logging.getLogger(LOGGER)
    for shown in [handler for handler in logger.handlers if handler.name == "screen"]:
        logger.removeHandler(shown)
    if verbose:
        handler = logging.StreamHandler()
        handler.name = "screen"
        handler.setFormatter(PrintableLines("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)


def results() -> Console:
    """For what was asked for."""
    if not manner.json:
        return _out
    return _nothing if manner.quiet else _err


def remarks() -> Console:
    """For what is being done, and for what need not be known."""
    return _nothing if manner.quiet else results()


def warnings() -> Console:
    """For what a user should know before trusting the result."""
    return _nothing if manner.quiet else _err


def errors() -> Console:
    """For what went wrong."""
    return _err


def say(line: str) -> None:
    """What is being done, while it takes a while."""
    remarks().print(f"{line} …", style="dim", highlight=False, soft_wrap=True, markup=False)


def warn(line: str) -> None:
    """A sentence that is no error."""
    warnings().print(line, style="yellow", highlight=False, soft_wrap=True, markup=False)


def answer(document: Mapping[str, Any]) -> None:
    """The one document of a command, where a script asked for it."""
    if manner.json:
        text = json.dumps(strict(document), indent=2, allow_nan=False, ensure_ascii=False)
        # JSON's own spelling of what a terminal would obey: the values stay the same.
        _out.file.write(_HIDDEN.sub(lambda hidden: f"\\u{ord(hidden[0]):04x}", text) + "\n")
        _out.file.flush()


def strict(value: Any) -> Any:
    """As JSON has it: what is not finite is null, a path is a text, numpy's numbers are numbers; without passwords."""
    if isinstance(value, Mapping):
        return {str(key): strict(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [strict(each) for each in value]
    if isinstance(value, Path):
        return strict(os.fsencode(value).decode("utf-8", errors="backslashreplace"))
    if isinstance(value, str):
        return scrub(value)
    if hasattr(value, "item"):
        return strict(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value
