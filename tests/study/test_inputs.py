"""Checksums of a study's inputs: they change with data, network source and weights, and with nothing else."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from sca_search.config.load import resolve
from sca_search.data import checksum, load_data
from sca_search.errors import RunError
from sca_search.runs.folder import RunFolder
from sca_search.runs.log import note_command
from sca_search.study.setup import inputs_of, make_task

NETWORK = """
from torch import nn

from {helper} import Head


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3), Head(64, 10)

    def forward(self, images):
        return self.c(self.b(self.a(images)).relu().flatten(1))
"""
HEAD = """
from torch import nn


class Head(nn.Linear):
    pass
"""


def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    images = {f"{part}_images": random.integers(0, 256, (30, 5, 4), np.uint8) for part in ("train", "val", "test")}
    return images | {f"{part}_labels": np.arange(30) % 3 for part in ("train", "val", "test")}


def test_checksum_covers_types_shapes_and_values() -> None:
    base = torch.arange(6, dtype=torch.int32)
    assert checksum([base]) == checksum([base.clone()])
    others = [base.view(torch.float32), base.view(2, 3), base.flip(0), torch.cat([base, base])]
    assert len({checksum([each]) for each in (base, *others)}) == 5
    assert checksum([base.view(2, 3).t()]) == checksum([base.view(2, 3).t().contiguous()])


@pytest.mark.parametrize("changed", ["train_images", "train_labels", "val_images", "val_labels"])
def test_one_changed_value_changes_the_checksum_of_the_data(tmp_path: Path, changed: str) -> None:
    def found() -> str:
        np.savez(tmp_path / "set.npz", **values)
        return load_data(f"npz:{tmp_path / 'set.npz'}", seed=0).checksum

    values = arrays()
    before = found()
    assert found() == before
    values[changed].flat[3] = (int(values[changed].flat[3]) + 1) % 3
    assert found() != before


@pytest.mark.parametrize("memory_bytes", [2**30, 0])
def test_other_images_of_the_same_names_change_the_checksum(tmp_path: Path, memory_bytes: int) -> None:
    random = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / "set" / name).mkdir(parents=True)
        for index in range(20):
            image = Image.fromarray(random.integers(0, 256, (8, 8), np.uint8))
            image.save(tmp_path / "set" / name / f"{index}.png")
    shutil.copytree(tmp_path / "set", tmp_path / "copy")

    def found(folder: str) -> str:
        return load_data(f"folder:{tmp_path / folder}", seed=0, image_size=8, memory_bytes=memory_bytes).checksum

    assert found("copy") == found("set")
    for path in (tmp_path / "copy").rglob("*.png"):
        Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    assert found("copy") != found("set")


def network_inputs(folder: Path, **flags: object) -> dict[str, str]:
    spec = resolve(None, {"model": f"{folder / 'net.py'}:Net", **flags})
    return inputs_of(spec, make_task(spec))


def network(folder: Path, helper: str, source: str = NETWORK, head: str = HEAD) -> Path:
    folder.mkdir()
    (folder / "net.py").write_text(source.replace("{helper}", helper))
    (folder / f"{helper}.py").write_text(head)
    return folder


def test_the_source_of_a_network_and_of_its_classes_counts(tmp_path: Path) -> None:
    base = network_inputs(network(tmp_path / "a", "heads_1"))
    assert network_inputs(network(tmp_path / "b", "heads_1")) == base  # elsewhere
    other_function = NETWORK.replace(".relu()", ".tanh()")
    changed = [
        network_inputs(network(tmp_path / "c", "heads_1", other_function)),
        network_inputs(network(tmp_path / "d", "heads_2", head=HEAD.replace("pass", "size = 2"))),
    ]
    for each in changed:
        assert each["network"] != base["network"]
        assert each["data"] == base["data"]


def test_a_network_of_an_installed_package_has_no_source(tmp_path: Path) -> None:
    spec = resolve(None, {"model": "timm:test_resnet"})
    wider = resolve(None, {"model": "timm:test_resnet.r160_in1k", "dense_epochs": 1})
    found = inputs_of(spec, make_task(spec))
    assert found == inputs_of(wider, make_task(wider))
    assert found["network"] != network_inputs(network(tmp_path / "a", "heads_1"))["network"]


def test_initial_weights_are_those_of_the_file_and_no_random_ones(tmp_path: Path) -> None:
    folder = network(tmp_path / "a", "heads_1")
    spec = resolve(None, {"model": f"{folder / 'net.py'}:Net"})
    state = make_task(spec).make_model().state_dict()
    before = network_inputs(folder)
    torch.manual_seed(7)
    assert network_inputs(folder) == before
    found = []
    for factor in (1.0, 1.0, 2.0):
        save_file(
            {name: factor * value for name, value in state.items() if "scale" not in name}, tmp_path / "w.safetensors"
        )
        found.append(network_inputs(folder, weights=tmp_path / "w.safetensors")["initial weights"])
    assert found[0] == found[1] != found[2]
    assert before["initial weights"] not in found


@pytest.mark.e2e
def test_resume_with_other_data_is_refused_and_writes_nothing(run, tmp_path: Path) -> None:
    values = arrays()
    np.savez(tmp_path / "set.npz", **values)
    command = ("--data", "npz:set.npz", "--name", "mine", "--trials", "1", "--refits", "0", "--epochs", "1")
    command = (*command, "--dense-epochs", "1", "--threads", "1")
    assert run(*command).returncode == 0
    inputs = json.loads((tmp_path / "runs/mine/about.json").read_text())["inputs"]
    assert sorted(inputs) == ["data", "initial weights", "network"]
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    np.savez(tmp_path / "set.npz", **values | {"train_images": 255 - values["train_images"]})
    refused = run(*command, "--resume", "--trials", "2")
    assert refused.returncode == 2
    assert refused.stderr.strip().startswith(f"runs/mine: was started with other data ({inputs['data']}, here ")
    assert {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()} == before
    np.savez(tmp_path / "set.npz", **values)
    assert run(*command, "--resume", "--trials", "2").returncode == 0


def test_an_input_that_a_later_command_lacks_is_still_compared(tmp_path: Path) -> None:
    """The weights file may be gone when a study is resumed; another one is rejected afterwards, too."""
    run = RunFolder(tmp_path)
    note_command(run, [], 1, {"data": "a", "initial weights": "b"})
    note_command(run, [], 1, {"data": "a"})
    with pytest.raises(RunError, match=r"started with other initial weights \(b, here c\)"):
        note_command(run, [], 1, {"data": "a", "initial weights": "c"})
