"""Data sets that Hugging Face's package saved on disk."""

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sca_search.config.study import DataSpec
from sca_search.data import Split, load_data
from sca_search.data.registry import load_study_data
from sca_search.errors import DataError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    datasets = pytest.importorskip("datasets")


def images(count: int, size: tuple[int, int] = (6, 4)) -> list[Image.Image]:
    return [Image.fromarray(np.full((*size, 3), 10 * number, np.uint8)) for number in range(count)]


def saved(folder: Path, content: dict[str, Any], features: Any = None) -> str:
    datasets.Dataset.from_dict(content, features=features).save_to_disk(str(folder))
    return f"hf-disk:{folder}"


LABELED = {"img": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}


def test_images_with_class_labels_are_found_by_their_types(tmp_path: Path) -> None:
    features = datasets.Features(LABELED | {"note": datasets.Value("string")})
    content = {"img": images(20), "kind": [0, 1] * 10, "note": ["x"] * 20}
    data = load_data(saved(tmp_path / "set", content, features), seed=0, normalize=False)
    assert (data.kind, data.classes, data.input_shape) == ("classes", ("cat", "dog"), (3, 6, 4))
    every = [part for split in (data.train, data.val, data.read_test()) for part in _first_values(split)]
    assert sorted(every) == pytest.approx([number * 10 / 255 for number in range(20)])


def _first_values(split: Any) -> list[float]:
    assert isinstance(split, Split)
    return split.images[:, 0, 0, 0].tolist()


def test_splits_are_taken_by_their_usual_names_and_images_resized(tmp_path: Path) -> None:
    features = datasets.Features(LABELED)

    def part(count: int) -> Any:
        return datasets.Dataset.from_dict({"img": images(count), "kind": [0, 1] * (count // 2)}, features=features)

    whole = datasets.DatasetDict({"train": part(10), "validation": part(4), "test": part(6)})
    whole.save_to_disk(str(tmp_path / "set"))
    data = load_data(f"hf-disk:{tmp_path / 'set'}", seed=0, image_size=5)
    assert (len(data.train), len(data.val), len(data.read_test()), data.input_shape) == (10, 4, 6, (3, 5, 5))
    assert data.notes == ()


def test_lists_with_numbers_are_a_regression(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32)
    name = saved(tmp_path / "set", {"signal": rows.tolist(), "value": rows[:, 0].astype(float).tolist()})
    data = load_data(name, seed=0)
    assert (data.kind, data.input_shape) == ("regression", (5,))


def test_columns_can_be_named(tmp_path: Path) -> None:
    content = {"a": [[1.0, 2.0]] * 20, "b": [0, 1] * 10, "c": [1, 0] * 10}
    name = saved(tmp_path / "set", content)
    with pytest.raises(
        DataError, match=r"name the columns with --data-columns .*: targets could be any of a \(List\), b"
    ):
        load_data(name, seed=0)
    data = load_study_data(DataSpec(name=name, columns=("a", "c")), 0)
    assert (data.kind, data.input_shape, data.num_classes) == ("classes", (2,), 2)
    with pytest.raises(DataError, match="unknown column 'd': known are a, b, c"):
        load_study_data(DataSpec(name=name, columns=("a", "d")), 0)
    with pytest.raises(DataError, match="--data-columns must name two columns, inputs and targets, got 1"):
        load_study_data(DataSpec(name=name, columns=("a",)), 0)
    with pytest.raises(DataError, match="an image size is for images, column 'a' holds none"):
        load_study_data(DataSpec(name=name, columns=("a", "c"), image_size=4), 0)


def test_what_is_no_saved_data_set_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone: the data folder must exist"):
        load_data(f"hf-disk:{tmp_path / 'gone'}", seed=0)
    with pytest.raises(
        DataError, match="must be a data set that save_to_disk wrote, it failed with FileNotFoundError"
    ) as told:
        load_data(f"hf-disk:{tmp_path}", seed=0)
    assert "\n" not in str(told.value)
    datasets.DatasetDict({"other": datasets.Dataset.from_dict({"a": [1]})}).save_to_disk(str(tmp_path / "odd"))
    with pytest.raises(DataError, match="must have a split train, got other"):
        load_data(f"hf-disk:{tmp_path / 'odd'}", seed=0)


def test_without_the_package_it_is_said_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"the package datasets must be installed: pip install 'sca-search\[hf\]'"):
        load_data(f"hf-disk:{tmp_path}", seed=0)


def test_columns_are_of_saved_data_sets_only() -> None:
    with pytest.raises(DataError, match="only hf-disk:PATH has named columns, got a, b"):
        load_study_data(DataSpec(columns=("a", "b")), 0)
    assert torch.is_tensor(load_study_data(DataSpec(), 0).train.labels)
