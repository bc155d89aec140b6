"""Injects every fault many times into real studies and counts: `python -m benchmarks.faults` writes its table.

    python -m benchmarks.faults --times 20
    python -m benchmarks.faults --times 2 --only "two commands"

What is done is in tests/faults.py; PostgreSQL is a real one, started here. A fault's count that is there already
(--cells) is not taken again; rows of faults that are not asked for (--only) stay as they were written.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

from benchmarks import report
from sca_search.system.files import write_json_atomic
from tests.support.faults import FAULTS, Injected
from tests.support.postgres import running_server

_SECTION = "faults"
# A study is done with after so many faults, and another is begun.
_MOST_IN_A_STUDY = 10


def main() -> None:
    arguments = _arguments()
    arguments.cells.mkdir(parents=True, exist_ok=True)
    found: dict[str, Injected] = {}
    with running_server() as server:
        for name, inject in FAULTS.items():
            if arguments.only not in name:
                continue
            total = found[name] = _known(arguments.cells, name)
            while total.times < arguments.times:
                with tempfile.TemporaryDirectory(prefix="sca-search-faults-") as folder:
                    total.add(
                        inject(Path(folder) / "case", min(_MOST_IN_A_STUDY, arguments.times - total.times), server)
                    )
                write_json_atomic(_cell(arguments.cells, name), asdict(total))
            print(" · ".join(_row(name, total)), flush=True)
            report.write_section(report.RESULTS, _SECTION, text_of(found))
    sys.exit(0 if all(each.lost == each.twice == 0 for each in found.values()) else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--only", default="", help="only faults with this in their names")
    parser.add_argument("--cells", type=Path, default=Path("faults-cells"), help="where counts are kept on the way")
    return parser.parse_args()


def _cell(folder: Path, name: str) -> Path:
    return folder / f"{list(FAULTS).index(name):02d}.json"


def _known(folder: Path, name: str) -> Injected:
    path = _cell(folder, name)
    return Injected(**json.loads(path.read_text())) if path.exists() else Injected()


def _row(name: str, found: Injected) -> list[str]:
    middle, worst = statistics.median(found.seconds), max(found.seconds)
    return [name, str(found.times), str(found.lost), str(found.twice), f"{middle:.1f} ({worst:.1f})"]


def text_of(found: dict[str, Injected]) -> str:
    headings = ["fault", "times", "candidates lost", "counted twice", "seconds to recover, median (worst)"]
    measured = [_row(name, each) for name, each in found.items()]
    rows = report.with_earlier(report.RESULTS, _SECTION, measured, FAULTS)
    return (
        f"## Faults\n\n{report.table(headings, rows)}\n\n{len(rows)} of {len(FAULTS)} faults. "
        "Real studies of digits, whose trials take seconds; a heart that beats every half second, and a checkpoint an "
        "epoch. Recovered: what a dead worker or a lost machine trained is trained by another, from its last "
        "checkpoint; a study whose only process was killed has kept more after --resume; a stopped or refused command "
        "has ended in order; a trial has ended after the database came back "
        "or the clock was moved; a candidate with a damaged checkpoint has begun again; a trial beyond its limits has "
        f"been ended. Processes import torch on the way, which takes seconds. {report.EARLIER}\n\n{report.provenance()}"
    )


if __name__ == "__main__":
    main()
