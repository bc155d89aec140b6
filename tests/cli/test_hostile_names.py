"""Names and values that a study file or a model brings: none leads out of a folder, none ends a C string."""

import json
import shutil
import time
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from sca_search.config.load import resolve
from sca_search.errors import ExportError, SpecError
from sca_search.export.graph.records import INPUT, Graph, Linear, TestVectors
from sca_search.export.graph.reference import evaluate
from sca_search.export.packed.format import packed_bytes, read_packed

NAMES = (
    "../up",
    "a/b",
    "/etc/passwd",
    "..",
    ".",
    "",
    "a\x00b",
    "a\nb",
    "\x1b[31mred",
    "-rf",
    "a b",
    "é",
    "a*/",
    "x" * 201,
)


def graph_of(record: str = "fc", classes: tuple[str, ...] = ("a", "b")) -> Graph:
    """One ternary layer of two inputs."""
    ones, zeros = np.ones(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    layer = Linear(record, (INPUT,), (2,), np.array([[1, 0], [-1, 1]], dtype=np.int8), ones, zeros)
    return Graph((2,), zeros, ones, (layer,), record, classes)


def vectors_of(graph: Graph) -> TestVectors:
    images = np.zeros((1, 2), dtype=np.float32)
    return TestVectors(images, evaluate(graph, images))


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_a_layers_name_that_could_be_a_path_or_more_is_rejected(name: str) -> None:
    with pytest.raises(ExportError, match="a record's name must be letters"):
        packed_bytes(graph_of(name), TestVectors(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)))


