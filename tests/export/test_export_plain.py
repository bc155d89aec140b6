"""The plain export: what is written comes back, is counted in the bytes, and everything malformed is refused."""

import json
import struct
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from sca_search.data.input_spec import InputSpec
from sca_search.errors import RunError
from sca_search.export.state_dict import count_zeros, load_plain, save_plain
from sca_search.ternary.parametrize import ZeroCount, bake_trits, parametrize_layers

LAYERS = ("0", "2")
SPEC = InputSpec((1, 2, 3), ("a", "ä", "0"), (0.5,), (0.25,))


def network():
    """A baked network: two ternary layers, a normalization, a float layer."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)
    )
    model[1].running_mean.uniform_()
    parametrize_layers(model, {"0": 0.6, "2": 0.6})
    return bake_trits(model)


def change_weight(model, name, value):
    with torch.no_grad():
        model.get_submodule(name).weight.view(-1)[0] = value
    return model


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "model.safetensors"
    save_plain(path, network(), LAYERS, SPEC)
    return path


def write(path, changes=None, **metadata):
    """A file by safetensors' own writer that would be good but for what is given; None leaves something out."""
    good = {"format": "sca-search/plain", "version": "1", "ternary_layers": '["0"]', "about": json.dumps(asdict(SPEC))}
    tensors = {"0.weight": torch.tensor([[1, 0, -1]], dtype=torch.int8), "0.bias": torch.zeros(1)}
    tensors |= changes or {}
    save_file(
        {name: value for name, value in tensors.items() if value is not None},
        path,
        metadata={name: value for name, value in (good | metadata).items() if value is not None} or None,
    )
    return path


