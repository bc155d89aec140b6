"""Fuzzes every file reader: `python -m benchmarks.fuzz --cases 100000` writes the table of RESULTS.md.

Each reader runs in its own process, so that its memory can be measured. Readers of a whole page, screen or study get a
fiftieth of the cases unless --all is given, because each file that they read has its own reader as well.
"""

import argparse
import functools
import math
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import report
from tests.support.fuzzing import MOST_MEGABYTES, MOST_SECONDS, Outcomes, Reader, fuzzed
from tests.support.hostile_files import readers

_SECTION = "fuzz"
_FEWER = 50
# In memory if possible: otherwise the disk determines the time.
_SCRATCH = next((path for path in ("/dev/shm",) if Path(path).is_dir()), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="only readers whose names start with this")
    parser.add_argument("--all", action="store_true", help="all cases also for slow readers: hours")
    parser.add_argument("--go-on", action="store_true", help="skip readers that have as many cases in RESULTS.md")
    parser.add_argument("--jobs", type=int, default=1, help="readers in parallel")
    arguments = parser.parse_args()
    every = _names()
    names = [name for name in every if name.startswith(arguments.only)]
    done = _are_done(arguments.cases, all_of_them=arguments.all) if arguments.go_on else set()
    one = functools.partial(_one, cases=arguments.cases, first=arguments.first, all_of_them=arguments.all)
    found: list[Outcomes] = []
    with multiprocessing.get_context("spawn").Pool(arguments.jobs, maxtasksperchild=1) as pool:
        for outcomes in pool.imap_unordered(one, [name for name in names if name not in done]):
            found.append(outcomes)
            print(_row(outcomes), *_kinds(outcomes.crashes), sep="\n  ", flush=True)
            report.write_section(report.RESULTS, _SECTION, _text(found, every))
    sys.exit(0 if all(each.sound for each in found) else 1)


def _are_done(cases: int, *, all_of_them: bool) -> set[str]:
    """Readers whose rows in RESULTS.md have at least as many cases as they would get now."""
    rows = report.read_table(report.RESULTS, _SECTION)
    with _readers() as every:
        needed = {reader.name: _cases_of(reader, cases, all_of_them=all_of_them) for reader in every}
    return {row["reader"] for row in rows if int(row["cases"].replace(",", "")) >= needed.get(row["reader"], math.inf)}


@contextmanager
def _readers() -> Iterator[list[Reader]]:
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as folder:
        yield readers(Path(folder))


def _cases_of(reader: Reader, cases: int, *, all_of_them: bool) -> int:
    return cases if all_of_them or not reader.is_slow else max(1, cases // _FEWER)


def _names() -> list[str]:
    """The fastest first, so that an interrupted run has most of them."""
    with _readers() as every:
        return [reader.name for reader in sorted(every, key=_seconds)]


def _seconds(reader: Reader) -> float:
    reader.read(reader.good)  # one-time setup is not counted
    began = time.process_time()
    for _ in range(5):
        reader.read(reader.good)
    return time.process_time() - began


def _one(name: str, *, cases: int, first: int, all_of_them: bool) -> Outcomes:
    with _readers() as every:
        reader = next(each for each in every if each.name == name)
        return fuzzed(reader, _cases_of(reader, cases, all_of_them=all_of_them), first)


def _kinds(crashes: list[str]) -> list[str]:
    """One example per place of a crash, with the number of similar ones."""
    places = [crash.partition(": ")[2].rpartition(" File ")[2] for crash in crashes]  # without its seed
    kinds = dict(zip(reversed(places), reversed(crashes), strict=True))
    return [f"{crash} ({places.count(place)} similar)" for place, crash in kinds.items()]


def _row(each: Outcomes) -> list[str]:
    counts = (each.cases, each.refused, each.answered, len(each.crashes), each.hangs)
    return [
        each.reader,
        *(f"{count:,}" for count in counts),
        f"{each.slowest_seconds:.2f}",
        f"{each.peak_megabytes:.0f}",
    ]


def _text(found: list[Outcomes], every: list[str]) -> str:
    headings = ["reader", "cases", "rejected", "read", "crashes", "hangs", "slowest, s", "peak memory, MB"]
    rows = report.with_earlier(report.RESULTS, _SECTION, [_row(each) for each in found], sorted(every))
    return (
        "## Fuzzing: corrupt and malicious files\n\n"
        "A reader reads a file or rejects it with one sentence; anything else is a crash, and more than "
        f"{MOST_SECONDS} s of CPU time is a hang. Memory is the increase over the process before reading, at most "
        f"{MOST_MEGABYTES} MB. Readers of a whole page, screen or study may have fewer cases, because each of their "
        "files has its own reader as well.\n\n"
        f"{report.table(headings, rows)}\n\n{len(rows)} of {len(every)} readers. {report.EARLIER}\n\n"
        f"{report.provenance()}"
    )


if __name__ == "__main__":
    main()