def test_class_names_are_kept_as_they_are_and_name_no_file(tmp_path: Path) -> None:
    graph = graph_of(classes=("../../x", '"\x1b[31m\n*/ -rf ☃'))
    (tmp_path / "model").write_bytes(packed_bytes(graph, vectors_of(graph)))
    assert read_packed(tmp_path / "model")[0].class_names == graph.class_names
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "x" * 201], ids=range(len(NAMES) - 1))
def test_a_studys_name_that_could_be_a_path_or_more_is_rejected(tmp_path: Path, name: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f"name = {json.dumps(name)}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="name must"):
        resolve(study, {})


@pytest.mark.parametrize("given", ["1979-05-27", "1979-05-27T07:32:00Z", "07:32:00", "{}", "[]", "[[]]", "true", '""'])
@pytest.mark.parametrize(
    "key", ["seed", "search.trials", "search.method", "goal.target_sparsity", "search.time_budget"]
)
def test_a_value_of_another_kind_is_rejected(tmp_path: Path, key: str, given: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f"{key} = {given}\n", encoding="utf-8")
    with pytest.raises(SpecError, match=f"^{study}: {key} "):
        resolve(study, {})


DEEP = {
    "dotted key": "name" + ".a" * 20_000 + " = 1\n",
    "dotted table": "[" + "a." * 20_000 + "b]\nx = 1\n",
    "table in table": "x = " + "{a=" * 5000 + "1" + "}" * 5000,
    "list in list": "name = " + "[" * 900 + "]" * 900,
    "dotted a little": "name" + ".a" * 90 + " = 1\n",
    "large list": "name = [" + "0," * 45_000 + "]\n",
    "large text": 'name = "' + "x" * 90_000 + '"\n',
    "large file": "#" * 100_001,
    "many keys": "\n".join(f"k{number} = 1" for number in range(9000)),
    "digits without end": 'search.time_budget = "' + "1" * 90_000 + 'x"\n',
}


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_a_study_file_without_measure_is_rejected_soon_and_in_few_words(tmp_path: Path, text: str) -> None:
    """A key of 100,000 parts, 200 KB of text, took Python's reader four minutes and all memory that there was."""
    study = tmp_path / "study.toml"
    study.write_text(text, encoding="utf-8")
    began = time.process_time()
    with pytest.raises(SpecError) as rejected:
        resolve(study, {})
    assert time.process_time() - began < 5
    assert all(len(line) < 600 for line in str(rejected.value).splitlines())


def test_a_path_with_a_nul_is_rejected(tmp_path: Path) -> None:
    study = tmp_path / "study.toml"
    for key in ("out", "data.dir", "model.weights", "search.latency_table"):
        study.write_text(f'{key} = "a\\u0000b"\n')
        with pytest.raises(SpecError, match=f"{key} must be the name of a file or folder, got 'a.x00b'"):
            resolve(study, {})


def test_a_run_folder_named_by_its_data_has_a_name_that_files_can_have(tmp_path: Path) -> None:
    spec = resolve(None, {"data": f"npz:{tmp_path}/{'x' * 240}.npz", "model": f"{'y' * 240}:net"})
    assert len(spec.base_name) < 130


# As a flag's value or a run's name. No process can be given a NUL.
ODD = (
    *("\x1b[31mred", "\x9b31m", "a\rb", "\x07", "\u202eevil", "\u2066a", "e\u0301", "a b", "-rf", "..", "../up"),
    *(
        "/",
        "x" * 256,
        "x" * 5000,
        f"{'a' * 300}/b",
        "[/red]",
        "[bold]x",
        ":smile:",
        "\udcff",
        "\ud800",
        "~nobody-here/x",
    ),
)


def assert_one_sentence(done) -> None:
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert len(done.stderr) < 2000
    assert_tame(done.stderr)


def assert_tame(text: str) -> None:
    """Nothing that a terminal obeys."""
    found = {character for character in text if unicodedata.category(character) in {"Cc", "Cf", "Cs"}}
    assert found <= {"\n"}


@pytest.mark.parametrize("odd", [*ODD, ""], ids=range(len(ODD) + 1))
def test_an_odd_name_of_a_run_is_one_sentence(run, odd: str) -> None:
    for command in ("show", "export", "dashboard", "rerun", "features", "verify", "check", "bench"):
        assert_one_sentence(run(command, "--", odd))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_an_odd_value_of_a_flag_is_one_sentence(run, odd: str) -> None:
    for flag in ("--name", "--form", "--method", "--loss", "--metric", "--time-budget", "--prefer", "--groups"):
        assert_one_sentence(run(f"{flag}={odd}", "--dry-run"))
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize("odd", ["\x1b[31mred", "\u202eevil", "x" * 5000, "[/red]", "\ud800"], ids=range(5))
def test_an_odd_name_of_a_file_is_one_sentence(run, odd: str) -> None:
    for flag in ("--model", "--data", "--weights"):
        assert_one_sentence(run(f"{flag}={odd}/x", "--dry-run"))
    assert list(Path().iterdir()) == []


KEPT = Path(__file__).parents[1] / "support" / "run-folder"
ORDERS = "\x1b[31m\x9b2J\u202e[/red]\ud800"


@pytest.fixture
def sent(tmp_path: Path) -> Path:
    """A run whose texts are orders to a terminal, and markup."""
    folder = shutil.copytree(KEPT, tmp_path / "sent")
    summary = json.loads((folder / "summary.json").read_text())
    for cost in summary["sensitivity"]:
        cost["layer"] += ORDERS
    summary |= {"metric_name": ORDERS, "examples": ORDERS}
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "dense.json").write_text(json.dumps({"metric": 0.9, "loss": 0.1, "metric_name": ORDERS}))
    lines = (folder / "trials.csv").read_text().splitlines()
    lines[-1] = lines[-1].replace("complete", "\x1b[31mfailed\u202e[/red]")
    (folder / "trials.csv").write_text("\r\n".join(lines) + "\r\n")
    return folder


def test_a_sent_runs_texts_are_shown_and_not_obeyed(run, sent: Path) -> None:
    done = run("show", str(sent))
    assert done.returncode == 0, done.stderr
    assert_tame(done.stdout + done.stderr)
    assert "\\x1b[31m\\x9b2J\\u202e[/red]\\ud800" in done.stdout


def test_a_sent_runs_texts_stay_the_same_as_json(run, sent: Path) -> None:
    done = run("show", str(sent), "--json")
    assert_tame(done.stdout)
    assert json.loads(done.stdout)["summary"]["metric_name"] == ORDERS


@pytest.mark.parametrize("command", ["export", "rerun", "features"])
def test_a_sent_trial_is_named_and_not_obeyed(run, sent: Path, command: str) -> None:
    done = run(command, str(sent), "--trial", "1")
    assert done.returncode == 2
    assert_tame(done.stdout + done.stderr)
    assert "it is \\x1b[31mfailed" in done.stderr


def test_a_folder_of_an_odd_name_is_used_as_any_other(run, tmp_path: Path) -> None:
    for name in ("a b", "-rf", "\x1b[31m", "\u202eé", "[/red]", "x" * 255, "new\nline"):
        shutil.copytree(KEPT, name)
        for command in (("show",), ("dashboard", "--no-open")):
            done = run(*command, "--", str(tmp_path / name))
            assert done.returncode == 0, done.stderr
            assert_tame(done.stdout + done.stderr)
