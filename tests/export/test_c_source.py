"""The C export: what it computes, compiled for real and under sanitizers, and what a user sees of it."""

import ctypes
import platform
import re
import subprocess
import tempfile
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from sca_search.errors import ExportError
from sca_search.export.c.amalgamate import kernel_file
from sca_search.export.c.count_zeros import count_zeros_c
from sca_search.export.c.emit import MOST_CHARACTERS, Literal, count_signs, float_chunks, quoted, trit_chunks
from sca_search.export.c.memory import Plan, plan_memory
from sca_search.export.c.source import write_c
from sca_search.export.graph import records as r
from sca_search.export.graph.fuse import steps_of
from sca_search.export.graph.reference import evaluate
from tests.support.networks import ternary_torchvision, torchvision_cases
from tests.support.random_records import WEIGHT_KINDS, Builder, every_operation, random_images, worst_difference
from tests.support.tools import CLANG_SANITIZERS

STRICT = "-std=c99 -Wall -Wextra -Wpedantic -Werror"
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=all"


def make(folder: Path, *targets: str, cc: str = "gcc", optimize: str = "-O1", flags: str = SANITIZERS) -> str:
    """Runs make with all warnings as errors; what it printed."""
    settings = (f"CC={cc}", f"CFLAGS={optimize} {flags}", f"LDFLAGS={flags}", f"WARNINGS={STRICT}")
    done = subprocess.run(["make", "-B", *targets, *settings], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(folder: Path, images: r.Floats) -> r.Floats:
    """The logits that ./model answers."""
    done = subprocess.run([folder / "model"], input=images.tobytes(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return np.frombuffer(done.stdout, dtype=np.float32).reshape(len(images), -1)


def written(folder: Path, graph: r.Graph, count: int = 2) -> r.TestVectors:
    """Writes the model and gives its test vectors, answered by the reference."""
    images = random_images(graph, count)
    vectors = r.TestVectors(images, evaluate(graph, images))
    write_c(folder, graph, vectors)
    return vectors


def small_graph() -> r.Graph:
    builder = Builder((3, 5, 5), np.random.default_rng(3))
    first = builder.convolution(r.INPUT, 4, (3, 3), "trits")
    return builder.graph([builder.linear(first, 3, "trits"), builder.linear(first, 2, "floats")])


def check_every_operation(shape: tuple[int, int, int], seed: int, **how: str) -> None:
    graph, names = every_operation(shape, seed)
    with tempfile.TemporaryDirectory() as temporary:  # tmp_path would be one for all examples
        folder = Path(temporary)
        vectors = written(folder, graph)
        make(folder, "model", **how)
        difference, where = worst_difference(graph, names, vectors.images, run(folder, vectors.images))
    assert difference <= 2e-6, where


NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # each example is a compilation
SHAPES = st.tuples(st.sampled_from([1, 2, 3, 4, 6, 17]), st.integers(1, 9), st.integers(1, 9))


@pytest.mark.needs("gcc", "make")
@settings(max_examples=3, deadline=None, derandomize=True, phases=NO_SHRINKING)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_every_operation_agrees_with_the_reference(shape: tuple[int, int, int], seed: int) -> None:
    check_every_operation(shape, seed)


@pytest.mark.nightly
@pytest.mark.needs("gcc", "make")
@settings(max_examples=60, deadline=None, phases=NO_SHRINKING)
@given(shape=SHAPES, seed=st.integers(0, 2**32 - 1))
def test_every_operation_agrees_with_the_reference_on_many_shapes(shape: tuple[int, int, int], seed: int) -> None:
    check_every_operation(shape, seed, optimize="-O0")  # half of the time; the others here optimize


@pytest.mark.needs("clang", "make")
def test_every_operation_agrees_when_clang_optimizes() -> None:
    check_every_operation((3, 7, 5), 11, cc="clang", optimize="-O3", flags="")


@pytest.mark.needs("gcc", "make")
def test_every_operation_agrees_when_gcc_optimizes() -> None:
    check_every_operation((6, 8, 7), 12, optimize="-O3", flags="")


@pytest.mark.needs("gcc", "make")
@pytest.mark.parametrize("optimize", ["-O0", "-O2", "-Os"])  # -O1 and -O3 are compiled throughout this file
def test_no_level_of_optimization_finds_anything_to_warn_of(tmp_path: Path, optimize: str) -> None:
    # One small full layer at the end, whose sizes gcc knows: that is where it once saw a loop without an end.
    builder = Builder((2, 8, 8), np.random.default_rng(5))
    hidden = builder.linear(builder.convolution(r.INPUT, 4, (3, 3), "trits"), 64, "trits")
    graph = builder.graph([builder.linear(hidden, 10, "floats"), builder.linear(hidden, 10, "trits")])
    written(tmp_path, graph)
    make(tmp_path, "model", optimize=optimize, flags="")


@pytest.mark.needs("gcc", "make")
def test_odd_maps_and_channels_agree_with_the_reference(tmp_path: Path) -> None:
    # 1, 3 and 17 channels on maps of 1 × 1, 5 × 5 and 7 × 7 cells, with every kind of weight.
    builder = Builder((3, 7, 7), np.random.default_rng(0))
    names = []
    for size in (7, 5, 1):
        cut = builder.add(r.Pool("cut", (r.INPUT,), (), "max", (8 - size, 8 - size), (1, 1)))
        for channels in (1, 3, 17):
            source = builder.convolution(cut, channels, (1, 1), "trits")
            names += [builder.convolution(source, 17, (3, 3), kind, padding=(1, 1, 1, 1)) for kind in WEIGHT_KINDS]
            names += [builder.convolution(source, 3, (1, 1), kind, stride=(2, 2)) for kind in WEIGHT_KINDS]
    graph = builder.graph(names)
    vectors = written(tmp_path, graph)
    make(tmp_path, "model")
    difference, where = worst_difference(graph, names, vectors.images, run(tmp_path, vectors.images))
    assert difference <= 2e-6, where


@pytest.mark.needs("gcc", "make")
def test_wide_layers_agree_where_weights_fill_many_pieces(tmp_path: Path) -> None:
    # 40,000 floats and 17,000 trits per output are more than one literal holds.
    builder = Builder((10, 41, 41), np.random.default_rng(1))
    names = [
        builder.linear(r.INPUT, 3, "floats"),
        builder.linear(r.INPUT, 5, "trits"),
        builder.convolution(r.INPUT, 2, (31, 29), "floats"),
        builder.convolution(r.INPUT, 2, (41, 40), "trits"),
    ]
    graph = builder.graph(names)
    vectors = written(tmp_path, graph, count=1)
    make(tmp_path, "model")
    difference, where = worst_difference(graph, names, vectors.images, run(tmp_path, vectors.images))
    assert difference <= 2e-6, where
    rows = re.findall(r"\]\[(\d+)\] = \{", (tmp_path / "model.c").read_text())
    assert max(map(int, rows)) - 1 <= MOST_CHARACTERS


@pytest.mark.needs("gcc", "make")
def test_long_sums_lose_little_to_rounding(tmp_path: Path) -> None:
    # 65,536 times 0.7: one after the other in float32 they are off by 6e-4 (numpy says so, too), which no verification
    # would let pass.
    one, count = np.ones(1, np.float32), 65_536
    image = np.full((1, 4096, 4, 4), 0.7, dtype=np.float32)
    assert abs(np.add.accumulate(image.reshape(-1))[-1] / (count * 0.7) - 1) > 1e-4
    records: list[r.Record] = [
        r.Convolution("a", (r.INPUT,), (1, 1, 1), np.ones((1, 4096, 4, 4), np.int8), one, one),
        r.Convolution("b", (r.INPUT,), (1, 1, 1), np.ones((1, 4096, 4, 4), np.float32), one, one),
        r.Reshape("flat", (r.INPUT,), (count,)),
        r.Linear("c", ("flat",), (1,), np.ones((1, count), np.int8), one, one),
        r.Linear("d", ("flat",), (1,), np.ones((1, count), np.float32), one, one),
        r.Reshape("flat_a", ("a",), (1,)),
        r.Reshape("flat_b", ("b",), (1,)),
        r.Concat("all", ("flat_a", "flat_b", "c", "d"), (4,)),
    ]
    channels = np.ones(4096, np.float32)
    graph = r.Graph((4096, 4, 4), 0 * channels, channels, tuple(records), "all", tuple("abcd"))
    write_c(tmp_path, graph, r.TestVectors(image, evaluate(graph, image)))
    make(tmp_path, "model", flags="")
    expected = count * float(np.float32(0.7)) + 1
    assert run(tmp_path, image)[0].tolist() == pytest.approx([expected] * 4, rel=5e-6)


@pytest.mark.needs("gcc", "make")
def test_make_check_passes_on_the_test_vectors_and_fails_on_others(tmp_path: Path) -> None:
    graph = small_graph()
    vectors = written(tmp_path, graph, count=3)
    assert "3 of 3 test vectors agree" in make(tmp_path, "check")
    wrong = vectors.logits.copy()
    wrong[1, 2] += np.float32(3e-5) * np.abs(wrong[1]).max()
    write_c(tmp_path, graph, r.TestVectors(vectors.images, wrong))
    make(tmp_path, "check-model")
    done = subprocess.run([tmp_path / "check-model"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "vector 1 differs by" in done.stdout
    assert "2 of 3 test vectors agree" in done.stdout


@pytest.mark.needs("gcc", "make")
def test_self_test_does_not_take_a_model_of_nans_for_good(tmp_path: Path) -> None:
    graph = small_graph()
    vectors = written(tmp_path, graph, count=1)
    write_c(tmp_path, graph, r.TestVectors(np.full_like(vectors.images, np.nan), vectors.logits))
    make(tmp_path, "check-model")
    assert subprocess.run([tmp_path / "check-model"], capture_output=True, check=False).returncode == 1


@pytest.mark.needs(CLANG_SANITIZERS, "make")
def test_clang_finds_nothing_under_sanitizers(tmp_path: Path) -> None:
    written(tmp_path, small_graph())
    assert "2 of 2 test vectors agree" in make(tmp_path, "check", "model", cc="clang")


@pytest.mark.needs("gcc", "make")
def test_example_reads_images_to_the_end_and_refuses_half_an_image(tmp_path: Path) -> None:
    graph = small_graph()
    vectors = written(tmp_path, graph, count=5)
    make(tmp_path)  # the default target
    assert np.allclose(run(tmp_path, vectors.images), vectors.logits, rtol=1e-5, atol=1e-5)
    done = subprocess.run([tmp_path / "model"], input=b"\0" * 400, capture_output=True, text=False, check=False)
    assert done.returncode == 1
    assert done.stderr == b"the last image has 25 of 75 values\n"


@pytest.mark.needs("gcc", "make", "nm")
def test_model_needs_no_libc_but_memcpy(tmp_path: Path) -> None:
    written(tmp_path, small_graph())
    # Compilers may turn a loop into a call of memset by themselves.
    make(tmp_path, "model.o", flags="-fno-tree-loop-distribute-patterns")
    undefined = subprocess.run(["nm", "-u", tmp_path / "model.o"], capture_output=True, text=True, check=True).stdout
    assert set(undefined.split()) - {"U"} <= {"memcpy", "_GLOBAL_OFFSET_TABLE_"}


@pytest.mark.needs("gcc")
def test_scratch_memory_may_be_the_callers(tmp_path: Path) -> None:
    graph = small_graph()
    vectors = written(tmp_path, graph, count=1)
    header = (tmp_path / "model.h").read_text()
    scratch = int(re.search(r"#define MODEL_SCRATCH (\d+)", header)[1])  # type: ignore[index]
    flags = "-shared -fPIC -DMODEL_NO_SCRATCH"
    subprocess.run(
        ["gcc", *STRICT.split(), *flags.split(), "-o", "model.so", "model.c", "-lm"], cwd=tmp_path, check=True
    )
    library = ctypes.CDLL(str(tmp_path / "model.so"))
    assert not hasattr(library, "model_predict")
    memory, logits = np.full(scratch + 1, 7, np.float32), np.zeros(5, np.float32)
    size = int(re.search(r"#define MODEL_TABLES (\d+)", header)[1])  # type: ignore[index]
    tables = np.full(size + 1, 7, np.uint8)
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (memory, vectors.images, logits)]
    library.model_init(tables.ctypes.data_as(ctypes.c_void_p))
    library.model_predict_with(tables.ctypes.data_as(ctypes.c_void_p), *pointers)
    assert np.allclose(logits, vectors.logits[0], rtol=1e-5, atol=1e-5)
    assert memory[scratch] == 7  # nothing behind it was touched
    assert tables[size] == 7


@pytest.mark.needs("gcc")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads x86-64 assembly")
@pytest.mark.parametrize(
    ("kernel", "by_weight", "by_output"),
    [
        ("ternary_convolution", {"sum_vectors_8", "sum_block"}, {"add_product", "finish_narrow"}),
        ("ternary_linear_lists", {"sum_listed"}, {"finished"}),
        ("ternary_linear_codes", {"add_coded"}, {"finished"}),
    ],
)
@pytest.mark.parametrize("machine", ["-msse2", "-mavx2"])
def test_ternary_kernels_multiply_once_an_output(
    tmp_path: Path, kernel: str, by_weight: set[str], by_output: set[str], machine: str
) -> None:
    folder = resources.files("sca_search.export.c") / "kernels"
    with resources.as_file(folder) as kernels:
        command = ["gcc", "-std=c99", "-O1", "-fno-inline", machine, "-Wno-unused-function", "-S", "-o", "-"]
        # A pointer to the kernel keeps the compiler from dropping it.
        (tmp_path / "kernel.c").write_text(f'#include "{kernel}.c"\nvoid *used = (void *){kernel};\n')
        done = subprocess.run(
            [*command, f"-I{kernels}", tmp_path / "kernel.c"], capture_output=True, text=True, check=True
        )
    functions = dict(re.findall(r"^(\w+):\n(.*?)\.size", done.stdout, re.MULTILINE | re.DOTALL))
    multiplying = {name for name, body in functions.items() if re.search(r"\bv?f?mul[sp]s|fmadd", body)}
    assert by_weight <= functions.keys()
    assert multiplying == by_output
    for name in by_weight:  # eight sums side by side are scaled once each
        assert functions[name].count("add_product") == (8 if name == "sum_vectors_8" else 0)


def test_zeros_are_counted_in_the_source(tmp_path: Path) -> None:
    graph, _ = every_operation((3, 5, 5), 5)
    written(tmp_path, graph)
    counted = count_zeros_c(tmp_path)
    assert counted == {
        layer.name: (int((layer.weight == 0).sum()), layer.weight.size) for layer in graph.ternary_layers
    }
    assert len(counted) > 10


def test_missing_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"model\.c cannot be read as a model"):
        count_zeros_c(tmp_path)


def test_kernel_too_large_for_a_literal_is_refused_by_name(tmp_path: Path) -> None:
    builder = Builder((1, 40, 40), np.random.default_rng(0))
    graph = builder.graph([builder.convolution(r.INPUT, 1, (40, 40), "floats"), builder.linear(r.INPUT, 1, "trits")])
    with pytest.raises(ExportError, match=r"conv_floats\.0: a Convolution in C may have 1023 weights per kernel"):
        write_c(tmp_path, graph, r.TestVectors(random_images(graph, 1), np.zeros((1, 2), np.float32)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.needs("gcc", "make")
def test_class_names_of_any_text_survive(tmp_path: Path) -> None:
    names = ('"quoted"', "back\\slash", "what??=", "Größe\n%s", "*/")
    base = small_graph()
    graph = r.Graph(base.input_shape, base.mean, base.std, base.records, base.output, names)
    written(tmp_path, graph)
    (tmp_path / "names.c").write_text(
        '#include <stdio.h>\n#include "model.h"\n'
        'int main(void) { int i; for (i = 0; i < MODEL_OUTPUTS; i++) { puts(model_class_names[i]); puts("|"); }'
        " return 0; }"
    )
    make(tmp_path, "model.o", flags="")
    subprocess.run(["gcc", *STRICT.split(), "-o", "names", "names.c", "model.o"], cwd=tmp_path, check=True)
    printed = subprocess.run([tmp_path / "names"], capture_output=True, check=True).stdout.decode()
    assert printed.split("\n|\n")[:-1] == list(names)


def test_trits_are_the_characters_worked_out_by_hand() -> None:
    # +1 0 -1 +1: digits 1 0 2 1 from the lowest, 1 + 2·9 + 27 = 46, '#' is 35, 81 is 'Q'; +1 alone: 36 is '$'.
    # +1 0 0 +1 is 28 + 35 = 63, '?'; 0 +1 0 -1 is 3 + 54 + 35 = 92, the backslash; zeros are '#'.
    trits = np.array([[1, 0, -1, 1, 1], [1, 0, 0, 1, 0], [0, 1, 0, -1, 0]], dtype=np.int8)
    assert trit_chunks(trits).tobytes() == b"Q$?#\\#"
    lines = list(Literal("x", trit_chunks(trits)).definition())
    assert lines == ["static const unsigned char x[1][7] = {", r'    "Q$\077#\134#",', "};"]
    assert count_signs("\n".join(lines), "x") == 4 + 2 + 2


def test_backslash_in_front_of_digits_is_counted_as_it_is() -> None:
    # Backslash, 0, 7 and 7 are 57, 13, 20 and 20 above '#', in base 3 2010, 0111, 0202 and 0202: 2 + 3 + 2 + 2 signs.
    characters = np.frombuffer(b"\\077", dtype=np.uint8).reshape(1, -1)
    source = "\n".join(Literal("x", characters).definition())
    assert r'"\134077"' in source
    assert count_signs(source, "x") == 9


def test_floats_are_bytes_with_the_lowest_first() -> None:
    # 1.0 is 0x3f800000, -2.5 is 0xc0200000.
    assert float_chunks(np.array([[1.0, -2.5]], dtype=np.float32)).tobytes() == bytes.fromhex("0000803f 000020c0")
    assert quoted("\x00\x1f a\x7fé") == r'"\000\037 a\177\303\251"'


def test_literal_is_cut_between_chunks() -> None:
    # 1500 bytes a chunk: two fit into 4095; five chunks are three pieces.
    literal = Literal("x", np.full((5, 1500), 65, dtype=np.uint8))
    text = "\n".join(literal.definition())
    assert text.startswith("static const unsigned char x[3][3001] = {")
    pieces = [sum(map(len, re.findall(r'"(A+)"', piece))) for piece in text.split(",\n")[:-1]]
    assert pieces == [3000, 3000, 1500]
    assert literal.initializer == "{(const unsigned char *)x, 1500, 2}"


@pytest.mark.parametrize("compiler", [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("gcc", "clang")])
def test_literals_of_any_length_compile_without_a_warning(tmp_path: Path, compiler: str) -> None:
    # A short last piece behind full ones: written as strings side by side, clang would suspect a missing comma.
    random = np.random.default_rng(0)
    sizes = [1, 96, 97, 200, 4095, 4096, 4095 + 150, 2 * 4095 + 1, 2 * 4095 + 100, 2 * 4095 + 200, 3 * 4095 + 150]
    literals = [Literal(f"x{size}", random.integers(0, 256, (size, 1), dtype=np.uint8)) for size in sizes]
    lines = [line for literal in literals for line in literal.definition()]
    names = ", ".join(f"(const unsigned char *){literal.name}" for literal in literals)
    lines.append(f"const unsigned char *const all[{len(literals)}] = {{{names}}};\n")
    (tmp_path / "x.c").write_text("\n".join(lines))
    command = [compiler, *STRICT.split(), "-shared", "-fPIC", "-o", "x.so", "x.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    addresses = (ctypes.c_void_p * len(sizes)).in_dll(ctypes.CDLL(str(tmp_path / "x.so")), "all")
    for address, literal, size in zip(addresses, literals, sizes, strict=True):
        step = min(size, 4095) + 1
        stored = ctypes.string_at(address, step * -(-size // 4095))
        kept = b"".join(stored[begin : begin + step - 1] for begin in range(0, len(stored), step))
        assert kept[:size] == literal.chunks.tobytes()


def test_plan_writes_over_what_nobody_takes_any_more() -> None:
    # 10 values in; three activations in place; then 10 -> 4 needs both. Values begin at multiples of 16.
    records: list[r.Record] = [
        r.Activation("a", (r.INPUT,), (10,), "relu"),
        r.Activation("b", ("a",), (10,), "relu"),
        r.Reshape("c", ("b",), (10,)),
        _linear("d", "c", 10, 4),
    ]
    plan = planned(records, {})
    assert plan.values[r.INPUT] == plan.values["a"] == plan.values["b"] == plan.values["c"]
    assert plan.size == 16 + 4


def test_plan_keeps_a_residual_until_it_is_added() -> None:
    # input (10) -> x (8), kept for the sum; x -> y (8) -> z (8); z + x. At most three are alive together, x, y and z
    # where z is made: they begin at 0, 16 and 32. The sum takes z's or x's place.
    records = [
        _linear("x", r.INPUT, 10, 8),
        _linear("y", "x", 8, 8),
        _linear("z", "y", 8, 8),
        r.Add("sum", ("z", "x"), (8,)),
    ]
    plan = planned(records, {})
    assert plan.size == 32 + 8
    assert plan.values["sum"] in (plan.values["x"], plan.values["z"])
    assert len({plan.values[name] for name in "xyz"}) == 3


def test_plan_does_not_write_over_what_is_still_needed_reshaped() -> None:
    records: list[r.Record] = [
        r.Reshape("flat", (r.INPUT,), (10,)),
        r.Activation("a", (r.INPUT,), (10,), "relu"),
        r.Add("sum", ("a", "flat"), (10,)),
    ]
    plan = planned(records, {1: 3})
    assert plan.values["flat"] == plan.values[r.INPUT]
    assert plan.values["a"] != plan.values[r.INPUT]
    assert plan.size == 32 + 3
    assert plan.works[1] == 32


def _linear(name: str, source: str, inputs: int, outputs: int) -> r.Linear:
    ones = np.ones(outputs, np.float32)
    return r.Linear(name, (source,), (outputs,), np.ones((outputs, inputs), np.int8), ones, ones)


def planned(records: list[r.Record], works: dict[int, int]) -> Plan:
    graph = _plain_graph(records)
    sizes = {r.INPUT: 10} | {record.name: record.shape[0] for record in records}
    return plan_memory(steps_of(graph), sizes, graph.output, works)


def _plain_graph(records: list[r.Record]) -> r.Graph:
    one = np.ones(1, np.float32)
    return r.Graph((10,), one, one, tuple(records), records[-1].name, tuple("abcdefghij"[: records[-1].shape[0]]))


def test_every_kernel_is_plain_ascii_without_heap() -> None:
    folder = resources.files("sca_search.export.c") / "kernels"
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith((".c", ".h"))]
    assert {"ternary_convolution.c", "literals.h", "model.h", "main.c"} <= set(names)
    for name in names:
        text = kernel_file(name)
        assert text.isascii(), name
        assert not re.search(r"\b(malloc|calloc|free|memset)\b", text), name


@pytest.mark.needs("gcc", "make")
@pytest.mark.parametrize("name", torchvision_cases("resnet18", "mobilenet_v3_small", "squeezenet1_1"))
def test_torchvision_networks_agree_with_torch(name: str, tmp_path: Path) -> None:
    graph, images, logits = ternary_torchvision(name)
    write_c(tmp_path, graph, r.TestVectors(images, logits))
    make(tmp_path, "model", optimize="-O3", flags="")
    answers = run(tmp_path, images)
    assert np.abs(answers - logits).max() <= 1e-5 * np.abs(logits).max()
    assert (answers.argmax(1) == logits.argmax(1)).all()
    assert torch.isfinite(torch.from_numpy(answers.copy())).all()
