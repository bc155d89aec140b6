"""The packed format: what is written comes back, and what was changed is refused."""

import hashlib
import json
import random
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

import sca_search
from sca_search.errors import ExportError
from sca_search.export.graph import records as r
from sca_search.export.graph.reference import evaluate
from sca_search.export.graph.shapes import check_graph
from sca_search.export.model_card import bits_per_weight, sizes
from sca_search.export.packed.container import from_bytes
from sca_search.export.packed.format import (
    from_packed_bytes,
    packed_bytes,
    payload_bytes,
    read_packed,
    round_to_half,
    write_packed,
)
from sca_search.export.packed.test_vectors import on_grid, read_vectors, take_vectors, write_vectors
from sca_search.export.packed.trit_code import encode_trits
from tests.support.random_records import every_operation, random_images


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def small_graph(seed: int = 0) -> r.Graph:
    """A ternary convolution, a pool, a dense layer: every kind of tensor that a file has."""
    noise = np.random.default_rng(seed)
    records: tuple[r.Record, ...] = (
        r.Convolution(
            "conv",
            (r.INPUT,),
            (3, 4, 4),
            noise.integers(-1, 2, (3, 2, 3, 3)).astype(np.int8),
            noise.standard_normal(3).astype(np.float32),
            floats(0.5, -1, 2),
            padding=(1, 1, 1, 1),
        ),
        r.AdaptivePool("pool", ("conv",), (3, 1, 1), "average"),
        r.Reshape("flat", ("pool",), (3,)),
        r.Linear("fc", ("flat",), (2,), noise.standard_normal((2, 3)).astype(np.float32), floats(1, 1), floats(0, 1)),
    )
    about = {"study": "small", "trial": 7}
    return r.Graph((2, 4, 4), floats(0.5, 0), floats(2, 1), records, "fc", ("dog", "cat ☃"), about)


def vectors_of(graph: r.Graph) -> r.TestVectors:
    images = on_grid(random_images(graph, 2))
    return r.TestVectors(images, evaluate(graph, images))


GRAPH = small_graph()
VECTORS = vectors_of(GRAPH)
CONTENT = packed_bytes(GRAPH, VECTORS)


def assert_same(one: r.Graph, other: r.Graph) -> None:
    for name in ("input_shape", "output", "class_names", "about"):
        assert getattr(one, name) == getattr(other, name)
    assert np.array_equal(one.mean, other.mean)
    assert np.array_equal(one.std, other.std)
    assert len(one.records) == len(other.records)
    for mine, theirs in zip(one.records, other.records, strict=True):
        assert type(mine) is type(theirs)
        for field in fields(mine):
            left, right = getattr(mine, field.name), getattr(theirs, field.name)
            if isinstance(left, np.ndarray):
                assert left.dtype == right.dtype
                assert np.array_equal(left, right)
            else:
                assert left == right, field.name


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 5), (17, 7, 7)])
def test_every_record_comes_back(shape: tuple[int, int, int]) -> None:
    for seed in range(3):
        graph, _ = every_operation(shape, seed)
        graph = replace(graph, about={"goal": "none", "layers": [1, 2.5, None]})
        vectors = vectors_of(graph)
        again, vectors_again = from_packed_bytes(packed_bytes(graph, vectors))
        assert_same(again, graph)
        assert np.array_equal(vectors_again.images, vectors.images)
        assert np.array_equal(vectors_again.logits, vectors.logits)


def test_same_model_gives_the_same_bytes() -> None:
    assert packed_bytes(small_graph(), VECTORS) == CONTENT
    assert packed_bytes(small_graph(1), vectors_of(small_graph(1))) != CONTENT


