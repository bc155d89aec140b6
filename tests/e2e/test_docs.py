"""The documentation is correct: every block runs, every link has a target, the notebook executes.

By the language of a block: `sh` and `python` run in the order of the page, in one folder and one interpreter per
page; `c` is compiled, `toml` is a study, `json` is parsed, `text` is output. A comment
`<!-- file: NAME -->` directly above a block writes it to that file, which a later command must use.
"""

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer

from sca_search.cli.app import app
from sca_search.config.load import FLAGS, resolve
from tests.support.markdown_page import DOCS, PAGES, ROOT, Block, Page, read_page

RUN_PAGE = ROOT / "tests" / "support" / "run_page.py"
LANGUAGES = {"sh", "python", "c", "toml", "json", "text"}

# Blocks that are not run, by page and first line, with the reason. They are still parsed: commands by the command-line
# parser, Python by its own, with its imports.
_SET_UP = "changes the environment of the tests; .ci/run runs it in a new one"
_SAMPLES = "examples with user-defined names, downloads or hours of training; pages of docs/ run similar ones"
_MACHINES = "needs a shared database; tests/e2e/test_joining.py runs the same with one"
NOT_RUN = {
    ("README.md", "pip install . && sca-search --target-sparsity 0.5"): _SET_UP,
    ("README.md", "pip install '.[test]' && pytest"): _SET_UP,
    ("README.md", "pip install optuna-dashboard"): "installs another project's package, and serves until it is stopped",
    ("README.md", "sca-search --target-sparsity 0.9 --dry-run"): _SAMPLES,
    ("README.md", "sca-search init --data mnist --model lenet --target-sparsity 0.9 --time 1h"): _SAMPLES,
    ("README.md", "sca-search compare --methods all --target-sparsity 0.9 --seeds 3"): _SAMPLES,
    ("README.md", "sca-search dashboard runs/digits-lenet-small-s0.5"): _SAMPLES,
    ("README.md", "sca-search export runs/digits-lenet-small-s0.5"): _SAMPLES,
    ("README.md", "from pathlib import Path"): "needs the reader's network",
    ("README.md", "import sca_search as sca"): "needs the reader's objects; docs/python.md runs it",
    ("README.md", "import sca_search"): "needs the reader's images; quick-start.md runs it",
    ("README.md", "sca-search bench model"): _SAMPLES,
    ("README.md", "sca-search export RUN --activations int8"): _SAMPLES,
    ("README.md", "sca-search calibrate --model resnet20 --data cifar10"): _SAMPLES,
    ("docs/quick-start.md", "python3 -m venv .venv"): _SET_UP,
    ("docs/the-paper.md", "sca-search reproduce 6 --quick --data-dir ~/data"): _SAMPLES,
    ("docs/extending.md", "pip install '.[dev]'"): _SET_UP,
    ("docs/many-machines.md", "export SCA_SEARCH_STORAGE=postgresql://me@db.example/studies"): _MACHINES,
    ("docs/many-machines.md", "#!/bin/bash"): "needs Slurm",
    ("docs/many-machines.md", "sca-search worker digits --artifacts s3://my-bucket/studies --workers 4"): _MACHINES,
}
# Tools of commands on the pages that may not be installed.
NEEDED_TOOLS = ("gcc", "make", "qemu-arm")


def first_command(block: Block) -> str:
    """The first line of a block without its comment."""
    return re.sub(r"\s+# .*", "", block.text.splitlines()[0])


def is_run(name: str, block: Block) -> bool:
    return (name, first_command(block)) not in NOT_RUN


def page_case(name: str) -> Any:
    """A page that runs commands trains, compiles, or at least imports torch: it belongs to the nightly tier."""
    starts = any(block.language in {"sh", "python"} and is_run(name, block) for block in PAGES[name].blocks)
    return pytest.param(name, marks=[pytest.mark.nightly] if starts else [])


# The blocks


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [page_case(name) for name in PAGES])
def test_page_blocks_run_in_order(name: str, tmp_path: Path) -> None:
    require_tools(PAGES[name])
    run_blocks([block for block in PAGES[name].blocks if is_run(name, block)], tmp_path, name)


@pytest.mark.parametrize("name", PAGES)
def test_page_blocks_have_a_known_language(name: str) -> None:
    unknown = [f"{name}:{block.line}: {block.language!r}" for block in PAGES[name].blocks if not is_known(block)]
    assert unknown == []


@pytest.mark.parametrize("name", PAGES)
def test_page_uses_every_file_that_it_shows(name: str) -> None:
    blocks = PAGES[name].blocks
    for place, block in enumerate(blocks):
        later = [each.text for each in blocks[place + 1 :] if each.language in {"sh", "python", "c"}]
        if block.file is not None:
            assert any(block.file in text for text in later), f"{name}:{block.line}: nothing uses {block.file}"


