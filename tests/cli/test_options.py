"""Options generated from the fields of the study: names, types, panels, help and values."""

import inspect
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

from sca_search.cli.app import app
from sca_search.cli.options import output_options, study_options
from sca_search.cli.run import run_command
from sca_search.config.load import STUDY_FLAGS

GROUP: Any = typer.main.get_command(app)


def options_of(command: str) -> dict[str, Any]:
    return {param.name: param for param in GROUP.commands[command].params if param.opts[0].startswith("-")}


def test_run_has_every_flag_of_a_study_with_its_help() -> None:
    options = options_of("run")
    for name, flag in STUDY_FLAGS.items():
        assert options[name].opts == [f"--{name.replace('_', '-')}"]
        assert options[name].help == flag.help
        assert options[name].default is None  # a flag that is not set leaves the study file as it is


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("target_sparsity", float),
        ("strength", float),
        ("trials", int),
        ("data_dir", Path),
        ("weights", Path),
        ("time_budget", str),
        ("skip", str),
        ("form", str),
        ("front", bool),
    ],
)
def test_type_of_an_option_is_that_of_its_field(name: str, kind: type) -> None:
    annotation, *_ = get_args(inspect.signature(run_command).parameters[name].annotation)
    assert annotation == kind | None


def test_switch_that_is_on_by_default_can_be_switched_off() -> None:
    options = options_of("run")
    assert options["grid"].secondary_opts == ["--no-grid"]
    assert options["front"].secondary_opts == []


@pytest.mark.parametrize(
    ("name", "panel"),
    [
        ("max_kb", "Goal"),
        ("data", "Data and network"),
        ("model", "Data and network"),
        ("allocation", "Search"),
        ("batch", "Training"),
        ("seed", "Run"),
    ],
)
def test_panel_follows_from_the_table_of_the_study(name: str, panel: str) -> None:
    assert options_of("run")[name].rich_help_panel == panel


def test_help_names_the_default_once() -> None:
    for name, flag in STUDY_FLAGS.items():
        assert flag.help.count("Default") <= 1, name
    assert STUDY_FLAGS["epochs"].help.endswith("Default: 20.")
    assert STUDY_FLAGS["grid"].help.endswith("Default: on.")
    assert STUDY_FLAGS["allocation"].help.endswith("Default: 1.")


@pytest.mark.parametrize("command", ["init", "compare", "calibrate", "reproduce"])
def test_other_commands_pick_options_of_a_study(command: str) -> None:
    shared = options_of(command).keys() & STUDY_FLAGS.keys()
    assert {"data_dir"} <= shared
    differing = {name for name in shared if options_of(command)[name].help != STUDY_FLAGS[name].help}
    own = {
        "init": {"out"},
        "compare": {"out", "seed", "target_sparsity", "trials"},
        "calibrate": set(),
        "reproduce": {"epochs", "out"},
    }
    assert differing == own[command]


def test_command_gets_the_flags_as_one_mapping() -> None:
    received: list[object] = []

    @output_options
    @study_options("trials", "data_dir", "front", trials="Another text.")
    def command(flags: dict[str, Any], own: int = 1) -> None:
        received.extend([flags, own])

    small = typer.Typer()
    small.command()(command)
    result = CliRunner().invoke(small, ["--trials", "3", "--front", "--own", "2", "--data-dir", "x"])
    assert result.exit_code == 0, result.output
    assert received == [{"trials": 3, "data_dir": Path("x"), "front": True}, 2]
    assert "Another text." in CliRunner().invoke(small, ["--help"]).output
