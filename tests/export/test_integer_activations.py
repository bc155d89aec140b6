"""C with integer activations: the model in integers by hand, and the kernels that must equal it bit for bit."""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import INTEGER_CONVOLUTION_KERNELS, COptions
from sca_search.export.c.count_zeros import count_zeros_c
from sca_search.export.c.source import write_c
from sca_search.export.c.tiles import MOST_ADDED, IntegerTiles
from sca_search.export.folder import ExportOptions, export_network
from sca_search.export.graph import records as r
from sca_search.export.graph.network import Images
from sca_search.export.graph.reference import evaluate
from sca_search.export.integer.model import IntegerModel, integer_model, quantized_weight
from sca_search.export.integer.reference import average, evaluate_integer, every_integer, largest_values
from sca_search.export.integer.requantize import Scaling, logit_requantization, requantization, requantize
from sca_search.export.layout import INTEGER_VECTORS_FILE, PACKED, C
from sca_search.export.metadata import read_metadata
from sca_search.export.verify_folder import verify_folder
from tests.export.test_c_source import make, run
from tests.export.test_export_verify import small_network
from tests.support.random_records import WEIGHT_KINDS, Builder, every_operation, random_images

# Compiler flags: what the tests build by default, with every vector length that an x86-64 machine has.
LANES = ("-mavx2 -mfma", "-DMODEL_LANES=4", "-DMODEL_LANES=1")


def calibrated(graph: r.Graph) -> IntegerModel:
    return integer_model(graph, largest_values(graph, [random_images(graph, 50, seed=9)]))


def answers_of_c(model: IntegerModel, images: r.Floats, options: COptions | None = None, **how: str) -> r.Floats:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        vectors = r.TestVectors(images, evaluate_integer(model, images))
        write_c(folder, model.graph, vectors, replace(options or COptions(), integer=model))
        make(folder, "model", **how)
        return run(folder, images)


def check(graph: r.Graph, options: COptions | None = None, **how: str) -> None:
    model, images = calibrated(graph), random_images(graph, 3)
    assert np.array_equal(answers_of_c(model, images, options, **how), evaluate_integer(model, images))


SHAPES = st.tuples(st.sampled_from([1, 2, 3, 6, 17]), st.integers(1, 20), st.integers(1, 20))
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # each example is a compilation


@pytest.mark.needs("gcc", "make")
@pytest.mark.parametrize("lanes", LANES)
def test_every_operation_equals_the_model_in_integers(lanes: str) -> None:
    graph, _ = every_operation((6, 9, 17), 3)
    check(graph, flags=f"{lanes} -fsanitize=address,undefined -fno-sanitize-recover=all")


@pytest.mark.nightly
@pytest.mark.needs("gcc", "make")
@settings(max_examples=30, deadline=None, phases=NO_SHRINKING)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1), lanes=st.sampled_from(LANES), stored=st.booleans())
def test_every_operation_equals_it_on_many_shapes(
    shape: tuple[int, int, int], seed: int, lanes: str, stored: bool
) -> None:
    graph, _ = every_operation(shape, seed)
    check(graph, COptions(stored=stored), flags=f"{lanes} -fsanitize=address,undefined -fno-sanitize-recover=all")


@pytest.mark.needs("clang", "make")
def test_every_operation_equals_it_when_clang_optimizes() -> None:
    graph, _ = every_operation((3, 7, 12), 5)
    check(graph, cc="clang", optimize="-O3", flags="-mavx2 -mfma")


@pytest.mark.needs("gcc", "make")
@pytest.mark.parametrize("kernel", INTEGER_CONVOLUTION_KERNELS)
def test_each_kernel_equals_it_over_several_blocks(kernel: str) -> None:
    builder = Builder((40, 18, 11), np.random.default_rng(2))
    kinds = [kind for kind in WEIGHT_KINDS if kind != "floats"]
    names = [builder.convolution(r.INPUT, 5, (3, 3), kind, padding=(1, 1, 1, 1)) for kind in kinds]
    names += [builder.convolution(r.INPUT, 5, (1, 1), kind, stride=(2, 2)) for kind in kinds]
    names += [builder.convolution(r.INPUT, 5, (5, 5), "floats"), builder.convolution(r.INPUT, 3, (1, 1), "floats")]
    graph = builder.graph(names)
    kernels = {layer.name: kernel for layer in graph.ternary_layers}
    check(graph, COptions(kernels, stored=True), optimize="-O2", flags="-mavx2")


