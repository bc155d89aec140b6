"""Runs the blocks of a documentation page in order, in one interpreter: torch is imported once per page.

Reads a JSON list of blocks from standard input. A block with a file name is written to that file. `python` blocks run
in a fresh namespace; `sh` blocks that only call sca-search run through its main function, all others in bash. Exits
with 1 at the first block that fails.
"""

import json
import re
import shlex
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from hypothesis import settings

from sca_search.cli.app import main as sca_search

# With any of these outside of quotes a line needs a shell.
_SHELL = re.compile(r"[|&;<>$`*?~(){}]")


def plain_commands(text: str) -> list[list[str]] | None:
    """The arguments of each sca-search command of a block; None if the block needs a shell."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        if _SHELL.search(re.sub(r"'[^']*'|\"[^\"$`]*\"", "", line.partition(" #")[0])):
            return None
        words = shlex.split(line, comments=True)
        if words and words[0] != "sca-search":
            return None
        commands += [words[1:]] if words else []
    return commands


def run_command(arguments: list[str]) -> int:
    """The exit code of the command."""
    sys.argv = ["sca-search", *arguments]
    try:
        sca_search()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def run_block(language: str, text: str, file: str | None) -> int:
    if file is not None:
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text(text, encoding="utf-8")
        return 0
    if language == "python":
        exec(compile(text, "<block>", "exec"), {"__name__": "__main__"})
        return 0
    commands = plain_commands(text)
    if commands is None:
        return subprocess.run(["bash", "-euo", "pipefail", "-c", text], check=False).returncode
    return next((code for code in map(run_command, commands) if code), 0)


def main(blocks: list[dict[str, Any]]) -> int:
    settings.register_profile("page", deadline=None)  # the time of an example depends on the load of the machine
    settings.load_profile("page")
    sys.path.insert(0, "")  # as `python -c` does: a page's own modules are in its folder
    for block in blocks:
        try:
            code = run_block(block["language"], block["text"], block["file"])
        except Exception:
            traceback.print_exc()
            code = 1
        if code:
            print(f"{block['where']}: exit code {code}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(json.load(sys.stdin)))
