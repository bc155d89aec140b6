"""The networks: sizes by hand arithmetic, shapes, names, order of layers, and what they refuse.

Large networks live on torch's meta device: shapes and counts without memory or arithmetic.
"""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sca_search.errors import ModelError
from sca_search.models import MODELS, Shape, build_model

NATIVE: dict[str, tuple[Shape, int]] = {
    "lenet-small": ((1, 8, 8), 10),
    "lenet-medium": ((1, 28, 28), 10),
    "lenet": ((1, 28, 28), 10),
    "vgg-s": ((3, 32, 32), 10),
    "vgg-variate": ((3, 32, 32), 10),
    "resnet20": ((3, 32, 32), 10),
    "resnet18": ((3, 224, 224), 1000),
    "alexnet": ((3, 224, 224), 1000),
}

# (first layer, between first and last, last layer with its bias, BatchNorm scales and shifts)
COUNTS = {
    "lenet-small": (16 * 25, 32 * 16 * 25 + 32 * 2 * 2 * 64, 64 * 10 + 10, 2 * (16 + 32 + 64)),
    # two poolings make 7×7 of 28×28
    "lenet-medium": (16 * 25, 32 * 16 * 25 + 32 * 7 * 7 * 128, 128 * 10 + 10, 2 * (16 + 32 + 128)),
    "lenet": (32 * 25, 64 * 32 * 25 + 64 * 7 * 7 * 512, 512 * 10 + 10, 2 * (32 + 64 + 512)),
    "vgg-s": (
        3 * 128 * 9,
        9 * (128 * 128 + 128 * 256 + 256 * 256 + 256 * 512 + 512 * 512) + 512 * 4 * 4 * 1024,
        1024 * 10 + 10,
        2 * (2 * 128 + 2 * 256 + 2 * 512 + 1024),
    ),
    "vgg-variate": (
        3 * 48 * 9,
        9 * (48 * 48 + 48 * 96 + 96 * 96 + 96 * 160 + 160 * 160) + 160 * 4 * 4 * 128,
        128 * 10 + 10,
        2 * (2 * 48 + 2 * 96 + 2 * 160 + 128),
    ),
    "resnet20": (
        3 * 16 * 9,
        9 * (6 * 16 * 16 + 16 * 32 + 5 * 32 * 32 + 32 * 64 + 5 * 64 * 64) + 16 * 32 + 32 * 64,
        64 * 10 + 10,
        2 * (7 * 16 + 7 * 32 + 7 * 64),
    ),
    "resnet18": (
        3 * 64 * 49,
        9 * (4 * 64**2 + 64 * 128 + 3 * 128**2 + 128 * 256 + 3 * 256**2 + 256 * 512 + 3 * 512**2)
        + (64 * 128 + 128 * 256 + 256 * 512),
        512 * 1000 + 1000,
        2 * (5 * 64 + 5 * 128 + 5 * 256 + 5 * 512),
    ),
    "alexnet": (
        3 * 64 * 121,
        64 * 192 * 25 + 9 * (192 * 384 + 384 * 256 + 256 * 256) + 256 * 36 * 4096 + 4096 * 4096,
        4096 * 1000 + 1000,
        2 * (64 + 192 + 384 + 256 + 256 + 4096 + 4096),
    ),
}

# the same middle figures written out, so that a slip in the arithmetic above shows
BETWEEN = {
    "lenet-small": 20_992,
    "lenet-medium": 213_504,
    "lenet": 1_656_832,
    "vgg-s": 12_959_744,
    "vgg-variate": 841_472,
    "resnet20": 269_824,
    "resnet18": 11_157_504,
    "alexnet": 56_971_264,
}


def build_on_meta(name: str, shape: Shape, classes: int, dropout: float = 0.0) -> nn.Module:
    with torch.device("meta"):
        return build_model(name, num_classes=classes, input_shape=shape, dropout=dropout)


def output_shape(name: str, shape: Shape, classes: int, batch: int = 2) -> tuple[int, ...]:
    network = build_on_meta(name, shape, classes)
    return tuple(network(torch.empty(batch, *shape, device="meta")).shape)


def weight_layers(network: nn.Module) -> dict[str, nn.Module]:
    return {name: m for name, m in network.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)}


def norms(network: nn.Module) -> list[nn.Module]:
    return [m for m in network.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d)]


def dropouts(network: nn.Module) -> list[str]:
    return [name for name, m in network.named_modules() if isinstance(m, nn.Dropout)]


def next_weight_layer(network: nn.Module, name: str) -> str:
    """The first weight layer that stands behind the named module."""
    names = list(dict(network.named_modules()))
    return next(n for n in names[names.index(name) :] if n in weight_layers(network))


def test_native_covers_every_model() -> None:
    assert set(NATIVE) == set(COUNTS) == set(BETWEEN) == set(MODELS)


@pytest.mark.parametrize("name", NATIVE)
def test_parameters_match_hand_count(name: str) -> None:
    network = build_on_meta(name, *NATIVE[name])
    assert sum(p.numel() for p in network.parameters()) == sum(COUNTS[name])


