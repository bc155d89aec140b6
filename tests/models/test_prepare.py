"""Any network made ready: scales where they are missing, weights before anything else, one way back from a state."""

import copy
import threading

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sca_search.config.candidate import Candidate, Ramp, Tracked
from sca_search.config.study import ModelSpec, StudySpec
from sca_search.errors import ExportError, ModelError
from sca_search.export.folder import ExportOptions, export_network
from sca_search.export.graph.network import Network
from sca_search.export.graph.trace import trace
from sca_search.models import find_maker
from sca_search.models.prepare import Attention, prepared, rebuilt
from sca_search.models.scales import put_output_scales, scaled_layers
from sca_search.study.setup import make_task
from sca_search.ternary.exact import Floor
from sca_search.ternary.parametrize import bake_trits, parametrize_layers
from sca_search.training.task import Task
from sca_search.training.train import train_candidate, train_dense

SPEC = ModelSpec()


def plain_cnn():
    """No normalization anywhere."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )


def candidate(sparsity, **settings):
    return Candidate(
        sparsity=sparsity,
        alpha=Tracked(),
        strength=Ramp(first=1.0, last=20.0),
        learning_rate=0.01,
        latent_learning_rate=0.02,
        frozen_learning_rate=0.005,
        **settings,
    )


class Volumes(nn.Module):
    """Convolutions over volumes and sequences, transposed ones, attention and a mixer's full layers."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 1)
        self.volume = nn.Conv3d(4, 4, (1, 3, 3), padding=(0, 1, 1))
        self.up3 = nn.ConvTranspose3d(4, 4, (2, 1, 1))
        self.up2 = nn.ConvTranspose2d(8, 6, 3, padding=1, groups=2)
        self.up1 = nn.ConvTranspose1d(6, 8, 2, stride=2)
        self.line = nn.Conv1d(8, 8, 3, padding=1)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.mix = nn.Linear(32, 32)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        x = F.avg_pool2d(self.stem(x), 2)  # 4, 4, 4
        x = self.up3(F.relu(self.volume(x[:, :, None])))  # 4, 2, 4, 4
        x = F.relu(self.up2(x.flatten(1, 2)))  # 6, 4, 4
        x = F.relu(self.line(F.relu(self.up1(x.flatten(2)))))  # 8, 32
        x = x + self.mix(x)
        x = x.transpose(1, 2)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x.mean(1))


# Scales


def test_layers_without_a_normalization_after_them_get_a_scale():
    def make():
        return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 6), nn.Linear(6, 3))

    network = prepared(make, (4,), 3, SPEC)
    assert scaled_layers(network.make_model().state_dict()) == ["3"]
    assert {choice.layer.name: choice.why for choice in network.choices} == {
        "0": "first weight layer",
        "1": "normalization follows: Θ rescaled",
        "3": "no normalization follows: a learned output scale",
        "4": "last weight layer",
    }


def test_a_scale_multiplies_the_sum_and_not_the_bias():
    torch.manual_seed(0)
    layer = nn.Conv2d(2, 3, 3, padding=1)
    model = put_output_scales(nn.Sequential(copy.deepcopy(layer)), ["0"])
    given = torch.randn(2, 2, 5, 5)
    assert torch.equal(model(given), layer(given))
    with torch.no_grad():
        model[0].output_scale.fill_(0.25)
    sums = F.conv2d(given, layer.weight, padding=1)
    expected = 0.25 * sums + layer.bias.view(3, 1, 1)
    assert torch.allclose(model(given), expected, atol=1e-6)
    assert torch.allclose(model[0](input=given), expected, atol=1e-6)
    assert torch.allclose(copy.deepcopy(model)(given), expected, atol=1e-6)


def test_ternarizing_keeps_the_size_of_what_a_layer_gives():
    torch.manual_seed(0)
    model = put_output_scales(nn.Sequential(nn.Linear(64, 32)), ["0"])
    given = torch.randn(100, 64)
    before = model(given)
    parametrize_layers(model, {"0": 0.1})  # so small a spread that tanh Θ is nearly Θ
    assert torch.allclose(model(given), before, atol=0.02)
    bake_trits(model, {"0": torch.ones(32, 64)})
    assert sorted(model.state_dict()) == ["0.bias", "0.output_scale", "0.weight"]
    assert model[0].output_scale.requires_grad


