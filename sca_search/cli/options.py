"""Command-line options, generated from the spec or common to all commands; exit codes, and errors as one sentence.

A setting is described once, in `config/study.py`. A command picks the settings that it needs by the name of their flag.
"""

import errno
import functools
import inspect
import logging
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from sca_search.cli.completion import complete_from, run_folders, study_files
from sca_search.config.load import STUDY_FLAGS, Flag
from sca_search.config.names import DATA, LOSSES, METHODS, METRICS, MODELS
from sca_search.config.types import MAX_SEEDS
from sca_search.errors import ScaError, SpecError
from sca_search.system.console import LOGGER, PIPE_CLOSED, configure_output, errors, output_mode, print_json, scrub

Command = Callable[..., None]

RUN_PANEL, _OUTPUT_PANEL = "Run", "Output"
# By the table that a setting belongs to.
_PANELS = {
    "goal": "Goal",
    "data": "Data and network",
    "model": "Data and network",
    "search": "Search",
    "train": "Training",
}
_NAMES: Mapping[str, Iterable[str]] = {
    "data": DATA,
    "model": MODELS,
    "method": METHODS,
    "loss": sorted({name for of_kind in LOSSES.values() for name in of_kind}),
    "metric": sorted({name for of_kind in METRICS.values() for name in of_kind}),
}
_TYPES = {"float": float, "str": str}


def option(text: str, *names: str, panel: str | None = None, **more: Any) -> Any:
    """An option whose help text already states its default."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


def run_argument(text: str) -> Any:
    """A run folder, or several."""
    return typer.Argument(metavar="RUN", help=text, autocompletion=run_folders)


StudyFile = Annotated[
    Path | None,
    typer.Argument(metavar="STUDY.toml", help="A study file. Flags override it.", autocompletion=study_files),
]
RunArgument = Annotated[Path, run_argument("The run folder of a study.")]
TrustOption = Annotated[
    bool,
    option("Accept code that the study names: its own data, network, loss or metric.", "--trust"),
]
TrialOption = Annotated[int | None, option("Number of the trial. Default: the chosen one.")]
_OUTPUT_OPTIONS = {
    "as_json": ("Print one JSON document to stdout, and messages to stderr.", "--json"),
    "quiet": ("Print only the result and errors.", "--quiet", "-q"),
    "verbose": ("Print every log message, and the cause of an error.", "--verbose", "-v"),
}
OUTPUT_FLAGS = frozenset(flag for _, *flags in _OUTPUT_OPTIONS.values() for flag in flags)


def study_options(*names: str, panel: str | None = None, **texts: str) -> Callable[[Command], Command]:
    """Add the flags of study settings to a command, which gets their values as the mapping `flags`.

    `texts` replace help texts of single flags; `panel` replaces the panel of all.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(**options: Any) -> None:
            command(flags={name: options.pop(name) for name in names}, **options)

        added = {name: _study_option(name, texts.get(name), panel) for name in names}
        own = [each for each in inspect.signature(call).parameters.values() if each.name != "flags"]
        return _with_signature(call, [*_parameters(added, None), *own])

    return decorate


def output_options(command: Command) -> Command:
    """Add --json, -q and -v to a command."""

    @functools.wraps(command)
    def call(*, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        if quiet and verbose:
            raise SpecError("--quiet and --verbose cannot be given together")
        configure_output(json=as_json, quiet=quiet, verbose=verbose)
        command(**options)

    own = inspect.signature(call).parameters.values()
    added = {name: Annotated[bool, option(*each, panel=_OUTPUT_PANEL)] for name, each in _OUTPUT_OPTIONS.items()}
    return _with_signature(call, [*own, *_parameters(added, default=False)])


def _parameters(annotations: Mapping[str, Any], default: object) -> list[inspect.Parameter]:
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=default, annotation=each) for name, each in annotations.items()]


def _with_signature(call: Command, parameters: Iterable[inspect.Parameter]) -> Command:
    """Set the signature that typer reads the options from: all are passed by keyword."""
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    call.__signature__ = inspect.Signature(named)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in named}
    return call


def _study_option(name: str, text: str | None, panel: str | None) -> Any:
    flag = STUDY_FLAGS[name]
    value, choices = _value_type(flag), _NAMES.get(name) or _choices(flag.field.annotation)
    more = {"autocompletion": complete_from(choices)} if choices else {}
    # A switch that is on by default has a --no- form, one that is off has none.
    names = (f"--{name.replace('_', '-')}",) if value is bool and flag.field.default is False else ()
    shown = panel or _PANELS.get(flag.key.partition(".")[0], RUN_PANEL)
    return Annotated[value | None, option(text or flag.help, *names, panel=shown, **more)]


def _value_type(flag: Flag) -> Any:
    """The type that the command line parses: a number, a switch or a path; a string for everything else."""
    extra = flag.field.json_schema_extra
    if isinstance(extra, dict) and extra["kind"]:
        return _TYPES[str(extra["kind"])]
    annotation = flag.field.annotation
    while get_origin(annotation) in {Annotated, Union, UnionType}:
        annotation = next(part for part in get_args(annotation) if part is not NoneType)
    return annotation if annotation in {bool, int, float, Path} else str


def _choices(annotation: Any) -> tuple[str, ...]:
    """The values of a Literal, also of an optional one."""
    parts = get_args(annotation)
    if get_origin(annotation) is Literal:
        return tuple(parts)
    return next((found for part in parts if (found := _choices(part))), ()) if get_origin(annotation) else ()


def check_seeds(seeds: int) -> int:
    """Reject a number of seeds that is out of range."""
    if not 1 <= seeds <= MAX_SEEDS:
        raise SpecError(f"--seeds must be from 1 to {MAX_SEEDS:,}, got {seeds}")
    return seeds


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
# A full or read-only disk, or an invalid path: reported as invalid input, wherever it was raised.
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