@pytest.mark.parametrize("name", NATIVE)
def test_weights_between_first_and_last_match_hand_count(name: str) -> None:
    weights = [layer.weight.numel() for layer in weight_layers(build_on_meta(name, *NATIVE[name])).values()]
    assert weights[0] == COUNTS[name][0]
    assert sum(weights[1:-1]) == COUNTS[name][1] == BETWEEN[name]


def test_vgg_variate_is_just_over_its_size() -> None:
    assert 840_000 <= BETWEEN["vgg-variate"] <= 850_000
    assert 840_000 <= sum(COUNTS["vgg-variate"]) <= 850_000


def test_resnet20_projections_hold_2560_weights() -> None:
    layers = weight_layers(build_on_meta("resnet20", *NATIVE["resnet20"]))
    projections = {name: layer.weight.numel() for name, layer in layers.items() if "shortcut" in name}
    assert projections == {"stage2.0.shortcut.conv": 512, "stage3.0.shortcut.conv": 2048}


@pytest.mark.parametrize("name", NATIVE)
def test_output_has_one_logit_a_class(name: str) -> None:
    shape, classes = NATIVE[name]
    assert output_shape(name, shape, classes) == (2, classes)


@pytest.mark.parametrize(
    "name", ["lenet-small", "lenet-medium", "lenet", "vgg-s", "vgg-variate", "resnet20", "alexnet"]
)
@pytest.mark.parametrize("channels", [1, 3])
def test_gray_and_color_are_both_taken(name: str, channels: int) -> None:
    assert output_shape(name, (channels, 64, 72), 7) == (2, 7)


@pytest.mark.parametrize("name", ["lenet-small", "vgg-variate", "resnet20"])
def test_small_networks_compute_finite_logits_and_gradients(name: str) -> None:
    torch.manual_seed(0)
    network = build_model(name, num_classes=10, input_shape=(1, 8, 8), dropout=0.0)
    logits = network(torch.randn(4, 1, 8, 8))
    logits.square().sum().backward()
    assert logits.shape == (4, 10)
    assert torch.isfinite(logits).all()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    name=st.sampled_from(["lenet-small", "lenet-medium", "lenet"]),
    channels=st.integers(1, 4),
    height=st.integers(4, 40),
    width=st.integers(4, 40),
    classes=st.integers(2, 30),
)
def test_lenet_takes_any_image_of_4_pixels(name: str, channels: int, height: int, width: int, classes: int) -> None:
    assert output_shape(name, (channels, height, width), classes) == (2, classes)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    name_and_least=st.sampled_from([("vgg-s", 8), ("vgg-variate", 8), ("resnet20", 3), ("alexnet", 63)]),
    extra_height=st.integers(0, 30),
    extra_width=st.integers(0, 30),
)
def test_networks_take_any_image_from_their_least_size(
    name_and_least: tuple[str, int], extra_height: int, extra_width: int
) -> None:
    name, least = name_and_least
    assert output_shape(name, (3, least + extra_height, least + extra_width), 5) == (2, 5)


@pytest.mark.parametrize("size", [17, 28, 64])
def test_resnet18_takes_small_images(size: int) -> None:
    assert output_shape("resnet18", (3, size, size), 5) == (2, 5)


@pytest.mark.parametrize("name", NATIVE)
def test_every_weight_layer_but_the_last_feeds_its_batchnorm(name: str) -> None:
    """By identity of tensors, each module called once: what a detector of normalized layers relies on."""
    shape, classes = NATIVE[name]
    network = build_on_meta(name, shape, classes)
    produced: list[Tensor] = []
    normalized: list[Tensor] = []
    for layer in weight_layers(network).values():
        layer.register_forward_hook(lambda _m, _i, out: produced.append(out))
    for norm in norms(network):
        norm.register_forward_pre_hook(lambda _m, inputs: normalized.append(inputs[0]))
    network(torch.empty(2, *shape, device="meta"))

    assert len(produced) == len(weight_layers(network))
    assert len(normalized) == len(norms(network)) == len(produced) - 1
    assert {id(t) for t in normalized} == {id(t) for t in produced[:-1]}


@pytest.mark.parametrize("name", NATIVE)
def test_only_the_last_weight_layer_has_a_bias(name: str) -> None:
    layers = list(weight_layers(build_on_meta(name, *NATIVE[name])).values())
    assert [layer.bias is not None for layer in layers] == [False] * (len(layers) - 1) + [True]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenet-small", ["conv1", "conv2", "fc1", "fc2"]),
        ("lenet-medium", ["conv1", "conv2", "fc1", "fc2"]),
        ("lenet", ["conv1", "conv2", "fc1", "fc2"]),
        ("vgg-s", ["conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2"]),
        ("vgg-variate", ["conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "fc1", "fc2"]),
        ("alexnet", ["conv1", "conv2", "conv3", "conv4", "conv5", "fc1", "fc2", "fc3"]),
    ],
)
def test_weight_layers_of_chains_have_readable_names(name: str, expected: list[str]) -> None:
    assert list(weight_layers(build_on_meta(name, *NATIVE[name]))) == expected