def test_a_scale_is_folded_into_the_record_after_a_padding_too():
    torch.manual_seed(0)
    model = put_output_scales(
        nn.Sequential(nn.ReLU(), nn.ZeroPad2d((1, 0, 2, 1)), nn.Conv2d(2, 3, 3), nn.Flatten()), ["2"]
    )
    with torch.no_grad():
        model[2].output_scale.fill_(0.3)
        model[2].weight.copy_(torch.randint(-1, 2, (3, 2, 3, 3)))
    graph = trace(model, (2, 4, 5), ternary_layers=["2"])
    layer = graph.record("2")
    assert [type(record).__name__ for record in graph.records] == ["Activation", "Convolution", "Reshape"]
    assert layer.weight.dtype == np.int8
    assert layer.scale.tolist() == [pytest.approx(0.3)] * 3
    assert layer.bias.tolist() == pytest.approx(model[2].bias.tolist())


# A network without any normalization, from data to files


@pytest.mark.e2e
def test_a_network_without_normalization_is_searched_and_exported(tmp_path):
    data = make_task(StudySpec()).data
    network = prepared(plain_cnn, data.input_shape, 10, SPEC)
    task = Task(data, network.make_model, network.choices)
    start = train_dense(task, epochs=4, learning_rate=0.005, seed=0)
    chosen = candidate(0.9, epochs=4, frozen_epochs=2)
    trained = train_candidate(chosen, task, start)
    assert sum(count.zeros for count in trained.counts.values()) == round(0.9 * (16 * 32 * 9 + 512 * 48))
    assert trained.score.accuracy > 0.8
    again = rebuilt(plain_cnn, trained.model.state_dict())
    given = data.val.images[:16]
    assert torch.equal(again(given), trained.model.eval()(given))
    described = Network(again, data.input, task.ternary_layers)
    ternary = {layer.name: layer for layer in described.graph().ternary_layers}
    assert ternary.keys() == {"2", "6"}
    for name, layer in ternary.items():
        assert set(layer.scale.tolist()) == {again.get_submodule(name).output_scale.item()}
    exported = export_network(tmp_path / "out", described, ExportOptions(formats=("packed", "c", "onnx")))
    assert exported.verification.holds


# Every kind of layer


@pytest.fixture(scope="module")
def volumes():
    data = make_task(StudySpec.model_validate({"data": {"train_limit": 200}})).data
    network = prepared(Volumes, data.input_shape, 10, SPEC)
    return Task(data, network.make_model, network.choices, floor=Floor(1, 1)), network


def test_every_kind_of_layer_becomes_ternary_and_is_trained(volumes):
    task, _ = volumes
    names = "volume up3 up2 up1 line mix attention.q_proj attention.k_proj attention.v_proj attention.out_proj"
    assert task.ternary_layers == tuple(names.split())
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    chosen = candidate(0.7, epochs=1, frozen_epochs=1)
    trained = train_candidate(chosen, task, start)
    for name in task.ternary_layers:
        assert set(trained.model.get_submodule(name).weight.unique().tolist()) <= {-1.0, 0.0, 1.0}
    assert trained.counts["up2"].weights == 8 * 3 * 9
    outputs = trained.model.up2.weight.view(2, 4, 3, 9).transpose(1, 2).reshape(6, -1)
    assert (outputs != 0).any(1).all()  # a floor of one for each output channel


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("only", "sentence"),
    [
        ("volume", "volume: a convolution over volumes cannot be exported; supported are convolutions over images"),
        ("attention.q_proj", "cannot be exported; supported are"),
    ],
)
def test_what_records_cannot_say_is_rejected_by_the_layers_name(only, sentence):
    network = Volumes().eval()
    with pytest.raises(ExportError, match=sentence):
        trace(network, (1, 8, 8), ternary_layers=[])


def test_attention_is_rejected_by_its_name():
    class Attends(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = Attention(nn.MultiheadAttention(4, 2, batch_first=True))

        def forward(self, x):
            return self.attention(x, x, x, need_weights=False)[0].flatten(1)

    with pytest.raises(ExportError, match="attention: attention cannot be exported; supported are"):
        trace(Attends(), (3, 4))


# Refusals and weights


def lazy():
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.Linear(4, 4), nn.Linear(4, 3))


class Twofold(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))

    def forward(self, x):
        return (self.layers(x), x) if self.training else self.layers(x)


class Edited(nn.Module):
    """A small network whose result is `edit` of its usual one."""

    def __init__(self, edit=lambda x: x):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
        self.edit = edit

    def forward(self, x):
        return self.edit(self.layers(x))


