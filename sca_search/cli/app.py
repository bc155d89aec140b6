"""The flags that every command has, before or after its name, and the command that is meant where none is named."""

import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from sca_search.config.storage_url import require_addresses_in_place
from sca_search.errors import SpecError
from sca_search.system.console import speak

_PANEL = "Output"
_FLAGS: dict[str, Any] = {
    "as_json": Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON document on stdout, all words on stderr.",
            rich_help_panel=_PANEL,
            show_default=False,
        ),
    ],
    "quiet": Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Only the result and errors.", rich_help_panel=_PANEL, show_default=False),
    ],
    "verbose": Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Every step, and what caused an error.", rich_help_panel=_PANEL, show_default=False
        ),
    ],
}
_NAMES = frozenset({"--json", "--quiet", "-q", "--verbose", "-v"})
# Of the group itself; all others are flags of a command.
_GROUPS_OWN = frozenset({"--install-completion", "--show-completion"})
# In a context's meta: no command was named, so that the next word may still be one.
UNNAMED = "sca_search.unnamed"


def with_manner(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with --json, -q and -v. Typer reads flags from the signature."""

    @functools.wraps(command)
    def called(*args: Any, as_json: bool, quiet: bool, verbose: bool, **options: Any) -> None:
        if quiet and verbose:
            raise SpecError("--quiet and --verbose cannot be given together")
        speak(json=as_json, quiet=quiet, verbose=verbose)
        command(*args, **options)

    signature = inspect.signature(command)
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in _FLAGS.items()
    ]
    called.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    called.__annotations__ = command.__annotations__ | _FLAGS
    return called


class PlainFlags(TyperCommand):
    """A command whose help does not say <bool> behind a flag, which reads as if a value had to follow."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class RunByDefault(TyperGroup):
    """`sca-search --target-sparsity 0.5` is `sca-search run --target-sparsity 0.5`, and `-q show` is `show -q`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # a shell that completes a line wants no sentences
            require_addresses_in_place(args)
        words = list(args)
        first = [words.pop(0) for _ in range(_leading(words))]
        if not words or (words[0] not in self.commands and words[0].partition("=")[0] not in _GROUPS_OWN):
            ctx.meta[UNNAMED] = not words
            words.insert(0, "run")
        rest: list[str] = super().parse_args(ctx, [words[0], *first, *words[1:]])
        return rest


def _leading(words: list[str]) -> int:
    return next((place for place, word in enumerate(words) if word not in _NAMES), len(words))
