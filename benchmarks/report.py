"""Writes results to RESULTS.md and the README, one marked section per program."""

import datetime
import platform
import re
import shlex
import sys
from collections.abc import Iterable
from pathlib import Path

from sca_search.system.machine import processor, usable_cores, versions

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
README = ROOT / "README.md"


def write_section(file: Path, name: str, text: str) -> None:
    """Writes `text` between the markers of that name; appends the markers if they are missing."""
    begin, end = f"<!-- {name}: written by the program named below -->", f"<!-- end of {name} -->"
    section = f"{begin}\n{text.strip()}\n{end}"
    old = file.read_text(encoding="utf-8") if file.exists() else "# Results\n"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    new = pattern.sub(lambda _: section, old) if pattern.search(old) else f"{old.rstrip()}\n\n{section}\n"
    file.write_text(new, encoding="utf-8")


def provenance() -> str:
    """Command, date, machine and versions, as needed to repeat a measurement."""
    used = ", ".join(f"{name} {version}" for name, version in versions().items())
    # Local paths mean nothing to others.
    arguments = ["PATH" if Path(argument).is_absolute() else argument for argument in sys.argv[1:]]
    command = shlex.join(["python", "-m", f"benchmarks.{Path(sys.argv[0]).stem}", *arguments])
    return (
        f"`{command}`  \n{datetime.date.today()}, {processor()}, {usable_cores()} cores, "
        f"Python {platform.python_version()}, {used}"
    )


def table(headings: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def read_table(file: Path, name: str) -> list[dict[str, str]]:
    """The first table of a section, one dictionary by heading per row; empty if there is none."""
    begin, end = f"<!-- {name}: written by", f"<!-- end of {name} -->"
    section = file.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0]
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    headings, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines] or [[], []]
    return [dict(zip(headings, row, strict=True)) for row in rows if len(row) == len(headings)]


EARLIER = "Rows that the command below did not measure were written by an earlier run of the same program."


def with_earlier(file: Path, name: str, rows: list[list[str]], order: Iterable[str]) -> list[list[str]]:
    """Rows in the given order of their first cells; missing rows are copied from the existing section.

    This allows a table to be measured in parts.
    """
    written = [list(line.values()) for line in read_table(file, name)]
    known = {row[0]: row for row in [*written, *rows]}
    return [known[first] for first in order if first in known]