def is_known(block: Block) -> bool:
    return block.language in LANGUAGES


def require_tools(page: Page) -> None:
    commands = " ".join(block.text for block in page.blocks if block.language == "sh")
    missing = [tool for tool in NEEDED_TOOLS if re.search(rf"\b{tool}\b", commands) and shutil.which(tool) is None]
    if missing:
        pytest.skip(f"{', '.join(missing)} is not installed")


def run_blocks(blocks: Sequence[Block], folder: Path, name: str) -> None:
    """Checks the blocks that are only parsed, then runs the others in order."""
    to_run = []
    for block in blocks:
        where = f"{name}:{block.line}"
        if block.file is not None or block.language in {"sh", "python"}:
            to_run.append({"language": block.language, "text": block.text, "file": block.file, "where": where})
        elif block.language == "c":
            call(["gcc", "-std=c99", "-Wall", "-Wextra", "-fsyntax-only", "-xc", "-"], folder, where, block.text)
        elif block.language == "toml":
            check_study(block.text, folder)
        elif block.language == "json":
            json.loads(block.text)
        else:
            assert block.language == "text", f"{where}: unknown language {block.language}"
    if to_run:
        call([sys.executable, str(RUN_PAGE)], folder, name, json.dumps(to_run))


def call(command: list[str], folder: Path, where: str, stdin: str = "") -> None:
    """Runs a command with the package of this checkout and the commands of this Python."""
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        command, cwd=folder, env=environment, input=stdin, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}"


def check_study(text: str, folder: Path) -> None:
    """A study file must be valid."""
    file = folder / "shown-study.toml"
    file.write_text(text, encoding="utf-8")
    resolve(file, {})


# Blocks that are not run


def left_out() -> list[Any]:
    """The blocks that are not run, each with its place as id."""
    return [
        pytest.param(block, id=f"{name}:{block.line}")
        for name, page in PAGES.items()
        for block in page.blocks
        if not is_run(name, block)
    ]


def test_not_run_names_existing_blocks() -> None:
    there = {(name, first_command(block)) for name, page in PAGES.items() for block in page.blocks}
    assert NOT_RUN.keys() - there == set()


@pytest.mark.parametrize("block", left_out())
def test_block_that_is_not_run_is_still_parsed(block: Block, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # paths of study files are relative to it
    if block.language == "python":
        tree = ast.parse(block.text)
        for imported in (node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)):
            exec(compile(ast.Module([imported], []), "<block>", "exec"), {})
        return
    assert block.language == "sh"
    for line in block.text.splitlines():
        for command in line.split("&&"):
            words = shlex.split(command, comments=True)
            if words[:1] == ["sca-search"]:
                read_command(words[1:])


def read_command(arguments: list[str]) -> None:
    """Parses a command like the command line; the run command also resolves its study."""
    group: Any = typer.main.get_command(app)
    with group.make_context("sca-search", list(arguments)) as outer:
        name, command, rest = group.resolve_command(outer, [*outer._protected_args, *outer.args])
        with command.make_context(name, rest, parent=outer) as inner:
            if name == "run":
                flags = {key: value for key, value in inner.params.items() if key in FLAGS}
                resolve(inner.params["study"], flags)


@pytest.mark.parametrize("name", PAGES)
def test_page_names_only_existing_flags(name: str) -> None:
    group: Any = typer.main.get_command(app)
    options = [each for command in (group, *group.commands.values()) for each in command.params]
    known = {"--help"} | {flag for each in options for flag in (*each.opts, *each.secondary_opts)}
    spans = re.findall(r"`([^`]+)`", "\n".join(PAGES[name].prose))
    # Other programs have their own flags.
    ours = [span for span in spans if not span.startswith("python ")]
    named = {flag for span in ours for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span)}
    assert named - known == set()


# Links


@pytest.mark.parametrize(
    "name", [*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "dashboards/README.md", "benchmarks/RESULTS.md"]
)
def test_page_links_have_targets(name: str) -> None:
    page = read_page(ROOT / name)
    assert [link for link in page.links if not has_target(page, link)] == []


def has_target(page: Page, link: str) -> bool:
    """URLs are not requested: tests are offline."""
    if re.match(r"[a-z]+:", link):
        return link.startswith("https://")
    path, _, anchor = link.partition("#")
    target = (page.path.parent / path).resolve() if path else page.path
    if not target.exists():
        return False
    return not anchor or (target.suffix == ".md" and anchor in read_page(target).anchors)