def locked():
    network = Edited()
    network.lock = threading.Lock()
    return network


def complex_weights():
    network = Edited(lambda x: (x * network.factors).real)
    network.factors = nn.Parameter(torch.ones(3, dtype=torch.complex64))
    return network


def complex_buffer():
    network = Edited(lambda x: (x * network.factors).real)
    network.register_buffer("factors", torch.ones(3, dtype=torch.complex64))
    return network


def for_pairs():
    return Edited(lambda x: x.reshape(2, -1))


def squeezed():
    return Edited(torch.squeeze)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lazy, "the network's 1.weight is lazy: a layer must have its sizes when it is created"),
        (nn.Flatten, "the network has no parameters to train"),
        (Twofold, r"shape \(2, 3\) for two; got a tuple in training mode"),
        (
            locked,
            r"^the network must be copyable by copy\.deepcopy, got TypeError: cannot pickle '_thread\.lock' object$",
        ),
        (complex_weights, r"^the network's factors must hold real numbers, got torch\.complex64$"),
        (complex_buffer, r"^the network's factors must hold real numbers, got torch\.complex64$"),
        (for_pairs, r"^the network fails for a batch of one input: RuntimeError: shape '\[2, -1\]' is invalid"),
        (squeezed, r"shape \(1, 3\) for one; got the shape \(3,\) for a batch of one input$"),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_network_that_cannot_be_searched_is_rejected(make, sentence):
    with pytest.raises(ModelError, match=sentence):
        prepared(make, (4,), 3, SPEC)


def test_weights_are_loaded_before_the_network_is_changed(tmp_path):
    torch.manual_seed(0)
    trained = Volumes().eval()
    torch.save(trained.state_dict(), tmp_path / "w.pt")
    network = prepared(Volumes, (1, 8, 8), 10, ModelSpec(weights=tmp_path / "w.pt"))
    assert network.make_start is not None
    start = network.make_start().eval()
    given = torch.randn(3, 1, 8, 8)
    assert isinstance(start.attention, Attention)
    assert torch.allclose(start(given), trained(given), atol=1e-5)
    (tmp_path / "w.pt").unlink()
    network.make_model()  # which needs no file


def test_a_state_of_another_network_is_rejected():
    state = {"nowhere.output_scale": torch.ones(())}
    with pytest.raises(RuntimeError, match="nowhere"):
        rebuilt(plain_cnn, state)


def test_frozen_parameters_are_never_trained():
    def make():
        torch.manual_seed(3)
        model = plain_cnn()
        model[0].requires_grad_(False)
        return model

    data = make_task(StudySpec.model_validate({"data": {"train_limit": 100}})).data
    network = prepared(make, data.input_shape, 10, SPEC)
    task = Task(data, network.make_model, network.choices)
    start = train_dense(task, epochs=1, learning_rate=0.01, seed=0)
    trained = train_candidate(candidate(0.5, epochs=1, frozen_epochs=1), task, start)
    assert torch.equal(trained.model[0].weight, make()[0].weight)


def test_tied_weights_are_kept_tied_and_dense(tmp_path):
    def make():
        model = nn.Sequential(nn.Flatten(), *[nn.Linear(64, 64) for _ in range(4)], nn.Linear(64, 10))
        model[3].weight = model[2].weight
        return model

    network = prepared(make, (1, 8, 8), 10, SPEC)
    assert [choice.layer.name for choice in network.choices if choice.ternary] == ["4"]
    model = network.make_model()
    assert model[3].weight is model[2].weight


@pytest.mark.e2e
def test_every_layer_of_mobilenet_is_exported_with_its_scale():
    """Depthwise convolutions, gates and hardswish; the gates' layers have no normalization."""
    make = find_maker("torchvision:mobilenet_v3_small", num_classes=4, input_shape=(1, 32, 32))
    network = prepared(make, (1, 32, 32), 4, SPEC)
    names = [choice.layer.name for choice in network.choices if choice.ternary]
    model = network.make_model()
    with torch.no_grad():
        for name in names:
            weight = model.get_submodule(name).weight
            weight.copy_(torch.randint(-1, 2, weight.shape))
        for name in scaled_layers(model.state_dict()):
            model.get_submodule(name).output_scale.fill_(0.125)
    graph = trace(model, (1, 32, 32), ternary_layers=names)
    assert {layer.name for layer in graph.ternary_layers} == set(names)
    assert set(graph.record("features.1.block.1.fc1").scale.tolist()) == {0.125}
