"""Command-line options: those of study settings, generated from the spec, and those that all commands have.

A setting is described once, in `config/study.py`. A command picks the settings that it needs by the name of their flag.
"""

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer

from sca_search.cli.completion import complete_from, run_folders, study_files
from sca_search.config.load import STUDY_FLAGS, Flag
from sca_search.config.names import DATA, LOSSES, METHODS, METRICS, MODELS
from sca_search.config.types import MAX_SEEDS
from sca_search.errors import SpecError
from sca_search.system.console import configure_output

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
    """An option whose help text names its default by itself."""
    return typer.Option(*names, help=text, rich_help_panel=panel, show_default=False, **more)


StudyFile = Annotated[
    Path | None,
    typer.Argument(metavar="STUDY.toml", help="A study file. Flags override it.", autocompletion=study_files),
]
RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="The run folder of a study.", autocompletion=run_folders)
]
TrialOption = Annotated[int | None, option("Number of the trial. Default: the chosen one.")]
_OUTPUT_OPTIONS = {
    "as_json": Annotated[
        bool, option("Print one JSON document to stdout, and messages to stderr.", "--json", panel=_OUTPUT_PANEL)
    ],
    "quiet": Annotated[bool, option("Print only the result and errors.", "--quiet", "-q", panel=_OUTPUT_PANEL)],
    "verbose": Annotated[
        bool, option("Print every log message, and the cause of an error.", "--verbose", "-v", panel=_OUTPUT_PANEL)
    ],
}
OUTPUT_FLAGS = frozenset({"--json", "--quiet", "-q", "--verbose", "-v"})


def study_options(*names: str, panel: str | None = None, **texts: str) -> Callable[[Command], Command]:
    """Add the flags of study settings to a command, which gets their values as the mapping `flags`.

    `texts` replace help texts of single flags; `panel` replaces the panel of all.
    """

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def call(**options: Any) -> None:
            command(flags={name: options.pop(name) for name in names}, **options)

        added = {name: _study_option(name, texts.get(name), panel) for name in names}
        return _with_parameters(call, added, None, without="flags")

    return decorate


def output_options(command: Command) -> Command:
    """Add --json, -q and -v to a command."""

    @functools.wraps(command)
    def call(*, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        if quiet and verbose:
            raise SpecError("--quiet and --verbose cannot be given together")
        configure_output(json=as_json, quiet=quiet, verbose=verbose)
        command(**options)

    return _with_parameters(call, _OUTPUT_OPTIONS, default=False, is_last=True)


def _with_parameters(
    call: Command, added: Mapping[str, Any], default: object, *, without: str = "", is_last: bool = False
) -> Command:
    """Set the signature that typer reads the options from: all are passed by keyword."""
    signature = inspect.signature(call)
    own = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for each in signature.parameters.values()
        if each.name != without
    ]
    new = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, annotation in added.items()
    ]
    parameters = [*own, *new] if is_last else [*new, *own]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.annotation for each in parameters}
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
