"""Compiling C on the user's machine, and compiled models as functions of numpy arrays."""

import ctypes
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import sca_search
from sca_search.errors import ExportError
from sca_search.export.c.compiler import (
    PORTABLE,
    Compiler,
    build_library,
    find_compiler,
    require_compiler,
    zig_compiler,
)
from sca_search.export.c.library import CompiledModel, aligned, compile_model
from sca_search.export.c.source import write_c
from sca_search.export.graph.records import INPUT, Activation, Floats, Graph, TestVectors
from sca_search.export.graph.reference import evaluate
from sca_search.export.packed.format import write_packed
from tests.support.random_records import Builder, random_images

ANSWER = "int answer(void) { return 42; }\n"
no_zig = pytest.mark.skipif(zig_compiler() is None, reason="ziglang is not installed")


def graph_of(shape: tuple[int, ...] = (3, 6, 5)) -> Graph:
    builder = Builder(shape, np.random.default_rng(5))
    first = builder.convolution(INPUT, 8, (3, 3), "trits") if len(shape) == 3 else INPUT
    second = builder.add(Activation("relu", (first,), (), "relu"))
    return builder.graph([builder.linear(second, 3, "trits"), builder.linear(INPUT, 2, "floats")])


def vectors_of(graph: Graph, count: int = 4) -> TestVectors:
    images = random_images(graph, count)
    return TestVectors(images, evaluate(graph, images))


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TestVectors]:
    """A folder like an export's, and its test vectors."""
    folder = tmp_path_factory.mktemp("export")
    graph = replace(graph_of(), class_names=("Äpfel", "b", 'say "c"', "d", "e"))
    vectors = vectors_of(graph)
    (folder / "c").mkdir()
    write_c(folder / "c", graph, vectors)
    write_packed(folder / "model.safetensors", graph, vectors)
    return folder, vectors


@pytest.fixture(scope="module")
def model(exported: tuple[Path, TestVectors]) -> CompiledModel:
    return compile_model(exported[0])


def assert_answers(given: Floats, expected: Floats) -> None:
    assert given.shape == expected.shape
    assert given.dtype == np.float32
    assert np.abs(given - expected).max() <= 2e-6 * np.abs(expected).max()


@pytest.mark.needs("gcc")
def test_compiler_is_the_one_that_cc_names(monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = shutil.which("gcc")
    monkeypatch.setenv("CC", "gcc -pipe")
    assert find_compiler() == Compiler((str(gcc), "-pipe"))
    monkeypatch.setenv("CC", "no-such-compiler")
    assert find_compiler() is None
    monkeypatch.setenv("CC", "")
    assert find_compiler() == Compiler((str(shutil.which("cc")),))


def test_compiler_is_the_extras_where_the_system_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    assert find_compiler() == zig_compiler()


def test_missing_compiler_is_one_sentence(
    exported: tuple[Path, TestVectors], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ExportError, match="no C compiler was found: CC names none"):
        sca_search.compile(exported[0])


def test_flags_are_tried_before_they_are_used() -> None:
    compiler = require_compiler()
    assert compiler.takes("-O1")
    assert not compiler.takes("-march=no-such-machine")
    assert compiler.native()[: len(PORTABLE)] == PORTABLE


def answer_of(library: Path) -> int:
    answer: int = ctypes.CDLL(str(library)).answer()
    return answer


def test_library_is_built_once_for_the_same_source_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = build_library({"a.c": ANSWER}, ("-O1",))
    assert answer_of(first) == 42
    assert first.parent == tmp_path / "sca-search"
    assert first.parent.stat().st_mode & 0o077 == 0  # what lies there is run: it is nobody else's to write
    written = first.stat().st_mtime_ns
    assert build_library({"a.c": ANSWER}, ("-O1",)) == first
    assert first.stat().st_mtime_ns == written
    others = [
        build_library({"a.c": ANSWER.replace("42", "43")}, ("-O1",)),
        build_library({"a.c": ANSWER}, ("-O2",)),
        build_library({"b.c": ANSWER}, ("-O1",)),
        build_library({"a.c": ANSWER}, ("-O1",), Compiler((*require_compiler().command, "-pipe"))),
    ]
    assert len({first, *others}) == 5
    assert answer_of(others[0]) == 43
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".so"] * 5  # nothing half-written


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
@pytest.mark.parametrize("part", ["folder", "file"])
def test_library_that_others_could_have_written_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str, mode: int
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = build_library({"a.c": ANSWER}, ("-O1",))
    path = library if part == "file" else library.parent
    path.chmod(mode)
    with pytest.raises(ExportError) as rejected:
        build_library({"a.c": ANSWER}, ("-O1",))
    rule = "must belong to you and be writable only by you, because code in it is run"
    assert str(rejected.value) == f"{path}: {rule}, got user {os.geteuid()} and mode {mode:o}; remove it"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
