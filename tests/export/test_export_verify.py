"""Verification finds what differs: in answers, in classes, in zeros; and export folders are whole or absent."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import sca_search
from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError, StorageError
from sca_search.export.c.compiler import find_compiler
from sca_search.export.folder import ExportOptions, export_network, parse_formats
from sca_search.export.graph.agreement import agreement, compare, portions
from sca_search.export.graph.network import Images, Network
from sca_search.export.graph.records import Floats, Linear, TestVectors
from sca_search.export.layout import FILES
from sca_search.export.packed.format import read_packed, write_packed
from sca_search.export.packed.test_vectors import write_vectors
from sca_search.export.verify import choose_vectors
from sca_search.export.verify_folder import verify_folder
from sca_search.system.torchvision import patch_torchvision
from tests.support.networks import MEAN, STD, torchvision_cases


def logits(*rows: list[float]) -> Floats:
    return np.array(rows, dtype=np.float32)


def test_agreement_is_relative_to_the_largest_logit() -> None:
    expected = logits([1, 2, -8], [0, 3, 1])
    found = agreement(expected + np.float32(4e-5), expected)
    assert found.difference == pytest.approx(5e-6, rel=0.02)  # 4e-5 / 8
    assert found.holds
    assert not agreement(expected + np.float32(1e-4), expected).holds


def test_agreement_counts_classes_but_for_ties() -> None:
    expected = logits([1.0, 1.00001, 0.0], [5.0, 0.0, 0.0], [1.0, 0.0, 0.0])
    answers = logits([1.00001, 1.0, 0.0], [5.0, 0.0, 0.0], [0.0, 1.0, 0.0])
    found = agreement(answers, expected)
    # 1e-5 apart is within twice the tolerance of 5, 1 apart is not
    assert (found.images, found.ties, found.other_class) == (3, 1, 1)
    assert not found.holds
    assert "another class for 1 but for 1 ties" in str(found)


def test_agreement_of_what_is_no_number_does_not_hold() -> None:
    expected = logits([1, 2])
    for wrong in (np.nan, np.inf):
        assert not agreement(logits([1, wrong]), expected).holds
    assert agreement(logits([0, 0]), logits([0, 0])).holds
    assert not agreement(logits([0, 1e-9]), logits([0, 0])).holds


def test_compare_stops_a_slow_format_and_goes_on_with_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("sca_search.export.graph.agreement.time.monotonic", lambda: now[0])

    def slow(images: Floats) -> Floats:
        now[0] += 0.02
        return images

    batches = [np.full((2, 3), step, dtype=np.float32) for step in range(10)]
    found = compare({"slow": slow, "fast": lambda images: images}, lambda images: images, batches, seconds=0.05)
    assert found["slow"].images == 6  # 0.02 s a batch: the third ends after the time is up
    assert found["fast"].images == 20
    assert all(each.holds for each in found.values())
    late = compare({"late": lambda images: images + (images[0, 0] == 9)}, lambda images: images, batches, seconds=9)
    assert not late["late"].holds


def test_portions_keep_every_image() -> None:
    batches = [np.arange(5.0), np.arange(5.0, 7.0)]
    assert [part.tolist() for part in portions(batches, 2)] == [[0, 1], [2, 3], [4], [5, 6]]


def test_formats_are_parsed() -> None:
    assert parse_formats("torch, packed") == ("packed", "torch")
    with pytest.raises(ExportError, match=r"unknown format 'pakced': known are .*did you mean 'packed'"):
        parse_formats("pakced,c")
    with pytest.raises(ExportError, match="at least one of packed, c, onnx, torch"):
        parse_formats(" , ")


def small_network(sparsity: float = 0.5, count: int = 40) -> Network:
    """A convolution, a ternary one, a ternary layer, a dense one; some noise to look at."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(6, 5, 3, bias=False),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(20, 8, bias=False),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 3),
    ).eval()
    with torch.no_grad():
        for layer in (2, 7):
            weight = model.get_parameter(f"{layer}.weight")
            weight.copy_(torch.randn_like(weight).sign() * (torch.rand_like(weight) >= sparsity))

    def batches() -> Iterator[Floats]:
        noise = np.random.default_rng(0)
        for _ in range(count // 20):
            yield noise.standard_normal((20, 2, 6, 6), dtype=np.float32)

    images = Images(count, batches)
    return Network(model, InputSpec((2, 6, 6), ("a", "b", "c"), (0.1, 0.2), (2.0, 0.5)), ("2", "7"), images=images)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small") / "export"
    done = export_network(folder, small_network())
    assert done.verification.holds, done.verification
    assert done.left_out == ()
    return folder


@pytest.fixture
def copied(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "copy"))


