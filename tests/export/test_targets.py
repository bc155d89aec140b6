"""The C export on other machines: compiled by a cross compiler, run under emulators, measured on a small device."""

import re
import shutil
import struct
import subprocess
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sca_search.cli.export import check_command
from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError
from sca_search.export.c import compiler as c_build
from sca_search.export.c import cross as targets
from sca_search.export.c.compiler import zig_compiler
from sca_search.export.c.cross import (
    TARGETS,
    SectionBytes,
    bare_metal_bytes,
    check_target,
    parse_targets,
    section_bytes,
)
from sca_search.export.c.source import write_c
from sca_search.export.folder import ExportOptions, export_network
from sca_search.export.graph.network import Network
from sca_search.export.graph.records import INPUT, Activation, TestVectors
from sca_search.export.graph.reference import evaluate
from tests.support.command import Outcome
from tests.support.random_records import Builder, random_images

Run = Callable[..., Outcome]
needs_zig = pytest.mark.skipif(zig_compiler() is None, reason="ziglang is not installed")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export folder of a small network."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    nn.init.constant_(model[2].weight, 1.0)
    network = Network(model, InputSpec((1, 8, 8), ("a", "b", "c")), ("2",))
    folder = tmp_path_factory.mktemp("targets") / "export"
    export_network(folder, network, ExportOptions(formats=("packed", "c")))
    return folder


def source_of(folder: Path, wrong: float = 0.0) -> Path:
    """A C model with convolutions of several kinds and linear layers; its test vectors may be off by something."""
    builder = Builder((6, 11, 13), np.random.default_rng(2))
    first = builder.convolution(INPUT, 16, (3, 3), "trits", padding=(1, 1, 1, 1))
    second = builder.add(Activation("relu", (first,), (), "relu"))
    names = [
        builder.convolution(second, 5, (3, 3), "trits", stride=(2, 2)),
        builder.convolution(second, 16, (3, 3), "trits", groups=16),
        builder.convolution(second, 7, (1, 1), "trits"),
        builder.convolution(second, 3, (5, 5), "floats"),
        builder.linear(second, 9, "trits"),
        builder.linear(second, 4, "floats"),
    ]
    graph = builder.graph(names)
    images = random_images(graph, 2)
    folder.mkdir(exist_ok=True)
    write_c(folder, graph, TestVectors(images, evaluate(graph, images) + np.float32(wrong)))
    return folder


def section(bits: int, kind: int, flags: int, size: int) -> bytes:
    if bits == 32:
        return struct.pack("<10I", 0, kind, flags, 0, 0, size, 0, 0, 0, 0)
    return struct.pack("<IIQQQQIIQQ", 0, kind, flags, 0, 0, size, 0, 0, 0, 0)


def object_file(bits: int) -> bytes:
    """Sections of each kind behind the file's own header, as the ELF standard has it."""
    write, allocate, execute, no_bits = 1, 2, 4, 8
    sections = [
        section(bits, 0, 0, 0),
        section(bits, 1, allocate | execute, 100),
        section(bits, 1, allocate | execute, 20),  # a function's own section
        section(bits, 1, allocate, 3_000),
        section(bits, 1, allocate | write, 40),
        section(bits, no_bits, allocate | write, 50_000),
        section(bits, 1, 0, 7_777),  # is not loaded: debugging, names
    ]
    identity = b"\x7fELF" + bytes([bits // 32, 1, 1]) + bytes(9)
    word, size = ("I", 52) if bits == 32 else ("Q", 64)
    header = identity + struct.pack(
        f"<HHI3{word}I6H", 1, 40, 1, 0, 0, size, 0, size, 0, 0, len(sections[0]), len(sections), 0
    )
    assert len(header) == size
    return header + b"".join(sections)


@pytest.mark.parametrize("bits", [32, 64])
def test_sections_are_counted_by_what_they_are_for(bits: int) -> None:
    found = section_bytes(object_file(bits))
    assert found == SectionBytes(code=120, constants=3_000, data=40, zeroed=50_000)
    assert (found.flash, found.ram) == (3_160, 50_040)


@pytest.mark.needs("gcc")
def test_sections_of_a_real_object_are_as_its_variables_say(tmp_path: Path) -> None:
    source = "const int c[100] = {1}; int z[50]; int d[3] = {1, 2, 3}; int f(int i) { return c[i] + z[i] + d[i]; }\n"
    (tmp_path / "a.c").write_text(source)
    command = ["gcc", "-O1", "-fno-asynchronous-unwind-tables", "-c", "-o", tmp_path / "a.o", tmp_path / "a.c"]
    subprocess.run(command, check=True)
    found = section_bytes((tmp_path / "a.o").read_bytes())
    assert found.code > 0
    assert 400 <= found.constants < 500  # compilers add a note
    assert (found.data, found.zeroed) == (12, 200)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "must be a little-endian ELF file"),
        (b"MZ" + bytes(100), "must be a little-endian ELF file"),
        (b"\x7fELF\x01\x02" + bytes(100), "must be a little-endian ELF file"),
        (object_file(32)[:200], "ends before its section headers do"),
        (object_file(64)[:300], "ends before its section headers do"),
    ],
)
def test_what_is_no_object_file_is_refused(content: bytes, sentence: str) -> None:
    with pytest.raises(ExportError, match=sentence):
        section_bytes(content)


