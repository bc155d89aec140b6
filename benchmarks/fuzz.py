"""Fuzzes every reader of files: `python benchmarks/fuzz.py --cases 100000` writes the table of RESULTS.md.

Each reader runs in a process of its own, so that its memory is its own. Readers of a whole page, screen or study are
given a fiftieth of the cases: each file that they read has a reader of its own, too.
"""

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import report
from fuzzing import MOST_MEGABYTES, MOST_SECONDS, Outcomes, Reader, fuzzed
from hostile_files import readers

_FEWER = 50
# Where there is one, in memory: a disk would decide how long it takes.
_SCRATCH = next((path for path in ("/dev/shm",) if Path(path).is_dir()), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="only readers whose names begin so")
    parser.add_argument("--kept", type=Path, help="a file of finished readers: the same command goes on after them")
    arguments = parser.parse_args()
    names = [name for name in _names() if name.startswith(arguments.only)]
    context = multiprocessing.get_context("spawn")
    known = _known(arguments.kept)
    for name in [name for name in names if name not in known]:
        with context.Pool(1) as pool:
            known[name] = pool.apply(_one, (name, arguments.cases, arguments.first))
        _keep(arguments.kept, known[name])
        print(_row(known[name]), *known[name].crashes[:5], sep="\n  ", flush=True)
    found = [known[name] for name in sorted(names)]
    if not arguments.only:
        report.write_section(report.RESULTS, "fuzz", _text(found))
    sys.exit(0 if all(each.sound for each in found) else 1)


def _known(kept: Path | None) -> dict[str, Outcomes]:
    if kept is None or not kept.exists():
        return {}
    outcomes = [Outcomes(**json.loads(line)) for line in kept.read_text(encoding="utf-8").splitlines()]
    return {each.reader: each for each in outcomes}


def _keep(kept: Path | None, outcomes: Outcomes) -> None:
    if kept is not None:
        with kept.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(outcomes)) + "\n")


def _names() -> list[str]:
    """The quickest first: a run that is cut short has most of them."""
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as folder:
        return [reader.name for reader in sorted(readers(Path(folder)), key=_seconds)]


def _seconds(reader: Reader) -> float:
    reader.read(reader.good)  # what is made once is not counted
    began = time.process_time()
    for _ in range(5):
        reader.read(reader.good)
    return time.process_time() - began


def _one(name: str, cases: int, first: int) -> Outcomes:
    with tempfile.TemporaryDirectory(dir=_SCRATCH) as folder:
        reader = next(each for each in readers(Path(folder)) if each.name == name)
        return fuzzed(reader, max(1, cases // _FEWER) if reader.is_slow else cases, first)


def _row(each: Outcomes) -> list[str]:
    counts = (each.cases, each.refused, each.answered, len(each.crashes), each.hangs)
    return [
        each.reader,
        *(f"{count:,}" for count in counts),
        f"{each.slowest_seconds:.2f}",
        f"{each.peak_megabytes:.0f}",
    ]


def _text(found: list[Outcomes]) -> str:
    headings = ["reader", "cases", "refused", "read", "crashes", "hangs", "slowest, s", "peak memory, MB"]
    return (
        "## Files that accidents and attackers changed\n\n"
        "A reader answers or refuses in one sentence; anything else is a crash, more than "
        f"{MOST_SECONDS} s of the processor's time is a hang. Memory is above what the process had before, at most "
        f"{MOST_MEGABYTES} MB. Readers of a whole page, screen or study have a fiftieth of the cases: each of their "
        "files has a reader of its own, too.\n\n"
        f"{report.table(headings, [_row(each) for each in found])}\n\n{report.provenance()}"
    )


if __name__ == "__main__":
    main()