def test_file_is_what_the_safetensors_library_reads(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    write_packed(path, GRAPH, VECTORS)
    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    assert (metadata["format"], metadata["version"]) == ("sca-search/packed", "1")
    assert json.loads(metadata["about"]) == {"study": "small", "trial": 7}
    conv = GRAPH.records[0]
    assert isinstance(conv, r.Convolution)
    assert json.loads(metadata["sparsity"]) == {"conv": [int((conv.weight == 0).sum()), 54]}
    assert tensors["conv.trits"].tobytes() == encode_trits(conv.weight.astype(np.int8))
    assert tensors["conv.scale"].dtype == np.float32
    assert tensors["test.images"].dtype == np.uint8
    assert tensors["test.logits"].shape == (2, 2)
    assert "conv.weight" not in tensors


def test_checksum_is_sha256_of_the_file_with_zeros_in_its_place() -> None:
    header = json.loads(CONTENT[8 : 8 + struct.unpack("<Q", CONTENT[:8])[0]])
    checksum = header["__metadata__"]["checksum"].encode()
    assert hashlib.sha256(CONTENT.replace(checksum, b"0" * 64)).hexdigest().encode() == checksum


def test_half_stores_float16_and_gives_back_what_it_stored() -> None:
    stored = round_to_half(GRAPH)
    content = packed_bytes(GRAPH, VECTORS, half=True)
    assert len(content) < len(CONTENT)
    tensors, _ = from_bytes(content)
    assert tensors["conv.scale"].dtype == tensors["fc.weight"].dtype == np.float16
    assert_same(from_packed_bytes(content)[0], stored)
    fc = stored.records[3]
    assert isinstance(fc, r.Linear)
    assert np.array_equal(fc.weight, np.asarray(GRAPH.records[3].weight).astype(np.float16).astype(np.float32))


def test_number_too_large_for_float16_is_refused() -> None:
    fc = replace(GRAPH.records[3], bias=floats(0, 1e6))
    with pytest.raises(ExportError, match="fc: its bias has a number too large for float16"):
        packed_bytes(replace(GRAPH, records=(*GRAPH.records[:3], fc)), VECTORS, half=True)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1), st.floats(-1000, 1000), st.floats(1e-6, 1000))
def test_images_on_a_grid_are_stored_in_bytes_and_exact(seed: int, middle: float, spread: float) -> None:
    noise = np.random.default_rng(seed).standard_normal((2, 2, 4, 4)) * spread
    images = on_grid((noise + middle * spread).astype(np.float32))
    vectors = r.TestVectors(images, VECTORS.logits)
    content = packed_bytes(GRAPH, vectors)
    assert from_bytes(content)[0]["test.images"].dtype == np.uint8
    assert np.array_equal(from_packed_bytes(content)[1].images, images)
    # half a level at most, and a level is at most twice the 255th part of the spread
    assert np.abs(images - (noise + middle * spread)).max() <= 1.01 * np.ptp(noise) / 255 + 1e-3 * spread


def test_images_on_no_grid_stay_floats() -> None:
    images = random_images(GRAPH, 2)
    content = packed_bytes(GRAPH, r.TestVectors(images, VECTORS.logits))
    assert from_bytes(content)[0]["test.images"].dtype == np.float32
    assert np.array_equal(from_packed_bytes(content)[1].images, images)


def test_vectors_have_a_file_of_their_own(tmp_path: Path) -> None:
    write_vectors(tmp_path / "v.safetensors", VECTORS)
    again = read_vectors(tmp_path / "v.safetensors")
    assert np.array_equal(again.images, VECTORS.images)
    assert np.array_equal(again.logits, VECTORS.logits)
    (tmp_path / "m.safetensors").write_bytes(CONTENT)
    with pytest.raises(ExportError, match=r"m\.safetensors holds no test vectors"):
        read_vectors(tmp_path / "m.safetensors")


@pytest.mark.parametrize("sparsity", [0.0, 1 / 3, 0.5, 0.9, 0.99])
def test_payload_is_within_two_percent_of_the_bound(sparsity: float) -> None:
    noise = np.random.default_rng(0)
    trits = noise.choice([-1, 1], (500, 300)).astype(np.int8) * (noise.random((500, 300)) >= sparsity)
    layer = r.Linear(
        "fc", (r.INPUT,), (500,), trits.astype(np.int8), np.ones(500, np.float32), np.zeros(500, np.float32)
    )
    graph = r.Graph((300,), np.zeros(300, np.float32), np.ones(300, np.float32), (layer,), "fc", ("x",) * 500)
    share = (trits == 0).mean()
    plain = -sum(p * np.log2(p) for p in (share, 1 - share) if p > 0) + 1 - share
    assert bits_per_weight(share) == pytest.approx(plain)
    assert payload_bytes(graph)["fc"] * 8 <= 1.02 * plain * 150_000
    size = sizes(graph)
    assert (size.fp32, size.int8, size.two_bit, size.others) == (600_000, 150_000, 37_500, 4 * 1000)
    assert size.bound == pytest.approx(plain * 150_000 / 8)


# What is changed on purpose, and signed again: every rule behind the checksum must hold by itself.


def signed(content: bytes) -> bytes:
    """The content with a right checksum, where it still has one at all."""
    place = content.find(b'"checksum":"') + len(b'"checksum":"')
    blank = content[:place] + b"0" * 64 + content[place + 64 :]
    return blank[:place] + hashlib.sha256(blank).hexdigest().encode() + blank[place + 64 :]


