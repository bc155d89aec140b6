"""The ONNX export: checked by onnx, run by onnxruntime, compared operation by operation with the reference."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sca_search.errors import ExportError
from sca_search.export.graph.records import INPUT, AdaptivePool, Graph, Pool
from sca_search.export.graph.reference import evaluate
from sca_search.export.onnx.nodes import pack_int2
from sca_search.export.onnx.write import count_zeros_onnx, onnx_model, open_onnx, write_onnx
from tests.support.networks import ternary_torchvision, torchvision_cases
from tests.support.random_records import WEIGHT_KINDS, Builder, every_operation, random_images, worst_difference

SHAPES = st.tuples(st.sampled_from([1, 2, 3, 4, 6, 17]), st.integers(1, 9), st.integers(1, 9))
IN_ONE_FOLDER = [HealthCheck.function_scoped_fixture]  # each example writes the file anew


def small_graph() -> Graph:
    builder = Builder((3, 5, 5), np.random.default_rng(3))
    first = builder.convolution(INPUT, 4, (3, 3), "trits")
    return builder.graph([builder.linear(first, 3, "trits"), builder.linear(first, 2, "floats")])


@pytest.mark.parametrize("int2", [False, True])
@settings(max_examples=12, deadline=None, suppress_health_check=IN_ONE_FOLDER)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_every_operation_agrees_with_the_reference(
    tmp_path: Path, int2: bool, shape: tuple[int, int, int], seed: int
) -> None:
    graph, names = every_operation(shape, seed)
    path, images = tmp_path / "model.onnx", random_images(graph, 3)
    write_onnx(path, graph, int2=int2)
    difference, where = worst_difference(graph, names, images, open_onnx(path)(images))
    assert difference <= 1e-5, where


def test_odd_maps_and_channels_agree_with_the_reference(tmp_path: Path) -> None:
    builder = Builder((3, 7, 7), np.random.default_rng(0))
    names = []
    for size in (7, 5, 1):
        cut = builder.add(Pool("cut", (INPUT,), (), "max", (8 - size, 8 - size), (1, 1)))
        for channels in (1, 3, 17):
            source = builder.convolution(cut, channels, (1, 1), "trits")
            names += [builder.convolution(source, 17, (3, 3), kind, padding=(1, 1, 1, 1)) for kind in WEIGHT_KINDS]
    graph = builder.graph(names)
    path, images = tmp_path / "model.onnx", random_images(graph, 2)
    write_onnx(path, graph)
    difference, where = worst_difference(graph, names, images, open_onnx(path)(images))
    assert difference <= 2e-6, where


def test_pools_that_hang_over_the_edge_agree_by_hand(tmp_path: Path) -> None:
    # A row 1 2 3 4 6, windows of 2 every 3 with one cell of padding, ceil mode: cells (pad, 1), (3, 4), and from
    # place 5 on: (pad, beyond). The last begins in the padding: not counted. Average with padding: 0.5 and 3.5.
    # Windows of 4 every 4, no padding, ceil mode: (1 2 3 4) and (6, beyond): means 2.5 and 6, maxima 4 and 6.
    # Windows of 4 every 3, two of padding: (pad pad 1 2), (2 3 4 6), (6 pad pad, beyond): the last counts its three
    # cells in the padded map: 3 / 4, 15 / 4 and 6 / 3.
    builder = Builder((1, 1, 5), np.random.default_rng(0))
    pools = [
        Pool("a", (INPUT,), (), "average", (1, 2), (1, 3), (0, 0, 1, 1), True, True),
        Pool("b", (INPUT,), (), "average", (1, 4), (1, 4), (0, 0, 0, 0), True, False),
        Pool("c", (INPUT,), (), "max", (1, 4), (1, 4), (0, 0, 0, 0), True, False),
        Pool("d", (INPUT,), (), "average", (1, 4), (1, 3), (0, 0, 2, 2), True, True),
        # five cells in three parts: 0-1, 1-3, 3-4
        AdaptivePool("e", (INPUT,), (1, 1, 3), "average"),
        AdaptivePool("f", (INPUT,), (1, 1, 3), "max"),
    ]
    base = builder.graph([builder.add(pool) for pool in pools])
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    graph = Graph(base.input_shape, zero, one, base.records, base.output, base.class_names)
    write_onnx(tmp_path / "model.onnx", graph)
    (given,) = open_onnx(tmp_path / "model.onnx")(np.array([[[[1, 2, 3, 4, 6]]]], dtype=np.float32))
    expected = [0.5, 3.5, 2.5, 6, 4, 6, 0.75, 3.75, 2, 1.5, 3, 5, 2, 4, 6]
    assert given.tolist() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_any_batch_runs(tmp_path: Path, count: int) -> None:
    graph = small_graph()
    write_onnx(tmp_path / "model.onnx", graph)
    images = random_images(graph, count)
    expected = evaluate(graph, images)
    logits = open_onnx(tmp_path / "model.onnx")(images)
    assert logits.shape == (count, 5)
    assert np.abs(logits - expected).max() <= 1e-5 * np.abs(expected).max()


def test_vectors_are_models_too(tmp_path: Path) -> None:
    builder = Builder((6,), np.random.default_rng(1))
    graph = builder.graph([builder.linear(INPUT, 4, "trits"), builder.linear(INPUT, 2, "floats")])
    write_onnx(tmp_path / "model.onnx", graph)
    images = random_images(graph, 3)
    assert np.allclose(open_onnx(tmp_path / "model.onnx")(images), evaluate(graph, images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("int2", [False, True])
def test_ternary_weights_are_stored_as_trits(tmp_path: Path, int2: bool) -> None:
    graph, _ = every_operation((3, 5, 5), 5)
    path = tmp_path / "model.onnx"
    write_onnx(path, graph, int2=int2)
    counted = count_zeros_onnx(path)
    assert counted == {
        layer.name: (int((layer.weight == 0).sum()), layer.weight.size) for layer in graph.ternary_layers
    }
    assert len(counted) > 10
    constants = {constant.name: constant for constant in onnx.load(path).graph.initializer}
    for layer in graph.ternary_layers:
        stored = constants[f"{layer.name}/trits"]
        assert stored.data_type == (onnx.TensorProto.INT2 if int2 else onnx.TensorProto.INT8)
        assert len(stored.raw_data) == (-(-layer.weight.size // 4) if int2 else layer.weight.size)
        assert f"{layer.name}/weight" not in constants  # not also as floats


def test_two_bits_are_packed_as_worked_out_by_hand() -> None:
    # Two's complement: 1 is 01, 0 is 00, -1 is 11. 1 0 -1 1 from the lowest bits: 01 11 00 01 = 0x71; -1 alone: 0x03.
    assert pack_int2(np.array([1, 0, -1, 1, -1], dtype=np.int8)) == bytes([0x71, 0x03])


def test_model_says_what_it_is(tmp_path: Path) -> None:
    base = small_graph()
    names = ("cat", "Größe", '"', "d", "e")
    graph = Graph(base.input_shape, base.mean, base.std, base.records, base.output, names)
    write_onnx(tmp_path / "model.onnx", graph)
    model = onnx.load(tmp_path / "model.onnx")
    assert tuple(json.loads({prop.key: prop.value for prop in model.metadata_props}["class_names"])) == names
    batch, *sizes = model.graph.input[0].type.tensor_type.shape.dim
    assert batch.dim_param == "batch"
    assert [size.dim_value for size in sizes] == [3, 5, 5]
    assert model.opset_import[0].version == 20


@pytest.mark.parametrize("name", ["images", "logits", "images.0", "value"])
def test_records_may_bear_any_name(tmp_path: Path, name: str) -> None:
    builder = Builder((2,), np.random.default_rng(1))
    linear = builder.linear(INPUT, 3, "trits")
    (record,) = builder.records
    renamed = type(record)(name, record.inputs, record.shape, record.weight, record.scale, record.bias)  # type: ignore
    one = np.ones(2, np.float32)
    graph = Graph((2,), one, one, (renamed,), name, ("a", "b", "c"))
    assert linear != name
    write_onnx(tmp_path / "model.onnx", graph)
    images = random_images(graph, 2)
    assert np.allclose(open_onnx(tmp_path / "model.onnx")(images), evaluate(graph, images), rtol=1e-5, atol=1e-5)


def test_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    with pytest.raises(ExportError, match="cannot be read as an ONNX model"):
        count_zeros_onnx(path)
    path.write_bytes(b"no model at all")
    with pytest.raises(ExportError, match="cannot be read as an ONNX model"):
        count_zeros_onnx(path)
    with pytest.raises(ExportError, match="onnxruntime rejects the model"):
        open_onnx(path)


def test_weight_that_is_no_trit_is_refused(tmp_path: Path) -> None:
    model = onnx_model(small_graph())
    stored = next(constant for constant in model.graph.initializer if constant.name.endswith("/trits"))
    stored.raw_data = b"\x02" + stored.raw_data[1:]
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(ExportError, match=r"conv_trits\.0/trits may hold only -1, 0 and 1"):
        count_zeros_onnx(tmp_path / "model.onnx")


def test_refused_model_leaves_no_file(tmp_path: Path) -> None:
    base = small_graph()
    # One class too many: onnx infers that the logits are five.
    graph = Graph(base.input_shape, base.mean, base.std, base.records, base.output, (*base.class_names, "more"))
    with pytest.raises(ExportError, match="onnx rejects the model"):
        write_onnx(tmp_path / "model.onnx", graph)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("package", "call"), [("onnx", ""), ("onnxruntime", "; room.open_onnx(None)")])
def test_missing_package_is_one_clear_sentence(package: str, call: str) -> None:
    # A finder that knows nothing of the package, in a process of its own.
    code = (
        "import sys, importlib.util as u; find = u.find_spec\n"
        f"u.find_spec = lambda name, *rest: None if name == {package!r} else find(name, *rest)\n"
        "from sca_search.errors import ExportError\n"
        f"try:\n    import sca_search.export.onnx.write as room{call}\n"
        "except ExportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(f"{package} is not installed")
    assert "pip install 'sca-search[onnx]'" in done.stdout
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("int2", [False, True])
@pytest.mark.parametrize("name", torchvision_cases("resnet18", "mobilenet_v3_small", "squeezenet1_1"))
def test_torchvision_networks_agree_with_torch(name: str, int2: bool, tmp_path: Path) -> None:
    graph, images, logits = ternary_torchvision(name)
    write_onnx(tmp_path / "model.onnx", graph, int2=int2)
    answers = open_onnx(tmp_path / "model.onnx")(images)
    assert np.abs(answers - logits).max() <= 1e-5 * np.abs(logits).max()
    assert (answers.argmax(1) == logits.argmax(1)).all()
