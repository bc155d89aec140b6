"""Torch networks -> records, and records -> torch again: both against torch itself and the numpy reference."""

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError
from sca_search.export.folder import ExportOptions, export_network
from sca_search.export.graph import records as r
from sca_search.export.graph.network import Images, Network
from sca_search.export.graph.reference import evaluate
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.graph.trace import trace
from sca_search.models import build_model
from tests.support.networks import ternary_torchvision, torchvision_cases
from tests.support.random_records import every_operation, random_images, worst_difference

# A trace costs a third of a second, so that many layers share one. No shrinking: the assertion names the layer.
FEW = settings(max_examples=2, phases=[Phase.generate], deadline=None, derandomize=True)


class Head(nn.Module):
    """Any function of a map, made into three logits by an average and a layer."""

    def __init__(self, body: nn.Module, channels: int) -> None:
        super().__init__()
        self.body = body
        self.fc = nn.Linear(channels, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.fc(F.adaptive_avg_pool2d(self.body(images), 1).flatten(1))


class SideBySide(nn.Module):
    """Many functions of one map, their values one behind the other."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([part(images).flatten(1) for part in self.parts], 1)


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Tensor) -> Tensor:
        return self.function(*values)


def shaken(model: nn.Module) -> nn.Module:
    """Normalizations away from the identity, where folding them wrongly would not show."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2.0)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
    return model.eval()


def differences(model: nn.Module, graph: r.Graph, count: int = 2) -> tuple[float, float]:
    """How far numpy and torch, both run from the records, are from the network itself."""
    images = torch.randn(count, *graph.input_shape)
    with torch.no_grad():
        expected = copy.deepcopy(model).double()(images.double()).numpy()
        rebuilt = RecordNetwork(graph)(images).numpy()
    largest = np.abs(expected).max()
    reference = evaluate(graph, images.numpy())
    return float(np.abs(reference - expected).max() / largest), float(np.abs(rebuilt - expected).max() / largest)


def assert_traced(model: nn.Module, shape: tuple[int, ...], **options: Any) -> r.Graph:
    graph = trace(shaken(model), shape, **options)
    for difference in differences(model, graph):
        assert difference < 1e-5
    return graph


def assert_each_is_traced(parts: list[nn.Module], shape: tuple[int, ...]) -> r.Graph:
    """Each part by itself is as torch has it: a large value of one must not hide a wrong one of another."""
    model = shaken(SideBySide(parts))
    graph = trace(model, shape)
    images = torch.randn(2, *shape)
    with torch.no_grad():
        ours = torch.from_numpy(evaluate(graph, images.numpy()))
        rebuilt = RecordNetwork(graph)(images)
        begin = 0
        for part in parts:
            expected = copy.deepcopy(part).double()(images.double()).flatten(1)
            end = begin + expected.shape[1]
            for given in (ours, rebuilt):
                apart = (given[:, begin:end] - expected).abs().max()
                assert apart <= 1e-5 * max(1.0, expected.abs().max()), part
            begin = end
    assert begin == len(graph.class_names)
    return graph


@st.composite
def convolutions(draw: st.DrawFn) -> nn.Module:
    groups = draw(st.sampled_from([1, 2, 6]))
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    dilation = draw(st.tuples(st.integers(1, 2), st.integers(1, 2)))
    stride = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    padding: Any = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    if stride == (1, 1):
        padding = draw(st.sampled_from([padding, "same", "valid"]))
    torch.manual_seed(draw(st.integers(0, 9)))
    outputs = groups * draw(st.integers(1, 3))
    return nn.Conv2d(6, outputs, kernel, stride, padding, dilation, groups, bias=draw(st.booleans()))


@FEW
@given(st.lists(convolutions(), min_size=12, max_size=12), st.integers(7, 9), st.integers(7, 9))
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_convolution_is_traced_with_every_setting(layers: list[nn.Module], height: int, width: int) -> None:
    graph = assert_each_is_traced(layers, (6, height, width))
    assert sum(isinstance(record, r.Convolution) for record in graph.records) == 12


@st.composite
def pools(draw: st.DrawFn) -> nn.Module:
    kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
    padding = draw(st.tuples(st.integers(0, kernel[0] // 2), st.integers(0, kernel[1] // 2)))
    options = {"stride": draw(st.none() | st.integers(1, 3)), "padding": padding, "ceil_mode": draw(st.booleans())}
    return draw(
        st.sampled_from(
            [
                nn.MaxPool2d(kernel, **options),
                nn.AvgPool2d(kernel, **options, count_include_pad=draw(st.booleans())),
                nn.AdaptiveAvgPool2d(draw(st.integers(1, 10))),
                nn.AdaptiveMaxPool2d((draw(st.integers(1, 10)), 3)),
            ]
        )
    )


@FEW
@given(st.lists(pools(), min_size=20, max_size=20), st.integers(5, 9), st.integers(5, 9))
def test_pools_are_traced_with_every_setting(layers: list[nn.Module], height: int, width: int) -> None:
    assert_each_is_traced(layers, (3, height, width))


ACTIVATIONS = {
    "relu": nn.ReLU(),
    "relu6": nn.ReLU6(),
    "hardswish": nn.Hardswish(inplace=True),
    "hardsigmoid": nn.Hardsigmoid(),
    "silu": nn.SiLU(inplace=True),
    "gelu": nn.GELU(),
    "gelu_tanh": nn.GELU(approximate="tanh"),
    "sigmoid": nn.Sigmoid(),
    "tanh": nn.Tanh(),
    "leaky_relu": nn.LeakyReLU(0.2),
}


def test_activations_are_traced() -> None:
    wide = Function(lambda x: x * 4)  # far enough to both sides that every branch is taken
    graph = assert_each_is_traced([nn.Sequential(wide, each) for each in ACTIVATIONS.values()], (17, 5, 5))
    assert [record.kind for record in graph.records if isinstance(record, r.Activation)] == [*ACTIVATIONS]


FUNCTIONS: dict[str, Any] = {
    "clamp to 0 and 6": lambda x: x.clamp(0, 6),
    "clamp at 0": lambda x: x.clamp(min=0),
    "residual": lambda x: x + x.relu(),
    "difference": lambda x: x.relu() - x.sigmoid(),
    "difference with a factor": lambda x: torch.sub(x.relu(), x, alpha=3),
    "product of equals": lambda x: x * x.sigmoid(),
    "gate": lambda x: x * x.mean((2, 3), keepdim=True),
    "gate first": lambda x: x.mean((2, 3), keepdim=True) * x,
    "maximum over rows": lambda x: x.amax(2, keepdim=True),
    "mean over columns": lambda x: x.mean(3, keepdim=True),
    "mean over pixels in a row": lambda x: x.flatten(2).mean(-1),
    "constants": lambda x: (2.5 - x * 3) / 2 + 1,
    "constants by channel": lambda x: x * torch.arange(4.0).view(4, 1, 1) + torch.ones(1, 4, 1, 1),
    "channels behind each other": lambda x: torch.cat([x, x.relu(), x], 1),
    "one value behind nothing": lambda x: torch.cat([x], 1),
    "dropout": lambda x: F.dropout(x, 0.5, training=False),
    "squeezed and back": lambda x: x.mean((2, 3)).unsqueeze(2).unsqueeze(3) * x,
    "order of ones": lambda x: x.mean((2, 3), keepdim=True).permute(0, 1, 3, 2) * x,
    "hard swish by hand": lambda x: x * F.relu6(x + 3) / 6,
}


def test_functions_are_traced() -> None:
    assert_each_is_traced([Function(each) for each in FUNCTIONS.values()], (4, 6, 5))


class Block(nn.Module):
    """A branch, a shortcut and a concatenation, with layers that are called twice and layers that never are."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)
        self.never = nn.Conv2d(4, 4, 3, padding_mode="circular")
        self.first = nn.BatchNorm2d(4)

    def forward(self, images: Tensor) -> Tensor:
        images = self.first(images)
        once = self.relu(self.bn(self.conv(images)))
        twice = self.relu(self.bn(self.conv(once)) + images)
        self.never(images)
        return torch.cat([once, twice], 1)


def test_branches_concatenation_and_layers_called_twice_are_traced() -> None:
    graph = assert_traced(Head(Block(), 8), (4, 6, 6))
    names = [record.name for record in graph.records]
    # The first normalization has no layer in front of it; the others are folded; what has no use is gone.
    assert names[:3] == ["body.first", "body.conv", "body.relu"]
    assert "body.conv_2" in names
    assert "body.relu_2" in names
    assert not any("bn" in name or "never" in name for name in names)
    assert isinstance(graph.records[0], r.ChannelAffine)


def test_normalization_is_folded_by_hand() -> None:
    model = nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1, eps=0.0)).eval()
    state = {"0.weight": [[1.0, -1.0]], "0.bias": [0.5], "1.weight": [3.0], "1.bias": [1.0]}
    state |= {"1.running_mean": [2.0], "1.running_var": [4.0], "1.num_batches_tracked": 0}
    model.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    graph = trace(model, (2,), ternary_layers=["0"])
    (layer,) = graph.records
    assert isinstance(layer, r.Linear)
    assert layer.weight.dtype == np.int8
    # 3 · (sum + 0.5 - 2) / √4 + 1 = 1.5 · sum - 1.25
    assert layer.scale.tolist() == [1.5]
    assert layer.bias.tolist() == [-1.25]


def test_normalization_stays_where_the_layer_has_another_user() -> None:
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.bn = nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)

        def forward(self, images: Tensor) -> Tensor:
            sums = self.conv(images)
            return (self.bn(sums) + sums).mean((2, 3))

    graph = assert_traced(Shared(), (1, 3, 3))
    assert [type(record) for record in graph.records[:3]] == [r.Convolution, r.ChannelAffine, r.Add]


def test_zeros_around_a_map_go_into_the_convolution() -> None:
    body = nn.Sequential(nn.ZeroPad2d((1, 2, 0, 3)), nn.Conv2d(3, 2, 2, padding=1))
    graph = assert_traced(Head(body, 2), (3, 4, 4))
    assert isinstance(graph.records[0], r.Convolution)
    assert graph.records[0].padding == (1, 4, 2, 3)


def test_computed_weight_is_a_constant() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv2d(3, 4, 3))
    graph = assert_traced(Head(layer, 4), (3, 5, 5))
    assert isinstance(graph.records[0], r.Convolution)
    assert np.allclose(graph.records[0].weight, layer.weight.detach().numpy(), atol=1e-7)


def test_given_network_keeps_its_mode_and_type() -> None:
    model = Head(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5)), 4).double().train()
    trace(model, (3, 5, 5))
    assert model.training
    assert model.fc.weight.dtype == torch.float64


def test_input_is_normalized_inside() -> None:
    model = Head(nn.Conv2d(2, 2, 1), 2).eval()
    graph = trace(model, (2, 3, 3), mean=[1.0, -2.0], std=[0.5, 4.0], class_names=["a", "b", "c"])
    images = torch.randn(2, 2, 3, 3)
    with torch.no_grad():
        expected = model((images - torch.tensor([1.0, -2.0]).view(2, 1, 1)) / torch.tensor([0.5, 4.0]).view(2, 1, 1))
        assert torch.allclose(RecordNetwork(graph)(images), expected, atol=1e-6)
    assert np.allclose(evaluate(graph, images.numpy()), expected.numpy(), atol=1e-6)
    assert graph.class_names == ("a", "b", "c")


REFUSED = {
    "softmax": lambda x: x.softmax(1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "permutation": lambda x: x.permute(0, 1, 3, 2),
    "shuffle of channels": lambda x: x.view(len(x), 2, 2, 6, 5).transpose(1, 2).reshape(len(x), 4, 6, 5),
    "mean over channels": lambda x: x - x.mean(1, keepdim=True),
    "mix of the batch": lambda x: x.roll(1, 0),
    "batch flattened away": lambda x: x.view(1, -1, 6, 5).mean(1, keepdim=True).expand(2, 4, 6, 5),
    "padding that is not zero": lambda x: F.conv2d(F.pad(x, (1, 1, 1, 1), value=2.0), torch.ones(4, 4, 3, 3)),
    "padding before a pool": lambda x: F.max_pool2d(F.pad(x, (1, 1, 1, 1)), 3, 1),
    "mirrored border": lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
    "dilated pool": lambda x: F.max_pool2d(x, 2, 1, dilation=2),
    "divisor of its own": lambda x: F.avg_pool2d(x, 2, divisor_override=3),
    "clamp to other limits": lambda x: x.clamp(-1, 1),
    "constant of a map": lambda x: x + torch.ones(6, 5),
    "quotient": lambda x: x / (x.abs() + 1),
    "transposed convolution": lambda x: F.conv_transpose2d(x, torch.ones(4, 4, 1, 1)),
    "sum of unequal shapes": lambda x: x + x.mean((2, 3), keepdim=True),
    "weight that depends on the input": lambda x: F.conv2d(x, x.mean((0, 2, 3)).view(4, 1, 1, 1), groups=4),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_records_cannot_express_is_refused_with_layer_and_operation(name: str) -> None:
    model = Head(nn.Sequential(nn.Conv2d(3, 4, 1), Function(REFUSED[name])), 4).eval()
    with pytest.raises(ExportError, match=r"body\.1: the operation aten\."):
        trace(model, (3, 6, 5))


def test_training_statistics_are_refused() -> None:
    with pytest.raises(ExportError, match=r"body.*batch_norm"):
        trace(Head(nn.BatchNorm2d(3, track_running_stats=False), 3), (3, 4, 4))


def test_network_that_cannot_be_traced_is_refused() -> None:
    def branch(x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x

    with pytest.raises(ExportError, match="cannot be traced"):
        trace(Head(Function(branch), 3), (3, 4, 4))


def test_output_that_is_no_vector_is_refused() -> None:
    with pytest.raises(ExportError, match=r"one number per class, got the shape \(4, 5, 5\)"):
        trace(nn.Conv2d(3, 4, 1), (3, 5, 5))
    with pytest.raises(ExportError, match="depends on its input"):
        trace(Function(lambda _: torch.ones(2, 3)), (3, 5, 5))


def test_weights_that_are_no_trits_are_refused() -> None:
    model = Head(nn.Conv2d(3, 4, 1), 4)
    with pytest.raises(ExportError, match="body: the layer is said to be ternary, and its weights are not"):
        trace(model, (3, 5, 5), ternary_layers=["body"])
    with pytest.raises(ExportError, match="nowhere: the layer is said to be ternary, and the network does not call it"):
        trace(model, (3, 5, 5), ternary_layers=["nowhere"])


def test_infinite_weight_is_refused() -> None:
    model = Head(nn.Conv2d(3, 4, 1), 4)
    model.fc.bias.data[0] = torch.inf
    with pytest.raises(ExportError, match=r"fc: the bias must be .* finite"):
        trace(model, (3, 5, 5))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("lenet-small", (1, 8, 8)),
        ("lenet", (1, 28, 28)),
        ("vgg-variate", (3, 32, 32)),
        ("resnet20", (3, 32, 32)),
    ],
)
def test_networks_of_the_package_are_traced(name: str, shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    model = build_model(name, num_classes=10, input_shape=shape, dropout=0.0 if name == "resnet20" else 0.3)
    graph = assert_traced(model, shape)
    assert not any(isinstance(record, r.ChannelAffine) for record in graph.records)
    layers = [layer for layer, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)]
    weighted = [record.name for record in graph.records if isinstance(record, r.Convolution | r.Linear)]
    assert sorted(weighted) == sorted(layers)


@pytest.mark.parametrize(
    "name", torchvision_cases("resnet18", "mobilenet_v3_small", "squeezenet1_1", "vgg11_bn", "alexnet")
)
def test_torchvision_is_traced(name: str) -> None:
    small = name in ("resnet18", "squeezenet1_1", "vgg11_bn")
    graph, images, logits = ternary_torchvision(name, 64 if small else 224)
    rebuilt = RecordNetwork(graph)(torch.from_numpy(images)).numpy()
    assert np.abs(rebuilt - logits).max() / np.abs(logits).max() < 1e-5
    assert abs(graph.sparsity - 0.5) < 0.01


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 5), (17, 7, 4)])
def test_every_operation_is_rebuilt_as_the_reference_has_it(shape: tuple[int, int, int]) -> None:
    for seed in range(4):
        graph, names = every_operation(shape, seed)
        images = random_images(graph, 2, seed)
        logits = RecordNetwork(graph)(torch.from_numpy(images)).numpy()
        worst, where = worst_difference(graph, names, images, logits)
        assert worst < 1e-5, where


def test_rebuilt_network_refuses_other_images_and_moves_with_its_weights() -> None:
    graph, _ = every_operation((3, 5, 5), 0)
    network = RecordNetwork(graph)
    with pytest.raises(ValueError, match=r"images must have the shape \(batch, \(3, 5, 5\)\), got \(2, 3, 5, 6\)"):
        network(torch.zeros(2, 3, 5, 6))
    assert network.double()(torch.zeros(1, 3, 5, 5, dtype=torch.float64)).dtype == torch.float64


# Sequences

SEQUENCES: dict[str, Callable[[], nn.Module]] = {
    "convolution": lambda: nn.Conv1d(3, 5, 4, stride=2, padding=1, dilation=2, groups=1),
    "same padding": lambda: nn.Conv1d(3, 6, 4, padding="same", groups=3),
    "normalization": lambda: nn.Sequential(nn.Conv1d(3, 5, 3), nn.BatchNorm1d(5), nn.ReLU()),
    "zeros around": lambda: nn.Sequential(nn.ConstantPad1d((2, 1), 0.0), nn.Conv1d(3, 5, 3)),
    "maximum": lambda: nn.MaxPool1d(3, 2, padding=1),
    "average": lambda: nn.AvgPool1d(3, 2, padding=1, count_include_pad=False),
    "shared out": lambda: nn.Sequential(nn.AdaptiveMaxPool1d(7), nn.AdaptiveAvgPool1d(3)),
}


@pytest.mark.parametrize("kind", SEQUENCES)
def test_a_sequence_is_traced_as_a_map_one_pixel_high(kind: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(SEQUENCES[kind](), nn.Flatten()).eval()
    graph = trace(model, (3, 20))
    assert graph.input_shape == (3, 20)
    assert {record.shape[1] for record in graph.records if len(record.shape) == 3} == {1}
    images = torch.randn(4, 3, 20)
    expected = model(images).detach().numpy()
    assert np.abs(evaluate(graph, images.numpy()) - expected).max() < 1e-5
    assert np.abs(RecordNetwork(graph)(images).numpy() - expected).max() < 1e-5


def test_a_mean_over_a_sequence_is_a_pool() -> None:
    model = Function(lambda x: x.mean(2))
    images = torch.randn(4, 3, 20)
    assert np.abs(evaluate(trace(model, (3, 20)), images.numpy()) - images.mean(2).numpy()).max() < 1e-6


@pytest.mark.e2e
def test_a_network_for_sequences_is_exported_in_every_format(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(2, 8, 5, padding=2),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.MaxPool1d(2),
        nn.Conv1d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 3),
    ).eval()
    with torch.no_grad():
        model[4].weight.copy_(torch.randint(-1, 2, (16, 8, 3)))
    images = np.random.default_rng(0).standard_normal((8, 2, 64)).astype(np.float32)
    given = Images(8, lambda: [images])
    network = Network(model, InputSpec((2, 64), ("a", "b", "c"), (0.5, 0.0), (1.0, 2.0)), ("4",), images=given)
    exported = export_network(tmp_path / "out", network)
    assert exported.verification.holds
    compared = [
        check.file for check in exported.verification.checks if "8 validation " in f"{check.what} {check.found}"
    ]
    assert {"model.safetensors", "c/model.c", "model.onnx", "model.pt2"} <= set(compared)
    integers = replace(network, training=given)
    assert export_network(tmp_path / "int8", integers, ExportOptions(("c",), activations="int8")).verification.holds