def rebuilt(change: Callable[[dict[str, Any], dict[str, Any]], None]) -> bytes:
    """The file after a change to its header or to the model that its metadata describe."""
    size = struct.unpack("<Q", CONTENT[:8])[0]
    header = json.loads(CONTENT[8 : 8 + size])
    model = json.loads(header["__metadata__"]["model"])
    change(header, model)
    if "__metadata__" in header and "model" in header["__metadata__"]:
        header["__metadata__"]["model"] = json.dumps(model)
    text = json.dumps(header, separators=(",", ":")).encode()
    return signed(struct.pack("<Q", len(text)) + text + CONTENT[8 + size :])


def record(field: str, value: Any, index: int = 0) -> Callable[[Any, Any], None]:
    return lambda _header, model: model["records"][index].__setitem__(field, value)


def meta(key: str, value: str) -> Callable[[Any, Any], None]:
    return lambda header, _model: header["__metadata__"].__setitem__(key, value)


def tensor(name: str, key: str, value: Any) -> Callable[[Any, Any], None]:
    return lambda header, _model: header[name].__setitem__(key, value)


def shift_one(header: dict[str, Any], _model: Any) -> None:
    """A hole: the last tensor begins one byte later."""
    last = max((entry for name, entry in header.items() if name != "__metadata__"), key=lambda e: e["data_offsets"][1])
    last["data_offsets"][0] += 1
    last["shape"] = [last["shape"][0] - 1]


CHANGES: dict[str, tuple[Callable[[Any, Any], None], str]] = {
    "unknown version": (meta("version", "2"), "of version 1, got sca-search/packed 2"),
    "another format": (meta("format", "sca-search/plain"), "must be sca-search/packed"),
    "unknown metadata": (meta("extra", ""), "metadata must be"),
    "no model": (lambda header, _: header["__metadata__"].pop("model"), "metadata must be"),
    "no metadata": (lambda header, _: header.pop("__metadata__"), "damaged or cut short"),
    "a hole": (shift_one, "invalid offset for tensor"),
    "a size that is wrong": (tensor("fc.weight", "shape", [2, 4]), "invalid shape, data type, or offset"),
    "a size that is absurd": (tensor("fc.weight", "shape", [2**40, 2**40]), "overflow computing buffer size"),
    "a size below zero": (tensor("fc.weight", "shape", [-2, -3]), "invalid value: integer `-2`"),
    "an unknown type": (tensor("fc.weight", "dtype", "I32"), "must be of type F32, F16, U8, got I32"),
    "a tensor of nobody": (lambda h, _: h.__setitem__("x.bias", h.pop("fc.bias")), "'fc.bias' is missing"),
    "trits said to be floats": (record("ternary", False), "'conv.weight' is missing"),
    "floats said to be trits": (record("ternary", True, 3), "'fc.trits' is missing"),
    "trits of another count": (record("weight_shape", [3, 2, 3, 4]), "conv: "),
    "absurd weights": (record("weight_shape", [3, 2**20, 2**10]), "at most 268435456 ternary weights"),
    "absurd outputs": (record("weight_shape", [2**40, 2, 3, 3]), "the scale"),
    "weights below zero": (record("weight_shape", [3, -2, -3, 3]), "sizes above 0"),
    "unknown record": (record("type", "attention"), "any of the expected tags: 'convolution', 'linear'"),
    "record of a list": (record("type", ["conv2d"]), "any of the expected tags: 'convolution', 'linear'"),
    "unknown field": (record("color", 1), "records.0.convolution.color: Extra inputs are not permitted"),
    "missing field": (
        lambda _, model: model["records"][0].pop("inputs"),
        "records.0.convolution.inputs: Field required",
    ),
    "field of another type": (record("groups", "1"), "groups must be a valid integer, got 1"),
    "truth for a number": (record("groups", True), "groups must be"),
    "number for a truth": (record("ternary", 1), "ternary must be a valid boolean"),
    "stride of one number": (record("stride", [1]), r"stride.1: Field required, got \[1\]"),
    "stride of zero": (record("stride", [0, 1]), "needs sizes from 1"),
    "absurd padding": (record("padding", [2**30] * 4), "needs sizes from 0"),
    "wrong shape": (record("shape", [3, 4, 5]), r"has shape \(3, 4, 4\), the record says \(3, 4, 5\)"),
    "absurd shape": (record("shape", [2**20, 2**20, 2**20]), "at most 2\\^26 values"),
    "a cycle": (record("inputs", ["fc"]), "its input 'fc' is no earlier record"),
    "no input": (record("inputs", []), "takes one value, got 0"),
    "a name twice": (record("name", "pool", 2), "an earlier record has the same name"),
    "a name that is none": (record("name", "a/*b*/", 2), "must be letters, digits"),
    "unknown pool": (record("kind", "median", 1), "kind must be 'max' or 'average'"),
    "unknown output": (lambda _, model: model.__setitem__("output", "x"), "'x' is the name of no record"),
    "output that is a map": (lambda _, model: model.__setitem__("output", "conv"), "there are 2 classes"),
    "one class less": (lambda _, model: model["class_names"].pop(), "there are 1 classes"),
    "another input": (lambda _, model: model.__setitem__("input_shape", [3, 4, 4]), "the input's mean must be"),
    "no records": (lambda _, model: model.__setitem__("records", []), "records: List should have at least 1 item"),
    "zeros that are not there": (meta("sparsity", '{"conv":[54,54]}'), "zeros counted in its trits differ"),
    "sparsity that is no JSON": (meta("sparsity", "{"), "sparsity is not JSON"),
    "about that is a list": (meta("about", "[]"), "about must be a JSON object"),
    "a name twice in JSON": (meta("about", '{"a":1,"a":2}'), "a name occurs twice"),
    "a number that is none": (meta("about", '{"a":NaN}'), "NaN is not a number"),
    "bottomless JSON": (meta("about", "[" * 100_000), "about is not JSON"),
}