def test_index_names_every_page() -> None:
    linked = {link.partition("#")[0] for link in PAGES["docs/README.md"].links}
    pages = {path.name for path in DOCS.iterdir() if path.suffix in {".md", ".ipynb"} and path.name != "README.md"}
    assert pages - linked == set()


def test_map_names_every_sub_package() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    lines = [
        line for line in readme.partition("## Map")[2].partition("\n## ")[0].splitlines() if line.startswith("| `")
    ]
    named = {name.rstrip("/") for line in lines for name in re.findall(r"`([a-z_]+/?)`", line.split("|")[1])}
    package = ROOT / "sca_search"
    packages = {path.stem for path in package.glob("[a-z]*.py")} | {
        path.parent.name for path in package.glob("*/__init__.py")
    }
    assert packages == named - {"studies", "dashboards", "docs", "benchmarks", "tests"}


def test_contributing_names_existing_files() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:sca_search|tests|docs|dashboards)/[\w./-]+)`", text)
    assert paths
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []


# The notebook

EXECUTE = """
import sys

import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=500, kernel_name="python3").execute()
"""


@pytest.mark.nightly
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", sorted(DOCS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_executes(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    call([sys.executable, "-c", EXECUTE, str(path)], tmp_path, path.name)


@pytest.mark.parametrize("path", sorted(DOCS.glob("*.ipynb")), ids=lambda path: path.name)
def test_notebook_has_no_outputs(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    with_outputs = [cell["id"] for cell in cells if cell.get("outputs") or cell.get("execution_count") is not None]
    assert with_outputs == []


# Tests of the harness


def page_of(folder: Path, text: str) -> Page:
    path = folder / "page.md"
    path.write_text(text, encoding="utf-8")
    return read_page(path)


def test_read_page_returns_language_text_file_and_line(tmp_path: Path) -> None:
    page = page_of(tmp_path, "# A\n\n<!-- file: main.c -->\n```c\nint x;\n```\n\n```sh\ntrue\n```\n")
    assert page.blocks == (Block(4, "c", "int x;\n", "main.c"), Block(8, "sh", "true\n"))
    assert page.prose == ("# A", "", "<!-- file: main.c -->", "")


@pytest.mark.parametrize(
    "text", ["```sh\ntrue\n", "  ```sh\n  true\n  ```\n", "~~~sh\ntrue\n~~~\n", "```sh\n```c\n```\n", "````md\n````\n"]
)
def test_read_page_rejects_fences_that_could_hide_a_block(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"page\.md:\d"):
        page_of(tmp_path, text)


def test_page_anchors_are_those_of_github(tmp_path: Path) -> None:
    text = "# What does `adjusted` mean?\n## α(s) = 2 tanh²\n## A [link](b.md), twice\n## A link, twice\n"
    assert page_of(tmp_path, text).anchors == {
        "what-does-adjusted-mean",
        "αs--2-tanh²",
        "a-link-twice",
        "a-link-twice-1",
    }


@pytest.mark.parametrize(
    ("link", "exists"),
    [
        ("page.md", True),
        ("#here", True),
        ("page.md#here", True),
        ("#gone", False),
        ("gone.md", False),
        ("file:x", False),
    ],
)
def test_has_target_checks_files_and_headings(link: str, exists: bool, tmp_path: Path) -> None:
    assert has_target(page_of(tmp_path, "# Here\n"), link) is exists


def test_page_links_are_found_over_lines_and_not_in_code(tmp_path: Path) -> None:
    page = page_of(tmp_path, "[a\nb](one.md) `[c](two.md)`\n\n![p](three.png)\n\n```text\n[d](four.md)\n```\n")
    assert page.links == ["one.md", "three.png"]


@pytest.mark.parametrize(
    ("language", "text"),
    [("sh", "false\ntrue\n"), ("python", "1 / 0\n"), ("c", "int x\n"), ("json", "{\n"), ("toml", "seed = -1\n")],
)
def test_run_blocks_fails_if_a_block_fails(language: str, text: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"exit code|Expecting|seed"):
        run_blocks([Block(1, language, text)], tmp_path, "page.md")


@pytest.mark.parametrize("language", ["", "bash", "console", "python3"])
def test_blocks_of_other_languages_are_unknown(language: str) -> None:
    assert not is_known(Block(1, language, "x\n"))


@pytest.mark.parametrize("arguments", [["--target-sparsty", "0.5"], ["--target-sparsity", "2"], ["export"]])
def test_read_command_rejects_invalid_commands(arguments: list[str]) -> None:
    with pytest.raises(Exception, match=r"No such option|below 1|run_folder"):
        read_command(arguments)