def read_raw(path: Path) -> tuple[dict[str, object], bytes]:
    """Header and data by the published layout, without the library."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


# Round trip


def test_a_network_comes_back_as_it_was(saved):
    state, layers, spec = load_plain(saved)
    expected = network().state_dict()
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    assert all(state[name].dtype == expected[name].dtype for name in expected)
    assert layers == LAYERS
    assert spec == SPEC
    network().load_state_dict(state)


def test_trits_take_one_byte_each_and_are_the_only_ones(saved):
    header, data = read_raw(saved)
    types = {name: about["dtype"] for name, about in header.items() if name != "__metadata__"}
    assert {name for name, dtype in types.items() if dtype == "I8"} == {"0.weight", "2.weight"}
    model = network().state_dict()
    for name in ("0.weight", "2.weight"):
        first, last = header[name]["data_offsets"]
        assert last - first == model[name].numel()
        trits = np.frombuffer(data[first:last], dtype=np.int8)
        np.testing.assert_array_equal(trits, model[name].numpy().ravel())


def test_zeros_are_counted_in_the_bytes(saved):
    header, data = read_raw(saved)
    counts = {}
    for layer in LAYERS:
        first, last = header[f"{layer}.weight"]["data_offsets"]
        counts[layer] = ZeroCount(data[first:last].count(0), last - first)
    assert count_zeros(saved) == counts
    assert {layer: count.weights for layer, count in counts.items()} == {"0": 36, "2": 35}


def test_zeros_by_hand(tmp_path):
    path = write(tmp_path / "a.safetensors")
    assert count_zeros(path) == {"0": ZeroCount(1, 3)}


def test_negative_zero_is_a_zero(tmp_path):
    path = tmp_path / "a.safetensors"
    model = network()
    with torch.no_grad():
        model[2].weight.fill_(-0.0)
    save_plain(path, model, ("2",), SPEC)
    assert count_zeros(path) == {"2": ZeroCount(35, 35)}


def test_a_network_without_ternary_layers_can_be_written(tmp_path):
    path = tmp_path / "a.safetensors"
    model = nn.Linear(2, 2)
    save_plain(path, model, (), SPEC)
    assert count_zeros(path) == {}
    assert torch.equal(load_plain(path)[0]["weight"], model.weight.detach())


def test_weights_that_do_not_lie_in_one_piece_are_written(tmp_path):
    path = tmp_path / "a.safetensors"
    model = nn.Linear(2, 3)
    model.weight = nn.Parameter(torch.tensor([[1.0, 0.0, -1.0], [0.0, 1.0, 1.0]]).t())
    save_plain(path, model, (), SPEC)
    assert torch.equal(load_plain(path)[0]["weight"], model.weight.detach())


def test_nothing_but_the_file_is_left(saved):
    assert [path.name for path in saved.parent.iterdir()] == ["model.safetensors"]


# What is not written


@pytest.mark.parametrize("value", [0.5, -0.999, 1.0000001, 2.0, -128.0, 128.0, 255.0, float("nan"), float("inf")])
def test_a_weight_that_is_no_trit_is_not_saved(tmp_path, value):
    path = tmp_path / "a.safetensors"
    with pytest.raises(ValueError, match=r"2\.weight is not ternary"):
        save_plain(path, change_weight(network(), "2", value), LAYERS, SPEC)
    assert list(tmp_path.iterdir()) == []


def test_a_network_still_soft_is_not_saved(tmp_path):
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"0\.weight is not ternary"):
        save_plain(tmp_path / "a.safetensors", model, ("0",), SPEC)


def test_a_refused_network_leaves_the_file_before_it(saved):
    before = saved.read_bytes()
    with pytest.raises(ValueError, match="not ternary"):
        save_plain(saved, change_weight(network(), "0", 0.5), LAYERS, SPEC)
    assert saved.read_bytes() == before


# What is not read


def assert_refused(path):
    for read in (load_plain, count_zeros):
        with pytest.raises(RunError) as caught:
            read(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [
        {"format": "sca-search/packed"},
        {"format": "pt"},
        {"format": None},
        {"version": "2"},
        {"version": "1.0"},
        {"version": ""},
        {"version": None},
        {"format": None, "version": None, "ternary_layers": None, "about": None},
    ],
    ids=str,
)
def test_another_format_or_version_is_refused(tmp_path, metadata):
    path = write(tmp_path / "a.safetensors", **metadata)
    with pytest.raises(RunError, match="is not a sca-search/plain file of version 1"):
        load_plain(path)
    assert_refused(path)


@pytest.mark.parametrize(
    "metadata",
    [
        {"ternary_layers": None},
        {"about": None},
        {"ternary_layers": ""},
        {"ternary_layers": '["0"'},
        {"about": "{"},
        {"about": "{}"},  # no input
        {"about": '{"input_shape": "wide", "classes": []}'},
        {"about": "1" * 5000},  # more digits than Python turns into a number
        {"ternary_layers": "5"},
        {"ternary_layers": "null"},
        {"ternary_layers": "true"},
        {"ternary_layers": "[0]"},
        {"ternary_layers": '[["0", "1"]]'},
        {"ternary_layers": '["0", null]'},
        {"ternary_layers": "[" * 100_000},
        {"about": "[" * 100_000},
    ],
    ids=lambda metadata: str(metadata)[:40],
)
def test_malformed_metadata_is_refused(tmp_path, metadata):
    changes = {"0.weight": torch.ones(1, 3, dtype=torch.int8)}
    assert_refused(write(tmp_path / "a.safetensors", changes, **metadata))


@pytest.mark.parametrize("code", [2, -2, 3, 127, -127, -128])
def test_codes_that_are_no_trits_are_refused(tmp_path, code):
    trits = torch.tensor([[1, 0, code]], dtype=torch.int8)
    assert_refused(write(tmp_path / "a.safetensors", {"0.weight": trits}))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int16, torch.uint8, torch.bool])
def test_trits_of_another_type_are_refused(tmp_path, dtype):
    trits = torch.tensor([[1, 0, 1]]).to(dtype)
    assert_refused(write(tmp_path / "a.safetensors", {"0.weight": trits}))


def test_a_layer_that_is_named_but_missing_is_refused(tmp_path):
    assert_refused(write(tmp_path / "a.safetensors", ternary_layers='["0", "7"]'))
    assert_refused(write(tmp_path / "a.safetensors", {"0.weight": None}))


def test_a_file_that_is_not_there_is_refused(tmp_path):
    assert_refused(tmp_path / "none.safetensors")
    assert_refused(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0" * 7, b"\0" * 8, b"\xff" * 64, b"PK\x03\x04 not a model", b"{}"])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    assert_refused(path)


def test_a_truncated_file_is_refused_wherever_it_ends(saved, tmp_path):
    raw = saved.read_bytes()
    path = tmp_path / "cut.safetensors"
    for length in [*range(0, len(raw), 97), len(raw) - 1]:
        path.write_bytes(raw[:length])
        assert_refused(path)


def test_bytes_after_the_end_are_refused(saved):
    saved.write_bytes(saved.read_bytes() + b"\0")
    assert_refused(saved)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_a_damaged_byte_is_refused_or_read_but_never_another_error(saved, tmp_path, flip):
    """Most of a float is as good as any other; all that may be raised is a RunError."""
    raw = saved.read_bytes()
    path = tmp_path / "damaged.safetensors"
    refused = 0
    for place in range(0, len(raw), 11):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ flip]) + raw[place + 1 :])
        try:
            state, layers, _ = load_plain(path)
        except RunError:
            refused += 1
        else:
            trits = [state[f"{name}.weight"].numpy() for name in layers]
            assert all(set(np.unique(layer)) <= {-1, 0, 1} for layer in trits)
    assert refused > 10


def test_the_fixture_of_bad_files_is_good_when_nothing_is_changed(tmp_path):
    path = write(tmp_path / "a.safetensors")
    state, layers, spec = load_plain(path)
    assert (layers, spec) == (("0",), SPEC)
    assert state["0.weight"].tolist() == [[1, 0, -1]]
    assert load_file(path)["0.weight"].dtype == torch.int8