@pytest.mark.needs("gcc", "make")
def test_sums_of_a_block_have_room_in_16_bits() -> None:
    # 300 channels without zeros, all inputs at their largest: 258 · 127 = 32766 is the most that a block may add.
    assert MOST_ADDED == 258
    builder = Builder((300, 8, 8), np.random.default_rng(2))
    name = builder.convolution(r.INPUT, 4, (1, 1), "no zeros")
    layer = builder.records[0]
    assert isinstance(layer, r.Convolution)
    assert layer.weight.dtype == np.int8
    for unit in INTEGER_CONVOLUTION_KERNELS.values():
        assert IntegerTiles(layer, np.ones_like(layer.weight), unit).block <= MOST_ADDED
    builder.records[0] = replace(layer, weight=np.ones_like(layer.weight))
    graph = builder.graph([name, name])
    images = random_images(graph, 50, seed=9)
    model = integer_model(graph, largest_values(graph, [images]))
    for image in (np.full_like(images[:1], 1e9), np.full_like(images[:1], -1e9)):
        assert np.array_equal(answers_of_c(model, image, flags="-mavx2"), evaluate_integer(model, image))


@pytest.mark.needs("gcc", "make")
def test_wide_linear_layers_equal_it() -> None:
    builder = Builder((9, 25, 25), np.random.default_rng(4))
    names = [
        builder.linear(r.INPUT, outputs, kind) for outputs, kind in ((70, "no zeros"), (3, "trits"), (5, "floats"))
    ]
    graph = builder.graph(names)
    for kernel in ("lists", "codes"):
        kernels = {layer.name: kernel for layer in graph.ternary_layers}
        check(graph, COptions(kernels), flags="-mavx2 -fsanitize=address,undefined")


def test_zeros_are_counted_in_the_source(tmp_path: Path) -> None:
    graph, _ = every_operation((3, 5, 5), 5)
    model, images = calibrated(graph), random_images(graph, 1)
    for stored in (False, True):
        write_c(
            tmp_path,
            graph,
            r.TestVectors(images, evaluate_integer(model, images)),
            COptions(stored=stored, integer=model),
        )
        assert count_zeros_c(tmp_path) == {
            layer.name: (int((layer.weight == 0).sum()), layer.weight.size) for layer in graph.ternary_layers
        }


def test_integers_are_near_the_floats() -> None:
    graph, names = every_operation((3, 8, 8), 2)
    images = random_images(graph, 20, seed=9)
    expected, found = evaluate(graph, images), evaluate_integer(calibrated(graph), images)
    assert np.abs(found - expected).max() <= 0.03 * np.abs(expected).max()
    assert len(names) > 20


def one(*values: float) -> r.Floats:
    return np.array(values, dtype=np.float32)


@pytest.mark.needs("gcc", "make")
def test_a_small_model_by_hand() -> None:
    # Image 4 × 1 × 1 with mean 1 and std 2; the largest normalized value is 127, so that its unit is 1, and q is
    # (image - 1) / 2. Image 9, -4, 2, 600: 4, -2.5 away from zero -3, 0.5 away from zero 1, and 299.5 limited to 127.
    # Trits + - 0 + and 0 0 + +: sums 4 + 3 + 127 = 134 and 1 + 127 = 128. Scale 0.5 and -1, bias 1 and 0.25, ReLU;
    # the largest is 127, so the unit is 1: 67 + 1 = 68, and -128 + 0.25 cut off at 0.
    # Logits 3 · 68 - 2 = 202 and -1.5 · 68: weights 3 and -1.5 are 127 of their units, and the logits' unit a power of
    # two of at least 4 · 202 / (2^24 - 1), 2^-14: 202 and -102 are as many of it.
    layer = r.Linear(
        "a", (r.INPUT,), (2,), np.array([[1, -1, 0, 1], [0, 0, 1, 1]], np.int8), one(0.5, -1), one(1, 0.25)
    )
    relu = r.Activation("b", ("a",), (2,), "relu")
    last = r.Linear("c", ("b",), (2,), one(3, 0, -1.5, 0).reshape(2, 2), one(1, 1), one(-2, 0))
    graph = r.Graph((4,), np.full(4, 1, np.float32), np.full(4, 2, np.float32), (layer, relu, last), "c", ("x", "y"))
    model = integer_model(graph, {r.INPUT: 127.0, "a": 130.0, "b": 127.0, "c": 202.0})
    image = one(9, -4, 2, 600).reshape(1, 4)
    values = every_integer(model, image)
    assert values[r.INPUT].tolist() == [[4, -3, 1, 127]]
    assert values["b"].tolist() == [[68, 0]]
    assert model.logit_unit == 2.0**-14
    assert values["c"].tolist() == [[202 * 2**14, -102 * 2**14]]
    assert evaluate_integer(model, image).tolist() == [[202.0, -102.0]]
    assert answers_of_c(model, image).tolist() == [[202.0, -102.0]]


