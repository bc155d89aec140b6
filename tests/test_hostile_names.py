"""Names and numbers that a study file or a model brings: none leads out of a folder, none ends a C string."""

import json
from pathlib import Path

import numpy as np
import pytest

from sca_search.errors import ExportError, SpecError
from sca_search.export.evaluate import evaluate
from sca_search.export.packed import packed_bytes, read_packed
from sca_search.export.records import INPUT, Graph, Linear, TestVectors
from sca_search.spec import resolve

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
def test_a_layers_name_that_could_be_a_path_or_more_is_refused(name: str) -> None:
    with pytest.raises(ExportError, match="a record's name must be letters"):
        packed_bytes(graph_of(name), TestVectors(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32)))


def test_class_names_are_kept_as_they_are_and_name_no_file(tmp_path: Path) -> None:
    graph = graph_of(classes=("../../x", '"\x1b[31m\n*/ -rf ☃'))
    (tmp_path / "model").write_bytes(packed_bytes(graph, vectors_of(graph)))
    assert read_packed(tmp_path / "model")[0].class_names == graph.class_names
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "x" * 201], ids=range(len(NAMES) - 1))
def test_a_studys_name_that_could_be_a_path_or_more_is_refused(tmp_path: Path, name: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f"name = {json.dumps(name)}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="name must"):
        resolve(study, {})


NUMBERS = ("9" * 5000, "1e999", "-1e999", "inf", "nan", str(2**64), "1" + "0" * 400, "[" * 20_000)


@pytest.mark.parametrize("number", NUMBERS, ids=range(len(NUMBERS)))
@pytest.mark.parametrize("key", ["seed", "search.trials", "goal.target_sparsity", "train.batch", "goal.max_kb"])
def test_a_number_beyond_all_bounds_is_refused_or_only_large(tmp_path: Path, key: str, number: str) -> None:
    study = tmp_path / "study.toml"
    study.write_text(f"{key} = {number}\n", encoding="utf-8")
    sentence = ""
    try:
        resolve(study, {}).to_toml()
    except SpecError as error:
        sentence = str(error)
    # A count may be as large as it likes, a budget, too.
    assert str(study) in sentence or (not sentence and key in ("search.trials", "train.batch", "goal.max_kb"))
