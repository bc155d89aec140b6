"""Tables of the documentation and the code must have the same entries."""

import csv
import dataclasses
import json
import re
from pathlib import Path

from pydantic import BaseModel

from sca_search.config.candidate import Candidate
from sca_search.config.load import FLAGS
from sca_search.config.names import METHODS
from sca_search.config.study import StudySpec
from sca_search.export.latency.model import Calibration
from sca_search.export.metadata import Metadata
from sca_search.runs.trials import COLUMNS, OPTIONAL_COLUMNS
from tests.support.markdown_page import PAGES

FORMATS = "docs/file-formats.md"


def rows_below(heading: str, page: str = FORMATS) -> list[list[str]]:
    """The rows of the first table below a heading, without its head."""
    prose = PAGES[page].prose
    after = prose[prose.index(heading) + 1 :]
    begin = next(place for place, line in enumerate(after) if line.startswith("| ---"))
    rows = []
    for line in after[begin + 1 :]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return rows


def plain(cell: str) -> str:
    return cell.replace("`", "")


def spec_keys(table: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Every key of a study file with its default as TOML."""
    keys: dict[str, str] = {}
    for name, field in table.model_fields.items():
        if isinstance(field.default, BaseModel):
            keys |= spec_keys(type(field.default), f"{prefix}{name}.")
        else:
            keys[prefix + name] = shown(field.default)
    return keys


def shown(default: object) -> str:
    if default is None:
        return ""
    if isinstance(default, tuple):
        return f"[{', '.join(map(shown, default))}]"
    return json.dumps(str(default) if isinstance(default, Path) else default)


def test_table_of_study_keys_matches_the_spec() -> None:
    flags = {key: f"--{flag.replace('_', '-')}" for flag, key in FLAGS.items()}
    # A study without a goal gets this target sparsity; it is not a declared default.
    expected = spec_keys(StudySpec) | {"goal.target_sparsity": "0.5"}
    expected_rows = [[key, default, flags.get(key, "")] for key, default in expected.items()]
    rows = rows_below("## `study.toml`")
    documented = [[plain(cell) for cell in row[:3]] for row in rows]
    assert [row for row in expected_rows if row not in documented] == []  # key, default, flag: missing rows
    assert documented == expected_rows
    assert all(row[3] for row in rows)  # every key has a meaning


def test_table_of_trials_has_every_fixed_column() -> None:
    rows = rows_below("## `trials.csv` and `front.csv`")
    assert [plain(row[0]) for row in rows] == [*COLUMNS, *OPTIONAL_COLUMNS]


def test_table_of_export_facts_has_every_key() -> None:
    rows = rows_below("### `export.json`")
    assert [plain(row[0]) for row in rows] == [field.name for field in dataclasses.fields(Metadata)]


def test_latency_example_has_every_key() -> None:
    blocks = [block.text for block in PAGES[FORMATS].blocks if block.language == "json"]
    tables = [json.loads(text) for text in blocks if "sca-search/latency" in text]
    assert [list(table) for table in tables] == [list(Calibration.model_fields)]
    Calibration.model_validate_json(json.dumps(tables[0]))


def test_tables_name_every_file_and_key_of_a_run(tiny_run: tuple[Path, str]) -> None:
    run, _ = tiny_run
    named = {plain(row[0]) for row in rows_below("## The run folder")}
    files = [str(path.relative_to(run)) for path in run.rglob("*") if path.is_file() and path.name[0] != "."]
    general = {re.sub(r"^candidates/\d{3}/(refit-\d/)?", "candidates/NNN/", file) for file in files}
    assert general - named == set()
    record = json.loads((run / "candidates" / "000" / "candidate.json").read_text())
    rows = rows_below("### `candidate.json`")
    documented = {key for row in rows for key in plain(row[0]).split(", ")}
    assert record.keys() - documented == set()
    with (run / "candidates" / "000" / "history.csv").open(newline="") as file:
        columns = next(csv.reader(file))
    assert [plain(row[0]) for row in rows_below("### `history.csv`")] == columns


def test_table_of_a_candidate_has_every_key() -> None:
    documented = [key for row in rows_below("### `candidate`") for key in plain(row[0]).split(", ")]
    assert sorted(documented) == sorted(Candidate.model_fields)


def test_table_of_methods_matches_the_code() -> None:
    rows = rows_below("## The methods", "docs/comparing-methods.md")
    documented = [(plain(row[0]), plain(row[1]), row[2] == "yes") for row in rows]
    assert documented == [(name, known.weights, known.plans_sparsity) for name, known in METHODS.items()]
    for row, known in zip(rows, METHODS.values(), strict=True):
        assert f"methods/{known.place.split('.')[0]}.py" in row[3]