def test_field_that_has_its_default_may_be_left_out() -> None:
    model = json.loads(from_bytes(CONTENT)[1]["model"])
    assert "stride" not in model["records"][0]
    assert model["records"][0]["padding"] == [1, 1, 1, 1]
    assert_same(from_packed_bytes(rebuilt(record("stride", [1, 1])))[0], GRAPH)


@pytest.mark.parametrize("name", CHANGES)
def test_changed_description_is_refused(name: str) -> None:
    change, sentence = CHANGES[name]
    with pytest.raises(ExportError, match=sentence):
        from_packed_bytes(rebuilt(change))


def tensor_place(name: str) -> tuple[int, int]:
    size = struct.unpack("<Q", CONTENT[:8])[0]
    first, last = json.loads(CONTENT[8 : 8 + size])[name]["data_offsets"]
    return 8 + size + first, 8 + size + last


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("conv.scale", struct.pack("<f", np.nan), "conv: the scale must be"),
        ("fc.weight", struct.pack("<f", np.inf), "fc: the weight must be"),
        ("input.std", struct.pack("<f", 0.0), "std must be above 0"),
        ("test.logits", struct.pack("<f", np.nan), "the test logits must be finite"),
        ("conv.trits", b"\xff\xff\xff\xff", "conv: frequencies of trits"),
    ],
)
def test_changed_numbers_are_refused(name: str, value: bytes, sentence: str) -> None:
    first, _ = tensor_place(name)
    with pytest.raises(ExportError, match=sentence):
        from_packed_bytes(signed(CONTENT[:first] + value + CONTENT[first + len(value) :]))


def test_file_cut_short_or_continued_is_refused() -> None:
    for length in range(len(CONTENT)):
        with pytest.raises(ExportError):
            from_packed_bytes(CONTENT[:length])
    for more in (b"\0", b" ", CONTENT):
        with pytest.raises(ExportError, match=r"checksum|file not fully covered"):
            from_packed_bytes(CONTENT + more)
        with pytest.raises(ExportError, match="file not fully covered"):
            from_packed_bytes(signed(CONTENT + more))


def test_header_longer_than_the_file_is_refused_before_it_is_read() -> None:
    for size, sentence in ((2**63, "header too large"), (2**24, "cut short"), (0, "damaged")):
        with pytest.raises(ExportError, match=sentence):
            from_packed_bytes(struct.pack("<Q", size) + CONTENT[8:])


def damaged(dice: random.Random) -> bytes:
    """The file after an accident: bytes changed, lost, doubled, moved."""
    content = bytearray(CONTENT)
    for _ in range(dice.choice((1, 1, 1, 2, 5, 50))):
        place = dice.randrange(len(content) or 1)
        length = dice.choice((1, 1, 2, 8, 100))
        match dice.randrange(6):
            case 0:
                content[place : place + 1] = bytes(
                    byte ^ (1 << dice.randrange(8)) for byte in content[place : place + 1]
                )
            case 1:
                content[place : place + length] = dice.randbytes(length)
            case 2:
                del content[place : place + length]
            case 3:
                content[place:place] = content[place : place + length]
            case 4:
                content[place : place + length] = bytes(length)
            case _:
                content = content[: max(place, 1)]
    return bytes(content)