def test_every_format_is_written_run_and_compared(exported: Path) -> None:
    assert all((exported / file).is_file() for file in FILES)
    card = (exported / "MODEL.md").read_text()
    for file in FILES:
        assert f"| {file} | all 40 validation images |" in card
        assert f"| {file} | zeros as claimed |" in card
    assert "Everything agrees" in card
    assert not [path for path in exported.parent.iterdir() if path != exported]  # nothing temporary is left


@pytest.mark.e2e
def test_given_network_is_not_changed_by_an_export(tmp_path: Path) -> None:
    network = small_network()
    before = {name: value.clone() for name, value in network.model.state_dict().items()}
    export_network(tmp_path / "e", network, ExportOptions(formats=("packed", "torch")))
    assert network.model[0].weight.dtype == torch.float32
    assert all(torch.equal(value, before[name]) for name, value in network.model.state_dict().items())


def test_state_loads_into_the_original_architecture(exported: Path) -> None:
    network = small_network()
    fresh = small_network(sparsity=0.0).model
    fresh.load_state_dict(load_file(exported / "state.safetensors"))
    images = torch.randn(3, 2, 6, 6)
    with torch.no_grad():
        assert torch.equal(fresh(images), network.model(images))


def test_packed_model_is_loaded_and_answers_as_the_network(exported: Path) -> None:
    network = small_network()
    images = torch.randn(3, 2, 6, 6)
    with torch.no_grad():
        expected = network.normalized()(images)
        assert torch.allclose(sca_search.load(exported / "model.safetensors")(images), expected, atol=1e-5)


@pytest.mark.e2e
def test_folder_is_verified_again_without_its_pt2(exported: Path) -> None:
    found = verify_folder(exported, seconds=5)
    assert found.holds
    assert [check.holds for check in found.checks if check.file == "model.pt2"] == [None]
    # the network's own code is not named by the folder, and it says so
    assert any(check.file == "state.safetensors" and check.holds is None for check in found.checks)
    assert any("names no study" in check.found for check in found.checks)


def failures(folder: Path) -> dict[str, str]:
    found = verify_folder(folder, seconds=5)
    assert not found.holds
    wrong = [check for check in found.checks if check.holds is False]
    return {check.file: "; ".join(each.found for each in wrong if each.file == check.file) for check in wrong}


