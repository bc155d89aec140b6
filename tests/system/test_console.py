"""What a script reads, what -q leaves and what -v adds."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.table import Table

from sca_search.cli.app import app
from sca_search.system.console import SafeConsole, configure_output, jsonable, print_json, printable
from sca_search.system.machine import __version__


@pytest.fixture(autouse=True)
def usual_manner():
    yield
    configure_output()


def test_jsonable_has_no_nan_and_no_infinity() -> None:
    given = {"a": math.nan, 1: (math.inf, -math.inf, 0.5), "b": Path("x/y"), "c": np.float32(0.25), "d": np.int64(3)}
    assert jsonable(given) == {"a": None, "1": [None, None, 0.5], "b": "x/y", "c": 0.25, "d": 3}


def test_jsonable_escapes_a_path_that_is_not_unicode() -> None:
    assert jsonable(Path(b"a\xff".decode("utf-8", "surrogateescape"))) == "a\\xff"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred", "\\x1b[31mred"),
        ("\x9b2J", "\\x9b2J"),
        ("\u202eevil\u2066", "\\u202eevil\\u2066"),
        ("half \ud800", "half \\ud800"),
        ("\x00\x07\r\x7f", "\\x00\\x07\\r\\x7f"),
        ("é ☃ e\u0301 \t 100 % [bold] :smile:", "é ☃ e\u0301 \t 100 % [bold] :smile:"),
    ],
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_the_console_prints_text_without_markup_and_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("\x1b[1m", "[/red]", title="\u202e[b]")
    table.add_row("[/x]", "\x1b]0;title\x07")
    screen = SafeConsole(width=80)
    screen.print(table)
    screen.print("[/red] :smile: \x1b[2J")
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "\u202e" not in printed
    assert "[/red] :smile: \\x1b[2J\n" in printed
    assert "[/x]" in printed


def test_json_output_escapes_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    configure_output(json=True)
    print_json({"name": "\x1b[31m\x9b\u202e\ud800 é"})
    printed = capsys.readouterr().out
    assert json.loads(printed) == {"name": "\x1b[31m\x9b\u202e\ud800 é"}
    assert not set(printed) & set("\x1b\x9b\u202e\ud800")


def test_json_is_printed_only_if_requested(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"a": 1})
    assert capsys.readouterr().out == ""


def test_every_command_has_the_three_flags_in_its_help(run) -> None:
    commands = [command.name for command in app.registered_commands]
    assert {"run", "show", "init", "export", "verify", "bench", "check", "calibrate"} <= set(commands)
    for name in commands:
        text = run(str(name), "--help").stdout
        assert all(flag in text for flag in ("--json", "--quiet", "-q", "--verbose", "-v")), name


@pytest.mark.parametrize(
    "order", [("show", "RUN", "--json"), ("--json", "show", "RUN"), ("-q", "--json", "show", "RUN")]
)
def test_show_gives_a_script_the_study_whatever_the_order(
    run, tiny_run: tuple[Path, str], order: tuple[str, ...]
) -> None:
    folder = tiny_run[0]
    outcome = run(*(str(folder) if word == "RUN" else word for word in order))
    assert outcome.returncode == 0
    document = json.loads(outcome.stdout, parse_constant=pytest.fail)
    summary = json.loads((folder / "summary.json").read_text())
    assert document["run"] == str(folder)
    assert document["goal"] == "target sparsity 0.5"
    assert document["states"] == {"complete": 3}
    assert document["chosen"] == summary["chosen"]["trial"]
    assert document["summary"] == summary
    assert {row["trial"] for row in document["front"]} <= {0, 1, 2}
    assert all(Path(path).is_file() for path in document["files"].values())
    assert set(document["files"]) == {"dashboard", "log", "trials", "front", "model"}
    assert ("Pareto front" in outcome.stderr) == ("-q" not in order)


def test_every_key_of_a_study_and_a_plan_is_documented(run, tiny_run: tuple[Path, str]) -> None:
    text = (Path(__file__).parents[2] / "docs" / "commands.md").read_text()
    study = json.loads(run("show", "--json", str(tiny_run[0])).stdout)
    planned = json.loads(run("--dry-run", "--json").stdout)
    for key in (*study, *study["files"], *planned, *planned["layers"][0]):
        assert f"`{key}`" in text, key


def test_version_as_text_and_json(run) -> None:
    assert run("--version").stdout == f"sca-search {__version__}\n"
    assert json.loads(run("--version", "--json").stdout) == {"version": __version__}


def test_quiet_leaves_the_chosen_model_and_where_it_is(run, tiny_run: tuple[Path, str]) -> None:
    lines = run("show", "-q", str(tiny_run[0])).stdout.splitlines()
    assert [line.split(":")[0].split(" accuracy")[0] for line in lines] == [
        "Chosen",
        "Refits",
        "Test",
        "Run",
        "Dashboard",
        "Model",
        "To use it",
    ]


def test_quiet_and_verbose_together_are_rejected(run, tmp_path: Path) -> None:
    outcome = run("show", "-q", "-v", str(tmp_path))
    assert (outcome.returncode, outcome.stderr) == (2, "--quiet and --verbose cannot be given together\n")


def test_dry_run_gives_a_script_layers_and_epochs(run) -> None:
    outcome = run("--dry-run", "--json", "--trials", "4", "--refits", "1", "--target-sparsity", "0.9")
    document = json.loads(outcome.stdout)
    assert document["epochs"] == 30 + 5 * 25  # the dense warm start, then 4 trials and 1 refit of 20 + 5
    assert [layer["layer"] for layer in document["layers"] if layer["ternary"]] == ["conv2", "fc1"]
    assert document["planned_sparsities"][::2] == [0.9, 0.9]
    assert document["study"]["search"]["trials"] == 4


@pytest.mark.e2e
def test_export_verify_and_page_each_give_one_document(run, tiny_run: tuple[Path, str], tmp_path: Path) -> None:
    exported = run("export", str(tiny_run[0]), "--format", "packed", "--out", "model", "--seconds", "1", "--json")
    document = json.loads(exported.stdout)
    assert exported.returncode == 0
    assert (document["folder"], document["verification"]["holds"]) == ("model", True)
    assert "model.safetensors" in document["files"]
    assert all(Path("model", name).is_file() for name in document["files"])
    verified = json.loads(run("verify", "model", "--seconds", "1", "--json").stdout)
    assert verified["holds"] is True
    assert {"file", "what", "found", "holds"} == verified["checks"][0].keys()
    page = run("dashboard", str(tiny_run[0]), "--out", "page.html", "--no-open", "--json")
    assert json.loads(page.stdout) == {"page": "page.html"}
    drawn = json.loads(run("features", str(tiny_run[0]), "--out", "maps.png", "--json").stdout)
    assert drawn["picture"] == "maps.png"
    assert {"layer", "ternary", "cka"} == drawn["layers"][0].keys()
