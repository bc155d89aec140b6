"""The kernels of the C export: each kind on each vector length, its tables, and what is left out or done in passing."""

import ctypes
import itertools
import math
import platform
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import COptions, choose_linear, choose_tiles
from sca_search.export.c.count_zeros import count_zeros_c
from sca_search.export.c.layers import can_have, context_of
from sca_search.export.c.memory import Layout, layouts
from sca_search.export.c.source import write_c
from sca_search.export.c.tables import linear_codes_of, linear_lists_of, lists_of
from sca_search.export.c.tiles import Tiles
from sca_search.export.graph import records as r
from sca_search.export.graph.fuse import is_convolution, steps_of
from sca_search.export.graph.liveness import living
from sca_search.export.graph.reference import evaluate
from tests.support.random_records import Builder, every_operation, random_images, worst_difference

STRICT = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]
# The last of several counts. Of many random shapes: half of the time, and the tests of given ones optimize.
NOT_OPTIMIZED = ["-O0"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
X86 = platform.machine() == "x86_64"
# How many floats a vector has, and what asks for it; longer ones only where the machine can run them.
LANES = {
    "1 lane": ["-DMODEL_LANES=1"],
    "4 lanes": ["-DMODEL_LANES=4"],
    **({"8 lanes": ["-mavx2", "-mfma"], "8 lanes without AVX2": ["-mavx"]} if X86 else {}),
}


def has_avx2() -> bool:
    try:
        return "avx2" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@pytest.fixture(params=LANES, name="lanes")
def lanes_fixture(request: pytest.FixtureRequest) -> list[str]:
    if request.param.startswith("8") and not has_avx2():
        pytest.skip("this processor has no AVX2")
    return LANES[request.param]


def written(folder: Path, graph: r.Graph, options: COptions) -> r.Floats:
    """Writes a model; images for it."""
    images = random_images(graph, 2)
    write_c(folder, graph, r.TestVectors(images, evaluate(graph, images)), options)
    return images


def answers(folder: Path, images: r.Floats, flags: list[str]) -> r.Floats:
    """Compiles the model with sanitizers and runs it."""
    command = ["gcc", *STRICT, "-O1", *SANITIZERS, *flags, "-o", "model", "main.c", "model.c", "-lm"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    ran = subprocess.run([folder / "model"], input=images.tobytes(), capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return np.frombuffer(ran.stdout, dtype=np.float32).reshape(len(images), -1)


def kernels_of(graph: r.Graph, convolution: str, linear: str) -> dict[str, str]:
    return {layer.name: convolution if is_convolution(layer) else linear for layer in graph.ternary_layers}


def check_kernels(graph: r.Graph, names: list[str], options: COptions, flags: list[str]) -> None:
    """Compares with the reference, and counts the zeros in the source."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        images = written(folder, graph, options)
        difference, where = worst_difference(graph, names, images, answers(folder, images, flags))
        # Of float32's 6e-8 a step, what is left of sums over up to 46,000 inputs that may cancel each other.
        assert difference <= 4e-6, where
        assert count_zeros_c(folder) == {
            layer.name: (int((layer.weight == 0).sum()), layer.weight.size) for layer in graph.ternary_layers
        }


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("lanes", "convolution", "linear", "stored"),
    [(name, *(("lists", "codes", False), ("combined", "lists", True))[i % 2]) for i, name in enumerate(LANES)],
    indirect=["lanes"],
)
def test_every_operation_agrees_at_every_vector_length(
    lanes: list[str], convolution: str, linear: str, stored: bool
) -> None:
    graph, names = every_operation((6, 18, 11), 3)
    check_kernels(graph, names, COptions(kernels_of(graph, convolution, linear), stored), lanes)


@pytest.mark.nightly
@pytest.mark.needs("gcc")
@pytest.mark.timeout(1200)  # it compiles forty programs
@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    shape=st.tuples(st.sampled_from([1, 2, 3, 4, 6, 17, 40]), st.integers(1, 34), st.integers(1, 34)),
    seed=st.integers(0, 2**32 - 1),
    kinds=st.sampled_from(list(itertools.product(("lists", "combined"), ("lists", "codes"), (False, True)))),
    flags=st.sampled_from([flags for flags in LANES.values() if "-mavx" not in flags[0] or has_avx2()]),
)
def test_every_operation_agrees_on_many_shapes(
    shape: tuple[int, int, int], seed: int, kinds: tuple[str, str, bool], flags: list[str]
) -> None:
    graph, names = every_operation(shape, seed)
    check_kernels(graph, names, COptions(kernels_of(graph, *kinds[:2]), kinds[2]), flags + NOT_OPTIMIZED)


@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("lanes", "kind"), [(name, ("combined", "lists")[i % 2]) for i, name in enumerate(LANES)], indirect=["lanes"]
)
def test_usual_layers_agree_on_usual_maps(lanes: list[str], kind: str) -> None:
    # Blocks of several channels, several tiles, strides, depthwise, one column wide, 5 x 5, dilation, a last tile that
    # begins earlier (33 and 20 columns), and maps narrower than a vector.
    builder = Builder((40, 33, 20), np.random.default_rng(5))
    border = (1, 1, 1, 1)
    names = [
        builder.convolution(r.INPUT, 18, (3, 3), "trits", padding=border),
        builder.convolution(r.INPUT, 9, (3, 3), "mostly zeros", padding=border, stride=(2, 2)),
        builder.convolution(r.INPUT, 40, (3, 3), "trits", padding=border, groups=40),
        builder.convolution(r.INPUT, 20, (3, 3), "no zeros", padding=border, groups=4),
        builder.convolution(r.INPUT, 11, (1, 1), "trits"),
        builder.convolution(r.INPUT, 11, (1, 1), "trits", stride=(2, 2)),
        builder.convolution(r.INPUT, 3, (5, 5), "trits", padding=(2, 2, 2, 2)),
        builder.convolution(r.INPUT, 3, (3, 3), "trits", dilation=(2, 3)),
        builder.convolution(r.INPUT, 5, (31, 18), "mostly zeros"),
        builder.convolution(r.INPUT, 7, (3, 1), "trits"),
        builder.convolution(r.INPUT, 6, (3, 3), "floats", padding=border, stride=(2, 2)),
    ]
    graph = builder.graph(names)
    check_kernels(graph, names, COptions(kernels_of(graph, kind, "lists")), lanes)


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("size", [(12, 14), (13, 15), (4, 6)])
def test_pool_of_halves_agrees_with_the_reference(size: tuple[int, int]) -> None:
    builder = Builder((5, *size), np.random.default_rng(6))
    pool = r.Pool("halves", (r.INPUT,), (), "max", (2, 2), (2, 2))
    names = [builder.add(pool), builder.add(replace(pool, kind="average"))]
    check_kernels(builder.graph(names), names, COptions(), [])


@pytest.mark.needs("gcc")
def test_residual_blocks_agree_and_take_one_step_a_layer(lanes: list[str]) -> None:
    # Two blocks as in a ResNet, the second with a projection; 32 x 32 cells are a power of two.
    builder = Builder((4, 32, 32), np.random.default_rng(7))
    border = (1, 1, 1, 1)

    def relu(name: str) -> str:
        return builder.add(r.Activation("relu", (name,), (), "relu"))

    first = relu(builder.convolution(r.INPUT, 8, (3, 3), "floats", padding=border))
    inner = relu(builder.convolution(first, 8, (3, 3), "trits", padding=border))
    outer = builder.convolution(inner, 8, (3, 3), "trits", padding=border)
    second = relu(builder.add(r.Add("sum", (outer, first), ())))
    inner = relu(builder.convolution(second, 6, (3, 3), "trits", padding=border, stride=(2, 2)))
    outer = builder.convolution(inner, 6, (3, 3), "trits", padding=border)
    short = builder.convolution(second, 6, (1, 1), "floats", stride=(2, 2))
    last = relu(builder.add(r.Add("sum", (outer, short), ())))
    six = builder.add(r.Activation("six", (builder.convolution(last, 6, (1, 1), "trits"),), (), "relu6"))
    graph = builder.graph([last, six])
    # Seven convolutions; what is left are two flattenings and their concatenation.
    assert len(steps_of(graph)) == 7 + 3
    with tempfile.TemporaryDirectory() as temporary:
        images = written(Path(temporary), graph, COptions())
        expected = evaluate(graph, images)
        found = answers(Path(temporary), images, lanes)
    assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.needs("gcc")
def test_value_that_is_used_twice_is_not_limited_in_passing() -> None:
    builder = Builder((2, 9, 9), np.random.default_rng(8))
    inner = builder.convolution(r.INPUT, 3, (3, 3), "trits")
    outer = builder.add(r.Activation("relu", (inner,), (), "relu"))
    graph = builder.graph([inner, outer])
    assert [type(step.record).__name__ for step in steps_of(graph)][:2] == ["Convolution", "Activation"]
    check_kernels(graph, [inner, outer], COptions(), [])


def expanded(folder: Path) -> bytes:
    """The tables as model_init makes them."""
    command = ["gcc", *STRICT, "-shared", "-fPIC", "-o", "model.so", "model.c", "-lm"]
    subprocess.run(command, cwd=folder, check=True)
    header = (folder / "model.h").read_text()
    size = int(header.split("#define MODEL_TABLES ")[1].split()[0])
    tables = np.zeros(size, np.uint8)
    ctypes.CDLL(str(folder / "model.so")).model_init(ctypes.c_void_p(tables.ctypes.data))
    return tables.tobytes()


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("shape", [(3, 7, 5), (17, 9, 12)])
@pytest.mark.parametrize(("convolution", "linear"), [("lists", "codes"), ("combined", "lists")])
def test_model_expands_the_tables_that_a_stored_one_holds(
    tmp_path: Path, shape: tuple[int, int, int], convolution: str, linear: str
) -> None:
    graph, _ = every_operation(shape, 9)
    kernels = kernels_of(graph, convolution, linear)
    written(tmp_path, graph, COptions(kernels))
    made = np.frombuffer(expanded(tmp_path), dtype=np.uint16)
    written(tmp_path, graph, COptions(kernels, stored=True))
    source = (tmp_path / "model.c").read_text()
    parts = [part.split("};")[0] for part in source.split("_table[")[1:]]
    stored = [int(number) for part in parts for number in part.split("{")[1].split(",") if number.strip()]
    assert made.tolist() == stored
    assert "#define MODEL_TABLES 0\n" in (tmp_path / "model.h").read_text()


def one_layer(weight: r.Trits, size: int) -> r.Convolution:
    """3 x 3 with one cell of border, so that the map keeps its size."""
    scale = np.ones(len(weight), np.float32)
    return r.Convolution("c", (r.INPUT,), (len(weight), size, size), weight, scale, scale, padding=(1, 1, 1, 1))


def test_lists_worked_out_by_hand() -> None:
    # One channel, two outputs, on 8 x 8 cells: ten rows of two vectors, 16 floats. Output 0 has +1 at the top left and
    # -1 in the middle: add at 0; subtract row 1, column 1: 16 + 1. Output 1 has nothing.
    weight = np.zeros((2, 1, 3, 3), np.int8)
    weight[0, 0, 0, 0], weight[0, 0, 1, 1] = 1, -1
    tiles = Tiles(one_layer(weight, 8), weight, input_shape=(1, 8, 8))
    assert lists_of(tiles).tolist() == [2, 0, 1, 1, 0, 17, 1, 0, 0]


def test_combined_lists_worked_out_by_hand() -> None:
    # Three columns combined, 13 vectors per row. Row 0 is (+1, 0, 0), v = 1, plane 0; row 1 is (+1, -1, +1),
    # v = 1 - 3 + 9 = 7, plane 6, 13 * 8 floats further down: 104 + 48; row 2 is (-1, 0, -1), v = -10, plane 9.
    weight = np.array([[[[1, 0, 0], [1, -1, 1], [-1, 0, -1]]]], np.int8)
    tiles = Tiles(one_layer(weight, 8), weight, combined=3, input_shape=(1, 8, 8))
    assert lists_of(tiles).tolist() == [1, 0, 2, 1, 0, 104 + 48, 208 + 72]


def test_linear_tables_worked_out_by_hand() -> None:
    # Blocks of four inputs: output 0 adds input 1 and subtracts 3, then adds input 4 (0 of its block).
    weight = np.array([[0, 1, 0, -1, 1], [-1, 0, 0, 0, 0]], np.int8)
    assert linear_lists_of(weight, 4).tolist() == [1, 1, 1, 3, 1, 0, 0, 0, 1, 0, 0, 0]
    # Number j of an input has outputs j, 8 + j, ...: output 9 is number 1, two bits further up.
    codes = linear_codes_of(np.array([[1], *[[0]] * 8, [-1]], np.int8))
    assert codes.tolist() == [1, 2 << 2, 0, 0, 0, 0, 0, 0]


@given(
    weight=st.integers(0, 2**32 - 1).map(
        lambda seed: np.random.default_rng(seed).integers(-1, 2, (5, 7, 3, 3)).astype(np.int8)
    ),
    combined=st.sampled_from([1, 3]),
)
@settings(max_examples=30, deadline=None)
def test_lists_say_every_weight_once(weight: r.Trits, combined: int) -> None:
    # Read back without the planes: every offset is a row and a column, whose digits are weights.
    tiles = Tiles(one_layer(weight, 8), weight, combined, input_shape=(7, 8, 8))
    numbers, found, place = lists_of(tiles).tolist(), np.zeros_like(weight), 0
    vectors = tiles.row_vectors
    for outputs, channels, _ in tiles.blocks():
        count, place = numbers[place], place + 1
        for _ in range(count):
            output, plus, minus = numbers[place : place + 3]
            signs = [1] * plus + [-1] * minus
            for sign, offset in zip(signs, numbers[place + 3 : place + 3 + plus + minus], strict=True):
                row, floats = divmod(offset, vectors * 8)
                channel, kernel_row = divmod(row, tiles.plane_rows)
                value = sign * (floats // 8 + 1) if combined == 3 else sign
                columns = range(3) if combined == 3 else [floats]
                for column in columns:
                    digit = (value + 1) % 3 - 1
                    value = (value - digit) // 3
                    found[output, channels.start + channel, kernel_row, column] += digit
            place += 3 + plus + minus
        assert outputs == slice(0, 5)
    assert place == len(numbers)
    assert (found == weight).all()


def chain(weights: list[r.Trits], bias: float) -> r.Graph:
    """Convolutions of 1 x 1 cells on a map of 9 x 9, each behind a ReLU, then all cells as logits."""
    records: list[r.Record] = []
    name, cells = r.INPUT, 81
    for place, weight in enumerate(weights):
        size = len(weight)
        scale, shift = np.ones(size, np.float32), np.full(size, bias, np.float32)
        records.append(r.Convolution(f"c{place}", (name,), (size, 9, 9), weight, scale, shift))
        records.append(r.Activation(f"r{place}", (f"c{place}",), (size, 9, 9), "relu"))
        name = f"r{place}"
    outputs = len(weights[-1]) * cells
    records.append(r.Reshape("flat", (name,), (outputs,)))
    channels = np.ones(weights[0].shape[1], np.float32)
    names = tuple(map(str, range(outputs)))
    return r.Graph((len(channels), 9, 9), 0 * channels, channels, tuple(records), "flat", names)


def trits(rows: list[list[int]]) -> r.Trits:
    return np.array(rows, np.int8).reshape(len(rows), -1, 1, 1)


@pytest.mark.needs("gcc")
def test_output_that_nobody_reads_is_left_out(tmp_path: Path) -> None:
    # The second layer reads only outputs 0 and 2 of the first: row 1 need not be computed, so input 1 is not read.
    graph = chain([trits([[1, 0, 0], [0, 1, -1], [0, 0, 1]]), trits([[1, 0, -1]])], bias=0.5)
    alive = living(graph)
    assert alive["c0"].outputs.tolist() == [True, False, True]
    images = written(tmp_path, graph, COptions())
    assert "c0: 9 weights in layer_0_weights; 2 more without effect" in (tmp_path / "model.c").read_text()
    assert count_zeros_c(tmp_path) == {"c0": (5, 9), "c1": (1, 3)}
    assert np.allclose(answers(tmp_path, images, []), evaluate(graph, images), rtol=1e-5, atol=1e-5)


@pytest.mark.needs("gcc")
def test_channel_that_is_always_zero_is_left_out(tmp_path: Path) -> None:
    # Output 1 of the first layer has no weights and a bias that the ReLU cuts off.
    graph = chain([trits([[1, -1], [0, 0]]), trits([[1, 1], [0, -1]])], bias=-0.5)
    alive = living(graph)
    assert alive["c1"].weight.reshape(2, 2).tolist() == [[1, 0], [0, 0]]
    images = written(tmp_path, graph, COptions())
    assert count_zeros_c(tmp_path) == {"c0": (2, 4), "c1": (1, 4)}
    assert np.allclose(answers(tmp_path, images, []), evaluate(graph, images), rtol=1e-5, atol=1e-5)


def test_channel_of_a_constant_above_zero_stays() -> None:
    graph = chain([trits([[1, -1], [0, 0]]), trits([[1, 1], [0, -1]])], bias=0.5)
    assert living(graph)["c1"].weight.reshape(2, 2).tolist() == [[1, 1], [0, -1]]


@pytest.mark.needs("gcc")
def test_layer_without_any_weight_is_its_bias(tmp_path: Path) -> None:
    graph = chain([trits([[0, 0], [0, 0]]), trits([[0, 0]])], bias=0.25)
    images = written(tmp_path, graph, COptions())
    assert (answers(tmp_path, images, []) == 0.25).all()
    assert count_zeros_c(tmp_path) == {"c0": (4, 4), "c1": (2, 2)}


def test_maps_of_a_power_of_two_are_kept_apart_between_layers() -> None:
    builder = Builder((3, 16, 16), np.random.default_rng(0))
    inner = builder.convolution(r.INPUT, 4, (3, 3), "trits", padding=(1, 1, 1, 1))
    outer = builder.convolution(inner, 4, (3, 3), "trits", padding=(1, 1, 1, 1))
    graph = builder.graph([outer, outer])
    lists = COptions({inner: "lists", outer: "lists"})
    lying = context_of(graph, steps_of(graph), lists).layouts
    # 256 cells are a quarter of a way; what is flattened must lie together.
    assert [lying[name].channel_step for name in (r.INPUT, inner, outer)] == [256 + 16, 256 + 16, 256]
    assert [lying[name].row_step for name in (r.INPUT, inner, outer)] == [16, 16, 16]


def test_maps_that_are_read_in_place_have_a_border() -> None:
    builder = Builder((3, 16, 16), np.random.default_rng(0))
    inner = builder.convolution(r.INPUT, 4, (3, 3), "trits", padding=(1, 1, 1, 1))
    outer = builder.convolution(inner, 4, (3, 3), "trits", padding=(1, 1, 1, 1))
    graph = builder.graph([outer, outer])
    lying = context_of(graph, steps_of(graph), COptions({inner: "lists", outer: "in-place"})).layouts
    # A row has 16 cells and 8 zeros; a map 16 rows and one of zeros; a row and 8 zeros lie in front of the first, and
    # 8 floats behind the last that clearing may reach.
    assert lying[inner] == Layout(24, 17 * 24, 24 + 8, 24 + 8 + 4 * 17 * 24 + 8, border=1)
    assert lying[r.INPUT].border is None
    assert lying[outer].border is None
    # A row of 8 cells and its 8 zeros are a cache line; it begins in the middle, so that nothing lies across two.
    assert layouts({"v": (2, 5, 8)}, set(), {"v": 2})["v"] == Layout(16, 7 * 16, 2 * 16 + 4, 36 + 2 * 7 * 16 + 8, 2)


def test_border_suits_all_that_read_a_value() -> None:
    builder = Builder((3, 16, 16), np.random.default_rng(0))
    inner = builder.convolution(r.INPUT, 4, (3, 3), "trits", padding=(1, 1, 1, 1))
    narrow = builder.convolution(inner, 4, (3, 3), "trits", padding=(1, 1, 1, 1))
    wide = builder.convolution(inner, 4, (5, 5), "trits", padding=(1, 3, 2, 2))
    graph = builder.graph([narrow, wide])
    for kernels in ({narrow: "in-place"}, {wide: "in-place"}):
        around = context_of(graph, steps_of(graph), COptions(kernels))
        assert around.layouts[inner].border == 3


@pytest.mark.parametrize(
    ("settings", "possible"),
    [
        ({"kernel": (3, 3), "padding": (1, 1, 1, 1)}, True),
        ({"kernel": (3, 3), "padding": (0, 0, 0, 0)}, True),
        ({"kernel": (1, 9), "padding": (0, 0, 4, 4)}, True),
        ({"kernel": (1, 11), "padding": (0, 0, 5, 5)}, False),  # four cells are always zero beside a row of eight
        ({"kernel": (3, 3), "padding": (1, 1, 1, 1), "stride": (2, 2)}, False),
        ({"kernel": (9, 10), "padding": (0, 0, 0, 0)}, False),  # seven columns are left, a vector has eight
        ({"kernel": (11, 11), "padding": (4, 4, 4, 4), "dilation": (1, 1)}, False),  # sums of 484 weights are too long
    ],
)
def test_what_can_be_read_in_place(settings: dict[str, Any], possible: bool) -> None:
    builder = Builder((4, 16, 16), np.random.default_rng(0))
    layer = builder.convolution(r.INPUT, 4, settings.pop("kernel"), "no zeros", **settings)
    assert can_have(builder.graph([layer, layer]), layer, "in-place") is possible


def test_what_others_need_side_by_side_is_not_read_in_place() -> None:
    builder = Builder((4, 16, 16), np.random.default_rng(0))
    layer = builder.convolution(r.INPUT, 4, (3, 3), "trits", padding=(1, 1, 1, 1))
    gelu = builder.add(r.Activation("gelu", (r.INPUT,), (), "gelu"))
    assert not can_have(builder.graph([layer, gelu]), layer, "in-place")


def in_place(graph: r.Graph) -> dict[str, str]:
    names = [layer.name for layer in graph.ternary_layers if is_convolution(layer)]
    return {name: "in-place" for name in names if can_have(graph, name, "in-place")}


def between_layers(input_shape: r.Shape, seed: int) -> tuple[r.Graph, list[str]]:
    """Values that only convolutions and pools read, written by each kind of step that can leave a border."""
    builder = Builder(input_shape, np.random.default_rng(seed))
    pick = builder.random.integers
    names = []
    writers = [
        r.INPUT,
        builder.random_convolution(r.INPUT, "floats"),
        builder.random_convolution(r.INPUT, "trits"),
        builder.random_pool(r.INPUT, "max"),
        builder.random_pool(r.INPUT, "average"),
        builder.random_adaptive_pool(r.INPUT, "average"),
        builder.add(r.Pool("halves", (r.INPUT,), (), "max", (2, 2), (2, 2), ceil_mode=True)),
    ]
    for source in writers:
        channels = builder.shape(source)[0]
        rows, columns = (int(n) for n in pick(0, 3, 2))
        border = (rows, rows, columns, columns)
        groups = channels if pick(0, 4) == 0 else 1
        reader = builder.convolution(
            source, channels, (2 * rows + 1, 2 * columns + 1), "trits", padding=border, groups=groups
        )
        summed = builder.convolution(reader, channels, (3, 3), "mostly zeros", padding=(1, 1, 1, 1))
        names += [builder.add(r.Add("sum", (summed, source), ())), builder.random_convolution(source, "trits")]
        names.append(builder.random_pool(source, "max"))
    return builder.graph(names), names


@pytest.mark.needs("gcc")
def test_maps_in_place_agree_at_every_vector_length(lanes: list[str]) -> None:
    for shape, seed in (((3, 16, 32), 0), ((5, 13, 20), 1), ((2, 5, 9), 2)):
        graph, names = between_layers(shape, seed)
        kernels = in_place(graph)
        assert len(kernels) >= 5
        check_kernels(graph, names, COptions(kernels, stored=seed == 1), lanes)


@pytest.mark.nightly
@pytest.mark.needs("gcc")
@settings(max_examples=20, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(
    shape=st.tuples(st.integers(1, 9), st.integers(2, 34), st.integers(2, 70)),
    seed=st.integers(0, 2**32 - 1),
    flags=st.sampled_from([flags for flags in LANES.values() if "-mavx" not in flags[0] or has_avx2()]),
)
def test_maps_in_place_agree_on_many_shapes(shape: tuple[int, int, int], seed: int, flags: list[str]) -> None:
    graph, names = between_layers(shape, seed)
    check_kernels(graph, names, COptions(in_place(graph)), flags + NOT_OPTIMIZED)


def test_lists_in_place_worked_out_by_hand() -> None:
    # Two channels of 8 x 8 cells: rows of 16 floats, nine of them a map. Channel 1, kernel row 2, column 1 is added.
    weight = np.zeros((1, 2, 3, 3), np.int8)
    weight[0, 1, 2, 1] = 1
    tiles = Tiles(one_layer(weight, 8), weight, input_shape=(2, 8, 8), border=1)
    assert lists_of(tiles).tolist() == [1, 0, 1, 0, (9 + 2) * 16 + 1]


@pytest.mark.parametrize(
    ("size", "cells", "rows"),
    [
        ((32, 32), 32, 2),
        ((16, 16), 16, 4),
        ((8, 8), 8, 8),
        ((14, 14), 8, 7),  # twice 8 columns as once 16
        ((24, 24), 8, 8),  # three times 8 columns; 32 would be eight too many
        ((40, 40), 8, 8),
        ((64, 64), 32, 2),
        ((1, 32), 8, 1),  # there are no two rows
        ((3, 16), 8, 3),
    ],
)
def test_tiles_in_place_are_as_wide_as_fits(size: tuple[int, int], cells: int, rows: int) -> None:
    layer = replace(one_layer(np.ones((1, 1, 3, 3), np.int8), 8), shape=(1, *size))
    tiles = Tiles(layer, layer.weight, input_shape=(1, *size), border=1)
    assert (tiles.cells, tiles.rows) == (cells, rows)


def tiles_of(sparsity: float, channels: int, size: int) -> dict[str, Tiles]:
    random = np.random.default_rng(0)
    weight = random.choice(np.array([-1, 1], np.int8), (channels, channels, 3, 3))
    weight[random.random(weight.shape) < sparsity] = 0
    layer = one_layer(weight, size)
    given_shape = (channels, size, size)
    return {
        kind: Tiles(layer, weight, columns, input_shape=given_shape)
        for kind, columns in (("lists", 1), ("combined", 3))
    }


@pytest.mark.parametrize(("sparsity", "expected"), [(0.0, "combined"), (0.95, "lists")])
@pytest.mark.parametrize(("channels", "size"), [(16, 32), (64, 8), (256, 16)])
def test_dense_layers_are_combined_and_sparse_ones_listed(
    sparsity: float, expected: str, channels: int, size: int
) -> None:
    kinds = tiles_of(sparsity, channels, size)
    assert choose_tiles("c", kinds, COptions()) is kinds[expected]


def test_linear_layers_are_coded_until_lists_are_short() -> None:
    weight = np.ones((512, 1024), np.int8)
    assert choose_linear("l", weight, COptions()) == "codes"
    weight[:, 51:] = 0  # a twentieth is left
    assert choose_linear("l", weight, COptions()) == "lists"


def test_user_chooses_the_kernel() -> None:
    kinds = tiles_of(0.95, 16, 8)
    assert choose_tiles("c", kinds, COptions({"c": "combined"})) is kinds["combined"]
    assert choose_linear("l", np.ones((2, 2), np.int8), COptions({"l": "codes"})) == "codes"


@pytest.mark.parametrize(
    ("kernels", "said"),
    [
        ({"c0": "fast"}, r"c0: .*kernel 'fast': known are combined, in-place, lists"),
        ({"c0": "codes"}, r"c0: .*kernel.*codes"),
        ({"c9": "lists"}, r"ternary layer.*c9.*c0"),
    ],
)
def test_unknown_kernel_or_layer_is_refused(tmp_path: Path, kernels: dict[str, str], said: str) -> None:
    graph = chain([trits([[1, -1]])], bias=0.0)
    with pytest.raises(ExportError, match=said):
        written(tmp_path, graph, COptions(kernels))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("gcc")
def test_long_linear_layers_are_cut_into_blocks(lanes: list[str]) -> None:
    # 70,000 inputs do not fit into two bytes.
    random = np.random.default_rng(1)
    weight = random.integers(-1, 2, (3, 70_000)).astype(np.int8)
    scale = np.ones(3, np.float32)
    records = (r.Reshape("flat", (r.INPUT,), (70_000,)), r.Linear("l", ("flat",), (3,), weight, scale, scale))
    graph = r.Graph((7, 100, 100), np.zeros(7, np.float32), np.ones(7, np.float32), records, "l", tuple("abc"))
    for kind in ("lists", "codes"):
        check_kernels(graph, ["l"], COptions({"l": kind}), lanes)


@pytest.mark.needs("gcc")
def test_limits_apply_to_linear_layers(tmp_path: Path) -> None:
    # 2 · (1 + 2) = 6 is above ReLU6's upper limit with the bias 1; -3 is below zero.
    weight = np.array([[1, 1], [-1, -1]], np.int8)
    records: tuple[r.Record, ...] = (
        r.Linear("l", (r.INPUT,), (2,), weight, np.array([2, 1], np.float32), np.array([1, 0], np.float32)),
        r.Activation("r", ("l",), (2,), "relu6"),
    )
    graph = r.Graph((2,), np.zeros(2, np.float32), np.ones(2, np.float32), records, "r", ("a", "b"))
    write_c(tmp_path, graph, r.TestVectors(np.array([[1, 2]], np.float32), np.array([[6, 0]], np.float32)))
    found = answers(tmp_path, np.array([[1, 2], [0.5, 1]], np.float32), [])
    assert found.tolist() == [[6.0, 0.0], [4.0, 0.0]]
    assert len(steps_of(graph)) == 1
    assert math.isinf(steps_of(replace(graph, records=records[:1], output="l"))[0].limits[1])