def test_targets_are_named_by_the_user() -> None:
    assert parse_targets("wasm32-wasi, aarch64-linux") == ("aarch64-linux", "wasm32-wasi")
    with pytest.raises(ExportError, match=r"unknown target 'aarch64': known are .*; did you mean 'aarch64-linux'"):
        parse_targets("aarch64")
    with pytest.raises(ExportError, match="--target must name at least one of aarch64-linux, armv7-linux"):
        parse_targets(" ,")


def test_all_targets_are_the_default() -> None:
    (default,) = [
        parameter.default for parameter in signature(check_command).parameters.values() if parameter.name == "target"
    ]
    assert parse_targets(default) == tuple(TARGETS)


def test_bad_requests_are_one_sentence(exported: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(exported, "no-c")
    shutil.rmtree("no-c/c")
    Path("empty").mkdir()
    for arguments, sentence in {
        ("nowhere",): "nowhere: there is no such folder",
        ("empty",): "empty: is not an export folder, it has no export.json",
        ("no-c",): "no-c: holds no c/model.c",
        (str(exported), "--target", "mips"): "unknown target 'mips': known are aarch64-linux, armv7-linux",
    }.items():
        done = run("check", *arguments)
        assert done.returncode == 2, arguments
        assert sentence in done.stderr
    monkeypatch.setattr(c_build.importlib.util, "find_spec", lambda _name: None)
    done = run("check", str(exported))
    assert done.returncode == 2
    assert "ziglang is not installed, which compiles for other machines; pip install 'sca-search[cross]'" in done.stderr


@needs_zig
def test_size_on_a_small_device_is_that_of_weights_and_memory(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    header = (source / "model.h").read_text()
    numbers = {name: int(value) for name, value in re.findall(r"#define MODEL_(\w+) (\d+)", header)}
    memory = 4 * numbers["SCRATCH"] + numbers.get("TABLES", 0)
    found = bare_metal_bytes(source)
    assert memory <= found.ram <= memory + 256
    dense = 4 * (3 * 16 * 25 + 4 * 16 * 11 * 13)  # the two layers of floats
    trits = (16 * 6 * 9 + 5 * 16 * 9 + 16 * 9 + 7 * 16 + 9 * 16 * 11 * 13) / 4
    assert found.constants >= dense + trits
    assert 0 < found.code < 100_000


@needs_zig
def test_source_that_does_not_compile_fails_with_the_compilers_words(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    (source / "model.c").write_text("nonsense\n")
    (check,) = check_target(source, "aarch64-linux")
    assert check.outcome == "failed"
    assert check.said.startswith("zig failed with code 1")
    with pytest.raises(ExportError, match="zig failed"):
        bare_metal_bytes(source)


@needs_zig
@pytest.mark.timeout(900)  # the compiler builds a C library for each target first
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.e2e if "aarch64" in name else pytest.mark.nightly) for name in TARGETS],
)
def test_self_test_runs_on_every_target(name: str, tmp_path: Path) -> None:
    checks = check_target(source_of(tmp_path), name)
    assert [check.instructions for check in checks] == [build.instructions for build in TARGETS[name].builds]
    for check in checks:
        if check.outcome == "compiled":
            pytest.skip(check.said)
        assert (check.outcome, check.said) == ("ran", "2 of 2 test vectors agree")


@pytest.mark.nightly
@needs_zig
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["wasm32-wasi", "aarch64-linux"])
def test_self_test_fails_on_other_answers(name: str, tmp_path: Path) -> None:
    check = check_target(source_of(tmp_path, wrong=0.1), name)[0]
    if check.outcome == "compiled":
        pytest.skip(check.said)
    assert check.outcome == "failed"
    assert "0 of 2 test vectors agree" in check.said


@pytest.mark.nightly
@needs_zig
@pytest.mark.timeout(900)
def test_check_says_what_was_only_compiled(exported: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets.shutil, "which", lambda _name: None)
    monkeypatch.setattr(targets.platform, "machine", lambda: "another")
    done = run("check", str(exported), "--target", "aarch64-linux,wasm32-wasi")
    assert done.returncode == 0, done.stderr
    assert "qemu-aarch64 is not installed" in done.stdout
    assert "only compiled" in done.stdout
    assert "vectors agree" in done.stdout  # of WebAssembly
    assert "On a Cortex-M4" in done.stdout
