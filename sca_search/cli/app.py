"""The command line: all commands, and `main`. It must not import torch: modules that train are imported inside the
commands."""

import functools
import inspect
import io
import itertools
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from sca_search.cli.compare import compare_command
from sca_search.cli.completion import NO_COMMAND
from sca_search.cli.dashboard import dashboard_command, features_command
from sca_search.cli.export import bench_command, calibrate_command, check_command, export_command, verify_command
from sca_search.cli.init import init_command
from sca_search.cli.options import EXIT_CODES, OUTPUT_FLAGS, Command, exit_code_of, output_options
from sca_search.cli.reproduce import reproduce_command
from sca_search.cli.rerun import rerun_command
from sca_search.cli.run import run_command, show_command
from sca_search.cli.worker import worker_command
from sca_search.config.storage_url import require_addresses_in_place
from sca_search.system.console import configure_output

# Options of the group itself; all others belong to a command.
_GROUP_OPTIONS = frozenset({"--install-completion", "--show-completion"})
# Usage -> command; the first word is its name.
_COMMANDS: dict[str, Command] = {
    "show RUN": show_command,
    "dashboard RUN": dashboard_command,
    "features RUN": features_command,
    "export RUN": export_command,
    "verify DIR": verify_command,
    "bench DIR": bench_command,
    "check DIR": check_command,
    "calibrate --model NAME --data NAME": calibrate_command,
    "init --time 20m": init_command,
    "compare --methods all": compare_command,
    "reproduce 6 --quick": reproduce_command,
    "worker STUDY --storage postgresql://…": worker_command,
    "rerun RUN --trial 3": rerun_command,
}


class PlainFlags(TyperCommand):
    """A command whose help omits <bool> after a switch, because a switch takes no value."""

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False):
                param.metavar = ""
        return params


class RunByDefault(TyperGroup):
    """`sca-search --target-sparsity 0.5` is `sca-search run --target-sparsity 0.5`, and `-q show` is `show -q`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # shell completion must not print errors
            require_addresses_in_place(args)
        first = list(itertools.takewhile(OUTPUT_FLAGS.__contains__, args))
        words = args[len(first) :]
        if not words or (words[0] not in self.commands and words[0].partition("=")[0] not in _GROUP_OPTIONS):
            ctx.meta[NO_COMMAND] = not words
            words.insert(0, "run")
        rest: list[str] = super().parse_args(ctx, [words[0], *first, *words[1:]])
        return rest


def _run_help() -> str:
    """The help of `run`, which is also the help of the program: options, other commands and exit codes."""
    commands = [f"`sca-search {usage}`  {inspect.getdoc(command)}" for usage, command in _COMMANDS.items()]
    return "\n\n".join(
        [
            inspect.getdoc(run_command) or "",
            "**Other commands**",
            *(line.partition("\n")[0] for line in commands),
            "`sca-search --install-completion`  Install shell completion of commands, flags, names and run folders.",
            "**Exit codes**: " + "; ".join(f"{code} {meaning}" for code, meaning in EXIT_CODES.items()),
        ]
    )


app = typer.Typer(cls=RunByDefault, rich_markup_mode="markdown", pretty_exceptions_enable=False)
app.command("run", cls=PlainFlags, help=_run_help())(output_options(run_command))
for _usage, _command in _COMMANDS.items():
    app.command(_usage.partition(" ")[0], cls=PlainFlags)(output_options(_command))


def main() -> NoReturn:
    """The console script: invalid input gives one sentence and exit code 2, never a traceback."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # help texts hold characters that not every encoding has
    configure_output(json="--json" in sys.argv[1:])  # for errors before the options are parsed
    sys.exit(exit_code_of(functools.partial(app, standalone_mode=False)))
