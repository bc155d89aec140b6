"""Injects every fault repeatedly into real studies and counts lost work; writes the table of RESULTS.md.

    python -m benchmarks.faults --times 20
    python -m benchmarks.faults --times 2 --only "two commands"

The faults are defined in tests/support/faults.py; a real PostgreSQL server is started. Counts that exist below --cells
are not measured again; rows of faults that --only does not select are left unchanged.
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
# After this many faults a new study is started.
_FAULTS_PER_STUDY = 10


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
                        inject(Path(folder) / "case", min(_FAULTS_PER_STUDY, arguments.times - total.times), server)
                    )
                write_json_atomic(_cell(arguments.cells, name), asdict(total))
            print(" · ".join(_row(name, total)), flush=True)
            report.write_section(report.RESULTS, _SECTION, text_of(found))
    sys.exit(0 if all(each.lost == each.twice == 0 for each in found.values()) else 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--only", default="", help="only faults whose names contain this")
    parser.add_argument("--cells", type=Path, default=Path("faults-cells"), help="where intermediate counts are stored")
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
        "Real studies of digits with trials of a few seconds, a heartbeat every half second and a checkpoint every "
        "epoch. Recovered means: the trial of a dead worker or a lost machine is continued by another one from its "
        "last checkpoint; a study whose only process was killed has saved more after --resume; a stopped or rejected "
        "command has ended cleanly; a trial has ended after the database came back or the clock was changed; a "
        "candidate with a corrupt checkpoint has started again; a trial beyond its limits has been ended; a candidate "
        "has been completed after a suspended worker went on; a study, export or calibration whose command was killed, "
        "or a candidate whose files were lost, has been made again. The time "
        f"includes importing torch, which takes seconds. {report.EARLIER}\n\n{report.provenance()}"
    )


if __name__ == "__main__":
    main()