PLACES = {name: tensor_place(name) for name in from_bytes(CONTENT)[0]}
DIGITS = [place for place in range(8, min(PLACES.values())[0]) if chr(CONTENT[place]).isdigit()]


def forged(dice: random.Random) -> bytes:
    """A file whose numbers or payloads were changed by somebody who can sign it again."""
    content = bytearray(CONTENT)
    for _ in range(dice.choice((1, 1, 2, 4))):
        if dice.random() < 0.5:  # a digit of the header: sizes, offsets, strides
            digits = [place for place in range(8, tensor_place("conv.bias")[0]) if chr(content[place]).isdigit()]
            content[dice.choice(digits)] = ord(dice.choice('0123456789-["'))
        else:
            first, last = PLACES[dice.choice(("conv.trits", "conv.scale", "input.std", "test.images", "fc.bias"))]
            content[dice.randrange(first, last)] = dice.randrange(256)
    return signed(bytes(content))


def outcomes(make: Callable[[random.Random], bytes], count: int) -> Iterator[tuple[bytes, r.Graph | None]]:
    for seed in range(count):
        content = make(random.Random(seed))
        began = time.process_time()
        try:
            graph, _ = from_packed_bytes(content)
        except ExportError:
            graph = None
        assert time.process_time() - began < 5
        yield content, graph


def test_damaged_files_are_refused_or_the_same_model() -> None:
    refused = 0
    for content, graph in outcomes(damaged, 20_000):
        if graph is None:
            refused += 1
        else:  # an accident may change nothing, as a zero written over a zero
            assert content == CONTENT
            assert_same(graph, GRAPH)
    assert refused > 19_000


@pytest.mark.parametrize("count", [500, pytest.param(20_000, marks=pytest.mark.e2e)])
def test_forged_files_are_refused_or_whole_models(count: int) -> None:
    refused = 0
    for _, graph in outcomes(forged, count):
        if graph is None:
            refused += 1
        else:
            check_graph(graph)  # every format can run it
            assert set(np.unique(graph.ternary_layers[0].weight)) <= {-1, 0, 1}
    assert 0.2 * count < refused < 0.95 * count  # both happen, or this test sees nothing


def test_damaged_files_take_no_memory() -> None:
    tracemalloc.start()
    for _ in outcomes(damaged, 200):
        pass
    for _ in outcomes(forged, 100):
        pass
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000  # bytes


def test_load_gives_a_ready_network(tmp_path: Path) -> None:
    write_packed(tmp_path / "model.safetensors", GRAPH, VECTORS)
    network = sca_search.load(tmp_path / "model.safetensors")
    assert not network.training
    assert network.class_names == ("dog", "cat ☃")
    assert network.input_shape == (2, 4, 4)
    assert network.about == {"study": "small", "trial": 7}
    images = random_images(GRAPH, 5, seed=3)
    assert np.allclose(network(torch.from_numpy(images)).numpy(), evaluate(GRAPH, images), atol=1e-5)
    assert sca_search.load(str(tmp_path / "model.safetensors")).class_names == network.class_names


def test_test_images_beyond_float32_are_infinite_without_a_warning() -> None:
    grid = np.array([0.0, 3e38], dtype=np.float32)
    taken = take_vectors({"test.images": np.array([0, 255], dtype=np.uint8), "test.grid": grid})
    assert taken.images.tolist() == [0.0, np.inf]


def test_load_refuses_a_model_that_does_not_answer_its_test_vectors(tmp_path: Path) -> None:
    wrong = replace(GRAPH, records=(*GRAPH.records[:3], replace(GRAPH.records[3], bias=floats(0, 1.01))))
    write_packed(tmp_path / "model.safetensors", wrong, VECTORS)
    with pytest.raises(ExportError, match=r"model\.safetensors does not reproduce its own test vectors"):
        sca_search.load(tmp_path / "model.safetensors")


def test_reader_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"gone\.safetensors is not a file"):
        sca_search.load(tmp_path / "gone.safetensors")
    with pytest.raises(ExportError, match="is not a file"):
        read_packed(tmp_path)
    (tmp_path / "text.safetensors").write_text("hello")
    with pytest.raises(ExportError, match=r"text\.safetensors is not a valid packed model"):
        read_packed(tmp_path / "text.safetensors")


def test_package_is_imported_without_torch() -> None:
    code = "import sys, sca_search; assert 'load' in sca_search.__all__; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    with pytest.raises(AttributeError, match="no attribute 'save'"):
        sca_search.save  # noqa: B018