@pytest.mark.parametrize("part", ["folder", "file"])
def test_library_of_another_user_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = build_library({"a.c": ANSWER}, ("-O1",))
    path = library if part == "file" else library.parent
    os.chown(path, 12345, -1)
    with pytest.raises(ExportError, match=f"^{path}: must belong to you .*, got user 12345 and mode 700; remove it$"):
        build_library({"a.c": ANSWER}, ("-O1",))


def test_library_is_private_whatever_the_umask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    before = os.umask(0)
    try:
        first = build_library({"a.c": ANSWER}, ("-O1",))
    finally:
        os.umask(before)
    assert build_library({"a.c": ANSWER}, ("-O1",)) == first


def test_cache_that_cannot_be_written_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    library = build_library({"a.c": ANSWER}, ("-O1",))
    assert answer_of(library) == 42
    assert tmp_path not in library.parents


def test_library_that_is_not_kept_stays_out_of_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    library = build_library({"a.c": ANSWER}, ("-O1",), keep=False)
    assert answer_of(library) == 42
    assert list(tmp_path.iterdir()) == []


def test_relative_cache_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The standard says so: a folder that depends on where one stands is no cache.
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build_library({"a.c": ANSWER}, ("-O1",)).parent == tmp_path / ".cache" / "sca-search"


def test_source_that_does_not_compile_is_refused_with_the_compilers_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(ExportError, match=r"failed with code 1: (.|\n)*error"):
        build_library({"a.c": "int answer(void) { return nobody; }\n"}, ("-O1",))
    assert list((tmp_path / "sca-search").iterdir()) == []


@pytest.mark.e2e
@no_zig
def test_compiler_of_the_extra_builds_models(exported: tuple[Path, TestVectors]) -> None:
    folder, vectors = exported
    assert_answers(compile_model(folder, compiler=zig_compiler())(vectors.images), vectors.logits)


@pytest.mark.parametrize("part", ["", "c", "model.safetensors"])
def test_compiled_model_answers_as_the_reference_does(exported: tuple[Path, TestVectors], part: str) -> None:
    folder, vectors = exported
    model = sca_search.compile(folder / part)
    assert model.input_shape == (3, 6, 5)
    assert model.class_names == ("Äpfel", "b", 'say "c"', "d", "e")
    assert_answers(model(vectors.images), vectors.logits)
    assert_answers(model(vectors.images[2]), vectors.logits[2])
    header = (folder / "c" / "model.h").read_text()
    assert f"#define MODEL_SCRATCH {model.scratch_bytes // 4}\n" in header


def test_folder_with_nothing_but_the_packed_model_is_compiled(
    exported: tuple[Path, TestVectors], tmp_path: Path
) -> None:
    folder, vectors = exported
    shutil.copy(folder / "model.safetensors", tmp_path)
    assert_answers(sca_search.compile(str(tmp_path))(vectors.images), vectors.logits)


def test_model_of_vectors_is_compiled(tmp_path: Path) -> None:
    graph = graph_of((7,))
    vectors = vectors_of(graph)
    write_c(tmp_path, graph, vectors)
    model = sca_search.compile(tmp_path)
    assert model.input_shape == (7,)
    assert_answers(model(vectors.images), vectors.logits)


def test_images_of_other_types_and_orders_are_converted(model: CompiledModel) -> None:
    whole = np.random.default_rng(0).integers(0, 9, (2, 3, 6, 5))
    expected = model(whole.astype(np.float32))
    for kind in (np.float64, np.float16, np.uint8, np.int64):
        assert np.array_equal(model(whole.astype(kind)), expected)
    assert np.array_equal(model(whole.tolist()), expected)
    assert np.array_equal(model(np.asfortranarray(whole)), expected)
    assert model(np.zeros((0, 3, 6, 5))).shape == (0, 5)