def test_damaged_packed_file_fails(copied: Path) -> None:
    content = bytearray((copied / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (copied / "model.safetensors").write_bytes(content)
    assert "checksum is wrong" in failures(copied)["model.safetensors"]


@pytest.mark.e2e
def test_packed_file_of_another_model_fails(copied: Path) -> None:
    graph, vectors = read_packed(copied / "model.safetensors")
    last = graph.records[-1]
    assert isinstance(last, Linear)
    bias = last.bias.copy()
    bias[0] += 1e-3
    write_packed(
        copied / "model.safetensors", replace(graph, records=(*graph.records[:-1], replace(last, bias=bias))), vectors
    )
    assert "apart" in failures(copied)["model.safetensors"]


@pytest.mark.e2e
def test_claim_of_other_zeros_fails(copied: Path) -> None:
    metadata = json.loads((copied / "export.json").read_text())
    zeros, weights = metadata["zeros"]["2"]
    metadata["zeros"]["2"] = [zeros + 1, weights]
    (copied / "export.json").write_text(json.dumps(metadata))
    wrong = failures(copied)
    assert set(wrong) == {"model.safetensors", "c/model.c", "model.onnx", "state.safetensors"}
    assert f"2 has (zeros, weights) ({zeros}, {weights}), claimed is ({zeros + 1}, {weights})" in wrong["c/model.c"]


@pytest.mark.e2e
def test_changed_c_source_fails(copied: Path) -> None:
    source = (copied / "c" / "model.c").read_text()
    (copied / "c" / "model.c").write_text(
        source.replace("MODEL_OUTPUTS * sizeof(float)", "(MODEL_OUTPUTS - 1) * sizeof(float)")
    )
    assert "failed with code" in failures(copied)["c/model.c"]
    (copied / "c" / "model.c").write_text("this is no C")
    assert "failed with code" in failures(copied)["c/model.c"]


@pytest.mark.e2e
def test_onnx_file_of_nothing_fails(copied: Path) -> None:
    (copied / "model.onnx").write_bytes(b"hello")
    assert "model.onnx" in failures(copied)


def test_missing_compiler_is_said_and_no_failure(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert find_compiler() is None
    found = verify_folder(copied, seconds=5)
    assert found.holds
    assert any(check.file == "c/model.c" and "no C compiler" in check.found for check in found.checks)


def test_folder_without_valid_metadata_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match="no such folder"):
        verify_folder(tmp_path / "gone", seconds=1)
    with pytest.raises(ExportError, match=r"is not an export folder, it has no export\.json"):
        verify_folder(tmp_path, seconds=1)
    (tmp_path / "export.json").write_text("{}")
    with pytest.raises(ExportError, match="cannot be read as the metadata"):
        verify_folder(tmp_path, seconds=1)
    (tmp_path / "export.json").write_text('{"version": 1, "input_shape": [1, 8, 8]}')
    with pytest.raises(ExportError, match="must have version 2, got 1; export again"):
        verify_folder(tmp_path, seconds=1)


@pytest.mark.e2e
@pytest.mark.parametrize("sparsity", [0.0, 1.0])
def test_layers_without_zeros_and_without_anything_else(sparsity: float, tmp_path: Path) -> None:
    done = export_network(tmp_path / "e", small_network(sparsity), ExportOptions(formats=("packed", "c", "onnx")))
    assert done.verification.holds, done.verification
    zeros = {layer.name: layer.zeros for layer in read_packed(tmp_path / "e" / "model.safetensors")[0].ternary_layers}
    assert zeros == {"2": 270 * sparsity, "7": 160 * sparsity}


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 2, 3, padding=1, bias=False), nn.Linear(2, 3)
        nn.init.ones_(self.conv.weight)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.fc(self.conv(self.conv(images).relu()).mean((2, 3)))


@pytest.mark.e2e
def test_layer_called_twice_is_claimed_once(tmp_path: Path) -> None:
    network = Network(CalledTwice(), InputSpec((2, 5, 5), ("a", "b", "c")), ("conv",))
    done = export_network(tmp_path / "e", network, ExportOptions(formats=("packed", "torch")))
    assert done.verification.holds, done.verification
    counted = {check.file: check.found for check in done.verification.checks if check.what == "zeros as claimed"}
    assert len(counted) == 3
    assert all("0 of 36 ternary weights" in found for found in counted.values())


@pytest.mark.e2e
def test_half_is_compared_with_what_it_stores(tmp_path: Path) -> None:
    done = export_network(tmp_path / "e", small_network(), ExportOptions(formats=("packed", "torch"), half=True))
    assert done.verification.holds, done.verification
    assert verify_folder(tmp_path / "e", seconds=5).holds
    graph, _ = read_packed(tmp_path / "e" / "model.safetensors")
    last = graph.records[-1]
    assert isinstance(last, Linear)
    assert np.array_equal(last.weight, last.weight.astype(np.float16).astype(np.float32))


def test_export_refuses_a_folder_that_holds_something(tmp_path: Path, exported: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "diary.txt").write_text("dear diary")
    (tmp_path / "taken" / "export.json").write_text("[]")  # somebody else's
    packed = ExportOptions(formats=("packed",))
    for options in (packed, replace(packed, replace=True)):
        with pytest.raises(ExportError, match="taken must be empty, it holds files"):
            export_network(tmp_path / "taken", small_network(), options)
    with pytest.raises(ExportError, match="must be a folder, it is a file"):
        export_network(tmp_path / "taken" / "diary.txt", small_network(), packed)
    assert sorted(path.name for path in (tmp_path / "taken").iterdir()) == ["diary.txt", "export.json"]


@pytest.mark.e2e
def test_export_fills_the_folder_it_stands_in_and_replaces_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    export_network(Path(), small_network(), ExportOptions(formats=("c",)))
    assert sorted(path.name for path in Path().iterdir()) == [
        "MODEL.md",
        "c",
        "export.json",
        "test_vectors.safetensors",
    ]
    export_network(Path(), small_network(0.9), ExportOptions(formats=("packed",), replace=True))
    assert sorted(path.name for path in Path().iterdir()) == ["MODEL.md", "export.json", "model.safetensors"]
    assert read_packed(Path("model.safetensors"))[0].sparsity > 0.8


def test_what_a_killed_export_left_in_an_empty_folder_is_removed(tmp_path: Path) -> None:
    killed = subprocess.Popen([sys.executable, "-c", ""])
    killed.wait()
    (tmp_path / "e" / f".e.{killed.pid}-0a1b2c3d").mkdir(parents=True)
    export_network(tmp_path / "e", small_network(), ExportOptions(formats=("packed",)))
    assert sorted(path.name for path in (tmp_path / "e").iterdir()) == ["MODEL.md", "export.json", "model.safetensors"]


def test_a_folder_in_which_another_export_is_being_written_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "e" / f".e.{os.getpid()}-0a1b2c3d").mkdir(parents=True)
    with pytest.raises(ExportError, match="must be empty, it holds files"):
        export_network(tmp_path / "e", small_network(), ExportOptions(formats=("packed",)))


