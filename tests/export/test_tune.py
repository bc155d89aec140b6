"""Which kernel a layer gets, when each is timed on the machine at hand."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import CONVOLUTION_KERNELS, LINEAR_KERNELS
from sca_search.export.folder import ExportOptions, export_network
from sca_search.export.graph.network import Network
from sca_search.export.graph.records import INPUT, Activation, Graph, WeightRecord
from sca_search.export.graph.reference import every_value
from sca_search.export.latency.timing import Timing
from sca_search.export.latency.tune import layer_input, layer_models, one_layer, tune
from tests.support.command import Outcome
from tests.support.random_records import Builder, random_images


def graph_of() -> Graph:
    builder = Builder((3, 9, 8), np.random.default_rng(4))
    first = builder.convolution(INPUT, 6, (3, 3), "trits", padding=(1, 1, 1, 1))
    second = builder.add(Activation("relu", (first,), (), "relu"))
    third = builder.convolution(second, 5, (3, 3), "trits", stride=(2, 2))
    return builder.graph([builder.linear(third, 7, "trits"), builder.linear(INPUT, 2, "floats")])


def test_layer_alone_computes_what_it_computes_in_the_graph() -> None:
    graph = graph_of()
    values = every_value(graph, random_images(graph, 1))
    for layer in graph.ternary_layers:
        alone = one_layer(graph, layer)
        assert alone.ternary_layers[0].name == layer.name
        given = values[layer.inputs[0]]
        found = every_value(alone, given.astype(np.float32))[alone.output]
        assert np.allclose(found, values[layer.name].reshape(1, -1), rtol=1e-5, atol=1e-5)


@pytest.mark.e2e
def test_every_kernel_of_a_layer_gives_the_same_answer() -> None:
    graph = graph_of()
    for layer in graph.ternary_layers:
        models = layer_models(graph, layer)
        known = CONVOLUTION_KERNELS if "conv" in layer.name else LINEAR_KERNELS
        assert set(models) <= set(known)
        assert len(models) >= 2
        image = layer_input(graph, layer)
        expected = every_value(one_layer(graph, layer), image[None])[layer.name].reshape(-1)
        for model in models.values():
            assert model(image)[0] == pytest.approx(expected[0], rel=1e-4, abs=1e-4)


def test_input_of_a_layer_is_half_zeros() -> None:
    graph = graph_of()
    image = layer_input(graph, graph.ternary_layers[0])
    assert image.shape == (3, 9, 8)
    assert 0.4 < float((image == 0).mean()) < 0.6


def test_fastest_kernel_is_chosen_for_each_layer() -> None:
    graph = graph_of()
    names = [layer.name for layer in graph.ternary_layers]
    fastest = dict(zip(names, ("b", "a", "b"), strict=True))
    said: list[str] = []

    def timer(given: Graph, layer: WeightRecord) -> Mapping[str, Timing]:
        assert given is graph
        seconds = {"a": 2e-6, "b": 3e-6} | {fastest[layer.name]: 1e-6}
        return {kind: Timing(np.full(9, each), np.full(9, True)) for kind, each in seconds.items()}

    assert tune(graph, said.append, timer) == fastest
    assert said[0] == f"{names[0]}: b (a 2.0 µs, b 1.0 µs)"


def test_graph_without_ternary_layers_has_nothing_to_tune() -> None:
    builder = Builder((3, 4, 4), np.random.default_rng(0))
    graph = builder.graph([builder.linear(INPUT, 2, "floats"), builder.linear(INPUT, 3, "floats")])
    assert tune(graph) == {}


def small_network() -> Network:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    nn.init.constant_(model[2].weight, 1.0)
    return Network(model, InputSpec((1, 8, 8), ("a", "b", "c")), ("2",))


@pytest.mark.e2e
def test_tuned_export_is_verified(tmp_path: Path) -> None:
    said: list[str] = []
    options = ExportOptions(formats=("c",), tune=True, say=said.append)
    exported = export_network(tmp_path / "out", small_network(), options)
    assert exported.verification.holds
    assert any("µs" in line for line in said)


@pytest.mark.e2e
def test_stored_weights_need_no_tables(tmp_path: Path) -> None:
    for stored in (False, True):
        folder = tmp_path / str(stored)
        exported = export_network(folder, small_network(), ExportOptions(formats=("c",), stored=stored))
        assert exported.verification.holds
        assert ("#define MODEL_TABLES 0\n" in (folder / "c" / "model.h").read_text()) == stored


def test_tuning_without_a_compiler_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ExportError, match="no C compiler was found"):
        export_network(tmp_path / "out", small_network(), ExportOptions(formats=("c",), tune=True))
    assert not (tmp_path / "out").exists()


@pytest.mark.e2e
def test_command_exports_what_it_tuned(tiny_run: tuple[Path, str], run: Callable[..., Outcome]) -> None:
    done = run("export", str(tiny_run[0]), "--out", "out", "--format", "packed,c", "--tune", "--stored")
    assert done.returncode == 0, done.stderr
    assert "µs" in done.stdout
    assert "everything agrees" in done.stdout
    assert "#define MODEL_TABLES 0\n" in Path("out/c/model.h").read_text()