def test_requantization_rounds_to_the_nearest_and_halves_up() -> None:
    to = requantization("x", Scaling(np.array([0.5]), np.array([0.0])))
    sums = np.array([[-5, -4, -3, -2, -1, 0, 1, 2, 3, 300, -300]])
    # -2.5 -> -2, -1.5 -> -1, -0.5 -> 0, 0.5 -> 1, 1.5 -> 2; 150 is limited
    assert requantize(sums, to).tolist() == [[-2, -2, -1, -1, 0, 0, 1, 1, 2, 127, -127]]


def test_averages_round_to_the_nearest_and_halves_up() -> None:
    # 7 / 2, -7 / 2, 5 / 4 and -5 / 4 with equal units; then with a unit half as large
    assert average(np.array([7, -7]), 2, 2**16).tolist() == [4, -3]
    assert average(np.array([5, -5]), 4, 2**16).tolist() == [1, -1]
    assert average(np.array([5, -5, 1000]), 4, 2**17).tolist() == [3, -2, 127]


def test_weights_are_quantized_by_output() -> None:
    weight, units = quantized_weight(one(1.27, -0.5, 0, 0).reshape(2, 2))
    assert weight.tolist() == [[127, -50], [0, 0]]
    assert units.tolist() == pytest.approx([0.01, 1.0])


NUMBERS = st.floats(-300, 300)