@pytest.mark.skipif(not Path("/sys").is_dir(), reason="needs a folder that root cannot write to either")
def test_folder_that_cannot_be_made_is_one_sentence() -> None:
    with pytest.raises(StorageError, match="cannot be written"):
        export_network(Path("/sys/e"), small_network(), ExportOptions(formats=("packed",)))


def test_folder_below_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        export_network(tmp_path / "file" / "e", small_network(), ExportOptions(formats=("packed",)))


def test_refused_network_leaves_nothing_behind(tmp_path: Path) -> None:
    network = small_network()
    network.model.append(nn.Softmax(1))
    with pytest.raises(ExportError, match=r"11: the operation aten\.softmax"):
        export_network(tmp_path / "e", network)
    assert not any(tmp_path.iterdir())


def test_images_for_vectors_are_spread_over_the_split_or_drawn() -> None:
    network = small_network()
    graph = network.graph()
    assert network.images is not None
    everything = np.concatenate(list(network.images.batches()))
    chosen = choose_vectors(graph, network.images)
    for image, index in zip(chosen, (0, 10, 20, 30), strict=True):
        assert np.abs(image - everything[index]).max() < 0.05  # a level of the grid
    drawn = choose_vectors(graph, None)
    assert drawn.shape == (4, 2, 6, 6)
    assert np.array_equal(drawn, choose_vectors(graph, None))


@pytest.mark.e2e
def test_vectors_of_another_model_are_refused(tmp_path: Path) -> None:
    export_network(tmp_path / "e", small_network(), ExportOptions(formats=("torch",)))
    write_vectors(
        tmp_path / "e" / "test_vectors.safetensors", TestVectors(np.ones((1, 3)), np.ones((1, 3), np.float32))
    )
    with pytest.raises(ExportError, match="test vectors of another model"):
        verify_folder(tmp_path / "e", seconds=1)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", torchvision_cases("resnet18", "mobilenet_v3_small", "squeezenet1_1", "vgg11_bn"))
def test_torchvision_is_exported_and_verified(name: str, tmp_path: Path) -> None:
    patch_torchvision()
    from torchvision import models  # noqa: PLC0415 - only once it is healed

    torch.manual_seed(0)
    model = models.get_model(name, weights=None)
    layers = [layer for layer, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)][1:-1]
    images = torch.randn(8, 3, 224, 224)
    with torch.no_grad():
        for layer in layers:
            weight = model.get_parameter(f"{layer}.weight")
            weight.copy_(torch.randn_like(weight).sign() * (torch.rand_like(weight) >= 0.5))
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = None  # statistics of these very images, or rounding is amplified beyond measure
        model.train()(images)
    split = Images(
        4, lambda: [(images[:4] * torch.tensor(STD).view(3, 1, 1)).numpy() + np.float32(MEAN)[:, None, None]]
    )
    classes = tuple(str(number) for number in range(1000))
    network = Network(
        model.eval(), InputSpec((3, 224, 224), classes, tuple(MEAN), tuple(STD)), tuple(layers), images=split
    )
    done = export_network(tmp_path / "e", network, ExportOptions(formats=("packed", "c", "onnx")))
    assert done.verification.holds, done.verification
    assert all(any(f == c.file and "validation" in c.what for c in done.verification.checks) for f in FILES[:3])