def test_resnet20_names_follow_stage_and_block() -> None:
    names = list(weight_layers(build_on_meta("resnet20", *NATIVE["resnet20"])))
    assert names[:3] == ["conv1", "stage1.0.conv1", "stage1.0.conv2"]
    assert names[-3:] == ["stage3.2.conv1", "stage3.2.conv2", "fc"]
    assert len(names) == 20 + 2  # twenty layers deep, and two projections beside them


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("lenet-small", ["fc2"]),
        ("lenet-medium", ["fc2"]),
        ("lenet", ["fc2"]),
        ("vgg-s", ["fc1", "fc2"]),
        ("vgg-variate", ["fc2"]),
        ("alexnet", ["fc1", "fc2"]),
    ],
)
def test_dropout_stands_before_the_recipes_layers(name: str, expected: list[str]) -> None:
    network = build_on_meta(name, *NATIVE[name], dropout=0.5)
    assert [next_weight_layer(network, drop) for drop in dropouts(network)] == expected
    assert all(m.p == 0.5 for m in network.modules() if isinstance(m, nn.Dropout))


@pytest.mark.parametrize("name", NATIVE)
def test_dropout_zero_leaves_no_dropout_module(name: str) -> None:
    assert dropouts(build_on_meta(name, *NATIVE[name])) == []


def test_dropout_leaves_other_names_as_they_are() -> None:
    plain = build_on_meta("vgg-s", *NATIVE["vgg-s"])
    dropped = build_on_meta("vgg-s", *NATIVE["vgg-s"], dropout=0.5)
    assert list(plain.state_dict()) == list(dropped.state_dict())


def test_weights_are_xavier_uniform() -> None:
    torch.manual_seed(0)
    network = build_model("lenet-small", num_classes=10, input_shape=(1, 8, 8))
    weight = weight_layers(network)["conv2"].weight
    bound = (6 / (16 * 25 + 32 * 25)) ** 0.5
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.99 * bound
    # a uniform distribution on (-b, b) has a standard deviation of b / √3
    assert weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
    assert not weight_layers(network)["fc2"].bias.any()


def test_same_seed_gives_same_weights() -> None:
    def seeded() -> dict[str, Tensor]:
        torch.manual_seed(3)
        return build_model("resnet20", num_classes=10, input_shape=(3, 32, 32)).state_dict()

    first, second = seeded(), seeded()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"unknown model 'lenet-smal'.*did you mean 'lenet-small'\?"):
        build_model("lenet-smal", num_classes=10, input_shape=(1, 8, 8))


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("lenet-small", 4),
        ("lenet-medium", 4),
        ("lenet", 4),
        ("vgg-s", 8),
        ("vgg-variate", 8),
        ("resnet20", 3),
        ("resnet18", 17),
        ("alexnet", 63),
    ],
)
@pytest.mark.parametrize("short_side", ["height", "width"])
def test_too_small_input_gives_a_one_line_error(name: str, least: int, short_side: str) -> None:
    height, width = (least - 1, 80) if short_side == "height" else (80, least - 1)
    with pytest.raises(ModelError) as caught:
        build_model(name, num_classes=10, input_shape=(3, height, width))
    assert str(caught.value) == (
        f"model {name}: the input must be at least {least}x{least} pixels (height x width), got {height}x{width}"
    )


def test_resnet18_rejects_gray_images() -> None:
    with pytest.raises(ModelError, match="model resnet18: the input must have 3 channels, got 1"):
        build_model("resnet18", num_classes=10, input_shape=(1, 32, 32))


@pytest.mark.parametrize("name", ["resnet20", "resnet18"])
def test_residual_networks_refuse_dropout(name: str) -> None:
    with pytest.raises(ModelError, match=f"model {name}: dropout must be 0, the network has none, got 0.5"):
        build_model(name, num_classes=10, input_shape=(3, 32, 32), dropout=0.5)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_classes": 0}, "model lenet: the number of outputs must be at least 1, got 0"),
        ({"input_shape": (0, 8, 8)}, "model lenet: the input must have at least 1 channel, got 0"),
        ({"dropout": 1.0}, "model lenet: dropout must be at least 0 and below 1, got 1.0"),
        ({"dropout": -0.1}, "model lenet: dropout must be at least 0 and below 1, got -0.1"),
    ],
)
def test_impossible_settings_are_rejected(change: dict[str, object], sentence: str) -> None:
    given_settings = {"num_classes": 10, "input_shape": (1, 8, 8), "dropout": 0.0} | change
    with pytest.raises(ModelError) as caught:
        build_model("lenet", **given_settings)
    assert str(caught.value) == sentence


@pytest.mark.e2e
def test_import_leaves_torchvision_alone() -> None:
    program = "import sys, sca_search.models; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
