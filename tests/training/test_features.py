"""Feature maps and their similarity."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from sca_search.dashboard.trial import contact_sheet, page_features
from sca_search.errors import RunError
from sca_search.training.features import MAX_SIDE, activations, compare_features, linear_cka
from tests.support.command import Outcome


def numpy_cka(one: np.ndarray, other: np.ndarray) -> float:
    """As the paper on CKA has it, by features instead of by images."""
    x, y = one - one.mean(0), other - other.mean(0)
    return float(np.linalg.norm(x.T @ y) ** 2 / (np.linalg.norm(x.T @ x) * np.linalg.norm(y.T @ y)))


def test_linear_cka_is_that_of_its_definition() -> None:
    random = np.random.default_rng(0)
    one, other = random.normal(size=(40, 12)), random.normal(size=(40, 7))
    other[:, :3] += one[:, :3]
    expected = numpy_cka(one, other)
    assert 0.05 < expected < 0.95
    assert linear_cka(torch.from_numpy(one), torch.from_numpy(other)) == pytest.approx(expected)


def test_linear_cka_does_not_see_rotation_and_scale() -> None:
    torch.manual_seed(0)
    one = torch.randn(30, 8, dtype=torch.float64)
    rotation, _ = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))
    assert linear_cka(one, 3.0 * one @ rotation + 5.0) == pytest.approx(1.0)
    assert linear_cka(one, torch.zeros(30, 8, dtype=torch.float64)) == 0.0


def named(*classes: str) -> Callable[[torch.Tensor], str]:
    return lambda label: classes[int(label)]


def small() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4 * 64, 3)
    ).eval()


def test_activations_are_taken_after_the_normalization_and_before_the_relu() -> None:
    model, images = small(), torch.randn(5, 1, 8, 8)
    found = activations(model, images, ["0", "4"])
    with torch.no_grad():
        assert torch.equal(found["0"], model[1](model[0](images)))
        assert torch.equal(found["4"], model(images))
    assert (found["0"] < 0).any()


def test_equal_networks_have_equal_maps_and_similarity_one() -> None:
    batches = [(torch.randn(20, 1, 8, 8), torch.arange(20) % 3)]
    found = compare_features(small(), small(), batches, named("a", "b", "c"), ["4"])
    assert found.compared == 20
    assert found.labels == ("a", "b", "c", "a")
    assert [(layer.layer, layer.number, layer.ternary) for layer in found.layers] == [("0", 1, False), ("4", 2, True)]
    assert [layer.cka for layer in found.layers] == pytest.approx([1.0, 1.0])
    assert found.layers[0].dense_maps == found.layers[0].ternary_maps
    assert found.layers[1].dense_maps is None  # a fully connected layer has none
    mean = small()[:2](batches[0][0][:1]).mean(1)[0]
    pixels = np.frombuffer(base64.b64decode(found.layers[0].dense_maps.pixels[0]), np.uint8)
    stretched = (mean - mean.min()) / (mean.max() - mean.min()) * 255
    assert np.abs(pixels.reshape(8, 8) - stretched.detach().numpy()).max() <= 0.5001


def test_wide_networks_are_compared_on_fewer_images() -> None:
    batches = [(torch.randn(20, 1, 8, 8), torch.arange(20) % 3)]
    values = 4 * 8 * 8 + 3  # of an image, in both layers
    found = compare_features(small(), small(), batches, named("a", "b", "c"), ["4"], memory_bytes=12 * 2 * 4 * values)
    assert found.compared == 12
    assert compare_features(small(), small(), batches, named("a", "b", "c"), ["4"], memory_bytes=1).compared == 8


def test_wide_maps_are_averaged_down() -> None:
    batches = [(torch.randn(4, 1, 96, 64), torch.zeros(4, dtype=torch.long))]
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2)).eval()
    found = compare_features(model, model, batches, named("a", "b"), [])
    assert (found.images.height, found.images.width) == (MAX_SIDE, 21)


def test_a_study_ends_with_the_maps_of_its_chosen_trial(tiny_run: tuple[Path, str]) -> None:
    run, _ = tiny_run
    summary = json.loads((run / "summary.json").read_text())
    told = json.loads((run / "candidates" / f"{summary['chosen']['candidate']:03d}" / "features.json").read_text())
    assert [layer["layer"] for layer in told["layers"]] == ["conv1", "conv2", "fc1", "fc2"]
    assert all(0.0 <= layer["cka"] <= 1.0 + 1e-9 for layer in told["layers"])
    shown = page_features(told)
    assert shown is not None
    prefix, _, data = shown["layers"][0]["dense"][0].partition(",")
    assert prefix == "data:image/png;base64"
    assert Image.open(io.BytesIO(base64.b64decode(data))).size == (8, 8)


def test_features_of_any_trial_become_a_picture(tiny_run: tuple[Path, str], run: Callable[..., Outcome]) -> None:
    done = run("features", str(tiny_run[0]), "--trial", "1", "--out", "maps.png")
    assert done.returncode == 0, done.stderr
    assert "conv2 (ternary): similarity" in done.stdout
    picture = Image.open("maps.png")
    told = json.loads((tiny_run[0] / "candidates" / "001" / "features.json").read_text())
    assert picture.size == contact_sheet(told, "").size
    assert len(picture.convert("RGB").getcolors(1 << 20)) > 50


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--trial", "77"), "there is no trial 77"),
        (("--out", "maps.jpg"), "--out must end in .png, got 'maps.jpg'"),
    ],
)
def test_bad_requests_are_one_sentence(
    tiny_run: tuple[Path, str], run: Callable[..., Outcome], arguments: tuple[str, ...], sentence: str
) -> None:
    done = run("features", str(tiny_run[0]), *arguments)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(Path().iterdir()) == []


def test_damaged_features_are_rejected() -> None:
    with pytest.raises(RunError, match=r"features\.json cannot be read"):
        page_features(
            {"labels": [], "compared": 1, "images": {"width": 2, "height": 2, "pixels": ["AA=="]}, "layers": []}
        )