@pytest.mark.parametrize(
    ("images", "sentence"),
    [
        (np.zeros((6, 5)), r"images must have the shape \(3, 6, 5\) or \(batch, 3, 6, 5\), got \(6, 5\)"),
        (np.zeros((2, 6, 5, 3)), r"got \(2, 6, 5, 3\)"),
        (np.zeros((1, 1, 3, 6, 5)), r"got \(1, 1, 3, 6, 5\)"),
        (7.0, r"got \(\)"),
        (np.zeros((3, 6, 5), dtype=np.complex64), "images must be numbers, got an array of complex64"),
        ("image.png", "images must be numbers"),
        (None, "images must be numbers"),
    ],
)
def test_wrong_images_are_one_sentence(model: CompiledModel, images: object, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        model(images)  # type: ignore[arg-type]


def test_memory_begins_at_a_cache_line(model: CompiledModel) -> None:
    for size in (1, 64, 100):
        memory = aligned(size)
        assert memory.size == size
        assert memory.ctypes.data % 64 == 0
    assert (model.addresses[2].value or 0) % 64 == 0


def test_threads_may_share_a_model(exported: tuple[Path, TestVectors], model: CompiledModel) -> None:
    images, logits = exported[1].images, exported[1].logits
    wrong: list[int] = []

    def ask(index: int) -> None:
        for _ in range(200):
            if np.abs(model(images[index]) - logits[index]).max() > 1e-4:
                wrong.append(index)

    threads = [threading.Thread(target=ask, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_what_is_no_model_is_refused(exported: tuple[Path, TestVectors], tmp_path: Path) -> None:
    for path, sentence in {
        tmp_path: "is neither a packed model nor a folder that holds c/model.c, model.c or model.safetensors",
        tmp_path / "nowhere": "nowhere: is neither a packed model",
    }.items():
        with pytest.raises(ExportError, match=sentence):
            sca_search.compile(path)
    (tmp_path / "a.safetensors").write_bytes(b"hello")
    with pytest.raises(ExportError, match=r"a\.safetensors is not a valid packed model"):
        sca_search.compile(tmp_path / "a.safetensors")
    (tmp_path / "model.c").write_text("")
    with pytest.raises(ExportError, match="cannot be read as a C model"):
        sca_search.compile(tmp_path)
    shutil.copytree(exported[0] / "c", tmp_path / "c")
    (tmp_path / "c" / "model.c").write_text("int nothing;\n")
    with pytest.raises(ExportError, match=r"cannot be loaded as a model|failed with code"):
        sca_search.compile(tmp_path / "c")


@pytest.mark.e2e
def test_packed_file_with_other_answers_is_refused(tmp_path: Path) -> None:
    graph = graph_of()
    vectors = vectors_of(graph)
    wrong = TestVectors(vectors.images, vectors.logits + np.float32(0.01))
    write_packed(tmp_path / "a.safetensors", graph, wrong)
    with pytest.raises(ExportError, match="the compiled model does not reproduce its test vectors"):
        sca_search.compile(tmp_path / "a.safetensors")


def test_compiling_needs_no_torch(exported: tuple[Path, TestVectors]) -> None:
    program = "import sys, sca_search; sca_search.compile(sys.argv[1]); print('torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program, exported[0]], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stdout == "False\n"


def test_threads_share_a_batch(exported: tuple[Path, TestVectors]) -> None:
    folder, vectors = exported
    model = compile_model(folder, threads=3)
    for count in (0, 1, 2, 4):
        assert model(vectors.images[:count]).shape == (count, 5)
    assert_answers(model(vectors.images), vectors.logits)
    assert_answers(model(vectors.images[1]), vectors.logits[1])


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads_are_refused(exported: tuple[Path, TestVectors], threads: int) -> None:
    with pytest.raises(ValueError, match=rf"threads must be at least 1, got {threads}"):
        compile_model(exported[0], threads=threads)


@pytest.mark.needs("gcc")
@pytest.mark.parametrize("flags", [["-fopenmp"], []])
def test_c_program_predicts_a_batch_with_threads(
    tmp_path: Path, exported: tuple[Path, TestVectors], flags: list[str]
) -> None:
    folder, vectors = exported
    command = ["gcc", "-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O2", "-DMODEL_THREADS=2", *flags]
    library = tmp_path / "model.so"
    subprocess.run([*command, "-shared", "-fPIC", "-o", library, folder / "c" / "model.c", "-lm"], check=True)
    model = compile_model(folder)
    tables, scratch = aligned(model.table_bytes), aligned(2 * model.scratch_bytes)
    logits = np.zeros_like(vectors.logits)
    threaded = ctypes.CDLL(str(library))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (tables, scratch, vectors.images, logits)]
    threaded.model_init(pointers[0])
    threaded.model_predict_batch(*pointers, ctypes.c_size_t(len(logits)))
    assert_answers(logits, vectors.logits)