@given(
    ratio=st.floats(-4, 4),
    bias=NUMBERS,
    other=st.floats(0, 4),
    total=st.integers(-(2**22), 2**22),
    residual=st.integers(-127, 127),
)
def test_requantization_is_the_exact_fraction_but_for_its_own_rounding(
    ratio: float, bias: float, other: float, total: int, residual: int
) -> None:
    to = requantization("x", Scaling(np.array([ratio]), np.array([bias]), other))
    shift = int(to.shift[0])
    factor, biased, more = (Fraction(int(each[0]), 2**shift) for each in (to.factor, to.bias, to.other))
    exact = total * factor + biased + residual * more
    expected = min(max(exact.numerator // exact.denominator, -127), 127)
    found = int(requantize(np.array([[total]]), to, np.array([[residual]]))[0, 0])
    assert found == expected
    # The C kernels limit a sum first, and then have room in 32 bits.
    lowest, highest = (int(limit[0]) for limit in to.sum_limits)
    near = min(max(total, lowest), highest)
    product = near * int(to.factor[0])
    values = (
        product,
        product + int(to.bias[0]),
        residual * int(to.other[0]),
        product + int(to.bias[0]) + residual * int(to.other[0]),
    )
    assert max(map(abs, values)) < 2**31
    assert min(max(values[-1] >> shift, -127), 127) == found
    # The numbers themselves are near what they stand for.
    assert abs(Fraction(ratio) - factor) <= Fraction(1, 2 ** (shift + 1))
    assert abs(Fraction(bias) + (Fraction(1, 2) if shift else 0) - biased) <= Fraction(1, 2 ** (shift + 1))


@given(ratio=st.floats(-100, 100), bias=st.floats(-1e6, 1e6), total=st.integers(-(2**31), 2**31))
def test_logits_have_room_in_64_bits(ratio: float, bias: float, total: int) -> None:
    to = logit_requantization("x", Scaling(np.array([ratio]), np.array([bias])))
    exact = (total * int(to.factor[0]) + int(to.bias[0])) >> int(to.shift[0])
    assert abs(total * int(to.factor[0])) + abs(int(to.bias[0])) < 2**63
    found = int(requantize(np.array([[total]]), to)[0, 0])
    assert found == min(max(exact, -(2**24) + 1), 2**24 - 1)


def test_what_integers_cannot_express_is_refused_by_name(tmp_path: Path) -> None:
    huge = r.Linear("steep", (r.INPUT,), (2,), np.ones((2, 4), np.int8), one(1e9, 1), one(0, 0))
    relu = r.Activation("relu", ("steep",), (2,), "relu")
    doubled = r.Add("sum", ("relu", "relu"), (2,))
    graph = r.Graph((4,), np.zeros(4, np.float32), np.ones(4, np.float32), (huge, relu, doubled), "sum", ("x", "y"))
    with pytest.raises(ExportError, match=r"steep: the scale .* of channel 0 are too large for integer activations"):
        integer_model(graph, {r.INPUT: 127.0, "steep": 1.0, "relu": 1.0, "sum": 2.0})
    builder = Builder((1, 40, 40), np.random.default_rng(0))
    large = builder.graph([builder.convolution(r.INPUT, 1, (40, 40), "no zeros"), builder.linear(r.INPUT, 1, "trits")])
    with pytest.raises(ExportError, match=r"conv_no_zeros\.0: a ternary Convolution .* too large for integer kernels"):
        write_c(
            tmp_path,
            large,
            r.TestVectors(random_images(large, 1), one(0, 0).reshape(1, 2)),
            COptions(integer=calibrated(large)),
        )
    assert list(tmp_path.iterdir()) == []


def test_calibration_sees_the_largest_value_of_all_images() -> None:
    pool = r.Pool("pool", (r.INPUT,), (1, 1, 2), "max", (2, 1), (1, 1))
    flat = r.Reshape("flat", ("pool",), (2,))
    records: tuple[r.Record, ...] = (pool, flat)
    graph = r.Graph((1, 2, 2), one(1), one(2), records, "flat", ("x", "y"))
    images = [one(1, 1, 1, 5).reshape(1, 1, 2, 2), one(-9, 2, -7, 1).reshape(1, 1, 2, 2)]
    # (x - 1) / 2: at most 2 and at least -5; of the pools -4
    assert largest_values(graph, images) == {r.INPUT: 5.0, "pool": 4.0, "flat": 4.0}


def training(shape: tuple[int, ...]) -> Images:
    def batches() -> Iterator[r.Floats]:
        yield np.random.default_rng(1).standard_normal((64, *shape), dtype=np.float32)

    return Images(64, batches)


@pytest.mark.e2e
def test_export_is_verified_bit_for_bit_and_again_from_its_folder(tmp_path: Path) -> None:
    network = small_network()
    assert network.images is not None
    images = replace(network.images, labels=lambda: np.zeros(40, dtype=np.int64))
    network = replace(network, images=images, training=training((2, 6, 6)))
    folder = tmp_path / "export"
    done = export_network(folder, network, ExportOptions(("packed", "c"), activations="int8"))
    assert done.verification.holds, done.verification
    found = {(check.file, check.what): check.found for check in done.verification.checks}
    assert found[C, "all 40 validation images"] == "equal bit for bit"
    assert found[C, "4 test vectors"] == "equal bit for bit"
    assert "the same class for" in found[C, "compared with float activations"]
    assert "with float activations" in found[C, "compared with float activations"]
    assert INTEGER_VECTORS_FILE in done.files
    assert read_metadata(folder).largest_values is not None

    again = verify_folder(folder, 5.0)
    assert again.holds, again
    assert "its model in integers in torch, bit for bit" in again.described
    (folder / PACKED).unlink()
    with pytest.raises(ExportError, match="holds neither test vectors"):
        verify_folder(folder, 5.0)


@pytest.mark.e2e
def test_int8_needs_c_training_images_and_no_tuning(tmp_path: Path) -> None:
    network = small_network()
    with pytest.raises(ExportError, match="calibrates its scales on training images, and there are none"):
        export_network(tmp_path / "a", network, ExportOptions(activations="int8"))
    with pytest.raises(ExportError, match="--format must include c"):
        export_network(tmp_path / "a", network, ExportOptions(("packed",), activations="int8"))
    with pytest.raises(ExportError, match="--tune times the kernels of float activations"):
        export_network(tmp_path / "a", network, ExportOptions(activations="int8", tune=True))
    with pytest.raises(ExportError, match="unknown kind of activations 'int7'"):
        export_network(tmp_path / "a", network, ExportOptions(activations="int7"))
    assert list(tmp_path.iterdir()) == []
