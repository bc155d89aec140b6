"""Calibration for real: a small network's C at two sparsities, compiled, timed, kept, and emitted for another device.

What is asserted is what a calibration says, never how long anything took.
"""

import json
import math
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sca_search.data import load_data
from sca_search.errors import ExportError, SpecError
from sca_search.export.c import compiler as c_build
from sca_search.export.c.amalgamate import kernel_file
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.compiler import require_compiler, run_program, zig_compiler
from sca_search.export.c.layers import chosen_kernels
from sca_search.export.c.source import stamped_steps, write_c
from sca_search.export.graph.records import INPUT, Activation, Graph, TestVectors
from sca_search.export.latency import calibrate
from sca_search.export.latency.calibrate import (
    CalibrationOptions,
    cached_file,
    calibration_graph,
    calibration_of,
    emit_calibration,
    graph_of,
    measure_ms,
    steadiest,
)
from sca_search.export.latency.model import Calibration, latency_model
from sca_search.export.latency.program import (
    SPARSITIES,
    calibration_sources,
    kernels_hash,
    network_hash,
    nonzeros_at,
    with_random_trits,
)
from sca_search.export.latency.table import read_calibration
from sca_search.export.latency.timing import Timing
from sca_search.models.layers import choose_layers, weight_layers
from sca_search.training.task import Task
from tests.support.command import Outcome
from tests.support.random_records import Builder, random_images

Run = Callable[..., Outcome]
QUICK = CalibrationOptions(seconds=0.05, sparsities=(0.0, 0.9))
needs_zig = pytest.mark.skipif(zig_compiler() is None, reason="ziglang is not installed")
needs_qemu = pytest.mark.skipif(shutil.which("qemu-aarch64") is None, reason="qemu-aarch64 is not installed")


def small_graph() -> Graph:
    builder = Builder((3, 9, 8), np.random.default_rng(4))
    first = builder.convolution(INPUT, 6, (3, 3), "trits", padding=(1, 1, 1, 1))
    second = builder.add(Activation("relu", (first,), (), "relu"))
    third = builder.convolution(second, 5, (3, 3), "trits", stride=(2, 2))
    return builder.graph([builder.linear(third, 7, "trits"), builder.linear(INPUT, 2, "floats")])


def task_of(model: Callable[[], nn.Module]) -> Task:
    data = load_data("digits", seed=0)
    return Task(data, model, tuple(choose_layers(weight_layers(model(), data.input_shape))))


def small_network() -> nn.Module:
    layers = (nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU())
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(96, 10))


@pytest.fixture(scope="module")
def calibrated() -> tuple[Calibration, list[str]]:
    """A calibration that was measured, and what was said meanwhile."""
    said: list[str] = []
    return calibration_of(small_graph(), said.append, replace(QUICK, fresh=True)), said


def test_calibration_tells_of_every_variant_and_step(calibrated: tuple[Calibration, list[str]]) -> None:
    graph, (table, _) = small_graph(), calibrated
    assert (table.format, table.version, table.threads, table.batch) == ("sca-search/latency", 1, 1, 1)
    assert (table.network, table.kernels) == (network_hash(graph), kernels_hash())
    assert [variant.sparsity for variant in table.variants] == [0.0, 0.9]
    for seed, variant in enumerate(table.variants):
        asked = nonzeros_at(graph, variant.sparsity)
        kernels = chosen_kernels(with_random_trits(graph, asked, seed))
        assert {step.step: step.nonzeros for step in variant.steps if step.weights} == asked
        assert {step.step: step.kernel for step in variant.steps if step.weights} == kernels
        assert tuple(step.step for step in variant.steps) == stamped_steps(graph)
        assert 0 < variant.low_us < 1e6
        assert sum(step.low_us for step in variant.steps) > 0
    # two kinds of each variant, in at least the fewest rounds
    assert table.samples >= 4 * 12
    assert table.samples % 4 == 0


def test_progress_is_said(calibrated: tuple[Calibration, list[str]]) -> None:
    said = calibrated[1]
    assert said[0] == "writing the network's C source at several sparsities"
    assert "compiling 4 files" in said
    assert said[-1] == "timing the network at several sparsities, for at most 0.05 s"


def test_what_was_measured_is_kept_for_this_network_alone(calibrated: tuple[Calibration, list[str]]) -> None:
    graph, said = small_graph(), []
    assert calibration_of(graph, said.append, QUICK) == calibrated[0]
    assert said == []  # nothing was compiled or timed
    other_weights = with_random_trits(graph, nonzeros_at(graph, 0.3))
    assert calibration_of(other_weights, said.append, QUICK) == calibrated[0]
    assert said == []
    kept = cached_file(graph, require_compiler(), QUICK)
    assert read_calibration(kept, graph) == calibrated[0]
    assert latency_model(calibrated[0]) == latency_model(read_calibration(kept, graph))


def test_other_machines_and_compilers_have_files_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, compiler = small_graph(), require_compiler()
    files = {
        cached_file(graph, compiler, QUICK),
        cached_file(graph, compiler, CalibrationOptions()),
        cached_file(graph, replace(compiler, command=(*compiler.command, "-m64")), QUICK),
        cached_file(replace(graph, records=graph.records[1:]), compiler, QUICK),
    }
    monkeypatch.setattr(calibrate, "instruction_set", lambda: "another")
    files.add(cached_file(graph, compiler, QUICK))
    monkeypatch.setattr(calibrate, "kernels_hash", lambda: "others")
    files.add(cached_file(graph, compiler, QUICK))
    assert len(files) == 6


@pytest.mark.e2e
def test_damaged_file_in_the_cache_is_measured_again(calibrated: tuple[Calibration, list[str]]) -> None:
    graph, said = small_graph(), []
    kept = cached_file(graph, require_compiler(), QUICK)
    whole = kept.read_text()
    try:
        kept.write_text(whole[:100])
        again = calibration_of(graph, said.append, QUICK)
    finally:
        kept.write_text(whole)
    assert "cannot be read as a latency table" in said[0]
    assert said[0].endswith("; measuring again")
    assert again.network == calibrated[0].network


@pytest.mark.needs("gcc")
def test_hooks_are_at_every_step_and_cost_nothing_unless_asked_for(tmp_path: Path) -> None:
    graph = small_graph()
    images = random_images(graph, 1)
    write_c(tmp_path, graph, TestVectors(images, np.zeros((1, len(graph.class_names)), np.float32)))
    source = (tmp_path / "model.c").read_text()
    without = "\n".join(line for line in source.splitlines() if "MODEL_STEP_DONE(" not in line or "#" in line)
    assert without.count("MODEL_STEP_DONE(") == 1  # its definition
    (tmp_path / "without.c").write_text(without)
    for name in ("model", "without"):
        command = ["gcc", "-O2", "-std=c99", "-S", "-o", tmp_path / f"{name}.s", tmp_path / f"{name}.c"]
        subprocess.run(command, check=True)
    codes = [
        [line for line in (tmp_path / f"{name}.s").read_text().splitlines() if ".file" not in line]
        for name in ("model", "without")
    ]
    assert codes[0] == codes[1]


def test_steps_are_stamped_in_order(tmp_path: Path) -> None:
    graph = small_graph()
    variant = calibration_sources(graph, (0.5,))["variant_0.c"]
    stamped = [line.strip() for line in variant.splitlines() if line.strip().startswith("MODEL_STEP_DONE(")]
    places = [int(line.removeprefix("MODEL_STEP_DONE(").removesuffix(");")) for line in stamped]
    assert places == sorted(set(places))
    assert (places[0], places[-1]) == (0, len(stamped_steps(graph)) - 1)


def test_chosen_kernels_are_those_that_were_named() -> None:
    builder = Builder((3, 9, 8), np.random.default_rng(4))
    first = builder.convolution(INPUT, 6, (3, 3), "trits", padding=(1, 1, 1, 1))
    second = builder.convolution(first, 5, (3, 3), "trits", padding=(1, 1, 1, 1))
    graph = builder.graph([builder.linear(second, 7, "trits"), builder.linear(second, 2, "floats")])
    names = [layer.name for layer in graph.ternary_layers]
    for kinds in (("lists", "lists", "codes"), ("combined", "lists", "lists"), ("in-place", "combined", "codes")):
        named = dict(zip(names, kinds, strict=True))
        assert chosen_kernels(graph, COptions(kernels=named)) == named


@pytest.mark.e2e
def test_program_compiles_without_warnings_and_refuses_nonsense(tmp_path: Path) -> None:
    for name, text in calibration_sources(small_graph(), (0.0, 0.9)).items():
        (tmp_path / name).write_text(text)
    warnings = "WARNINGS=-std=c99 -Wall -Wextra -Wpedantic -Werror"
    subprocess.run(["make", "-j2", "CFLAGS=-O1", warnings], cwd=tmp_path, check=True, capture_output=True)
    for given in ("0", "-1", "nan", "much"):
        done = subprocess.run([tmp_path / "calibrate", given], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"the time must be a number of seconds above 0, got {given}" in done.stderr
    done = subprocess.run([tmp_path / "calibrate", "0.01"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["compiler"].startswith("gcc ")


@pytest.mark.needs("gcc")
def test_percentiles_and_noise_are_those_of_the_samples(tmp_path: Path) -> None:
    """The program's own functions on samples that are written down here."""
    main = """
    int main(void)
    {
        size_t round;
        fastest[0] = fastest[1] = 1.0;
        rounds = 12;
        for (round = 0; round < rounds; round++) {
            struct sample *const sample = &samples[round][0];
            sample->seconds[WHOLE] = (double)(round + 1);
            sample->loops[PLAIN][0] = round == 0 ? 1.2 : 1.05; /* the first is noisy */
            sample->loops[PLAIN][1] = 1.0;
            sample->interrupted[PLAIN] = round == 11;
            sample->interrupted[TIMED] = 1;
            sample->seconds[0] = (double)(round + 1);
        }
        printf("%g %g %g %lu", low(0, WHOLE, 0, rounds), low(0, 0, 0, rounds), spread(0, WHOLE),
               (unsigned long)noisy_samples());
        return 0;
    }
    """
    sources = calibration_sources(small_graph(), (0.5,))
    before_main = sources["calibrate.c"].split("int main(")[0]
    (tmp_path / "test.c").write_text(before_main + main)
    for name in ("calibrate.h", "variants.h", "stopwatch.c", "variant_0.c"):
        (tmp_path / name).write_text(sources[name])
    files = ["test.c", "stopwatch.c", "variant_0.c"]
    subprocess.run(["gcc", "-std=c99", "-o", "test", *files, "-lm"], cwd=tmp_path, check=True)
    whole, step, spread, noisy = map(float, run_program([str(tmp_path / "test")]).split())
    assert whole == pytest.approx(np.percentile(np.arange(2, 12), 10))  # 2 to 11 are quiet
    assert step == pytest.approx(np.percentile(np.arange(1, 13), 10))  # none is, so that all count
    earlier, later = np.percentile(np.arange(2, 7), 10), np.percentile(np.arange(7, 12), 10)
    assert spread == pytest.approx((later - earlier) / whole, rel=1e-4)
    assert noisy == 2 + 12


def test_graph_of_an_untrained_network_is_half_zeros() -> None:
    task = task_of(small_network)
    graph = calibration_graph(task)
    (layer,) = graph.ternary_layers
    assert (layer.name, *task.ternary_layers) == ("3", "3")
    assert layer.weight.shape == (6, 4, 3, 3)
    assert layer.zeros == 108
    assert graph.input_shape == (1, 8, 8)
    assert len(graph.class_names) == 10
    trained = small_network()
    nn.init.constant_(trained[3].weight, -1.0)
    assert network_hash(graph_of(task, trained)) == network_hash(graph)


def test_network_that_cannot_be_exported_is_one_sentence() -> None:
    class Sorting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside = small_network()

        def forward(self, images: object) -> object:
            return self.inside(images).sort(dim=1).values

    with pytest.raises(ExportError, match="sort"):
        calibration_graph(task_of(Sorting))


def test_network_without_a_ternary_layer_is_one_sentence() -> None:
    builder = Builder((3, 4, 4), np.random.default_rng(0))
    graph = builder.graph([builder.linear(INPUT, 2, "floats"), builder.linear(INPUT, 3, "floats")])
    with pytest.raises(ExportError, match="must have a ternary layer to be calibrated, it has none"):
        calibration_of(graph)


@pytest.mark.e2e
def test_candidate_is_measured_as_it_would_be_exported() -> None:
    measured = measure_ms(small_graph(), seconds=0.05)
    assert 0 < measured.latency_ms < 1e3
    assert 0 <= measured.spread < math.inf
    assert 0 <= measured.noisy_fraction <= 1


def timing_of(spread: float, quiet: bool = True) -> Timing:
    """Nine samples from 1 on, evenly apart: quartiles are `spread` apart, the tenth percentile is 1 + 0.2 spread."""
    return Timing(1 + spread * np.arange(9) / 4, np.full(9, quiet))


def test_unsteady_timings_are_taken_again() -> None:
    steady, loud, worse = timing_of(0.05), timing_of(0.05, quiet=False), timing_of(0.5)
    for given, expected, left in (
        ([steady, worse], steady, 1),
        ([worse, loud, steady, worse], steady, 1),
        ([worse, timing_of(0.4), timing_of(0.3), worse, steady], 2, 1),
    ):
        waiting = list(given)
        found = steadiest(lambda waiting=waiting: waiting.pop(0))
        assert found is (given[expected] if isinstance(expected, int) else expected)
        assert len(waiting) == left


def test_calibrating_without_a_compiler_is_one_sentence(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    done = run("calibrate")
    assert done.returncode == 2
    assert "no C compiler was found" in done.stderr
    assert "sca-search[cross] brings one" in done.stderr
    with pytest.raises(ExportError, match="no C compiler was found"):
        measure_ms(small_graph())


def test_bad_requests_are_one_sentence_before_anything_is_read(run: Run) -> None:
    Path("full").mkdir()
    Path("full/file").touch()
    for arguments, sentence in {
        ("--emit", "out"): "--emit DIR and --target NAME must be given together",
        ("--target", "aarch64-linux"): "--emit DIR and --target NAME must be given together",
        ("--emit", "out", "--target", "vax"): "unknown target 'vax': known are aarch64-linux, armv7-linux",
        ("--emit", "full", "--target", "aarch64-linux"): "full must be a new or an empty folder, it holds files",
        ("--emit", "full/file", "--target", "aarch64-linux"): "must be a new or an empty folder, it is a file",
        ("--seconds", "0"): "--seconds must be above 0 and below 300, got 0",
        ("--seconds", "nan"): "--seconds must be above 0 and below 300, got nan",
        ("nowhere.toml",): "nowhere.toml: there is no such study file",
        ("--model", "resnet21"): "unknown model 'resnet21'",
        ("--data", "nowhere"): "nowhere",
    }.items():
        done = run("calibrate", *arguments)
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert sentence in done.stderr
    assert sorted(path.name for path in Path().rglob("*")) == ["file", "full"]


def test_emitted_sources_are_there_without_a_cross_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_build.importlib.util, "find_spec", lambda _name: None)
    emitted = emit_calibration(tmp_path / "out", small_graph(), "aarch64-linux", how=QUICK)
    assert emitted.programs == ()
    assert emitted.left_out.startswith("ziglang is not installed: run make on the device")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    own = {"calibrate.c", "calibrate.h", "stopwatch.c", "variants.h", "Makefile"}
    assert names == own | {"variant_0.c", "variant_1.c"}
    assert (tmp_path / "out" / "calibrate.c").read_text() == kernel_file("calibrate.c")
    with pytest.raises(SpecError, match="must be a new or an empty folder"):
        emit_calibration(tmp_path / "out", small_graph(), "aarch64-linux", how=QUICK)


@needs_zig
@needs_qemu
@pytest.mark.e2e
@pytest.mark.timeout(900)  # the compiler builds a C library for the target first
def test_emitted_program_prints_a_table_on_another_device(tmp_path: Path) -> None:
    graph = small_graph()
    emitted = emit_calibration(tmp_path / "out", graph, "aarch64-linux", how=QUICK)
    assert (emitted.programs, emitted.left_out) == (("calibrate-aarch64-linux-neon",), "")
    assert not list((tmp_path / "out").glob("*.o"))
    said = run_program(["qemu-aarch64", str(tmp_path / "out" / emitted.programs[0]), "0.05"])
    (tmp_path / "latency.json").write_bytes(said)
    model = latency_model(read_calibration(tmp_path / "latency.json", graph))
    assert list(model.layers) == [layer.name for layer in graph.ternary_layers]
    assert "clang" in model.about["compiler"].lower()
    fastest, slowest = model.range_us(dict.fromkeys(model.layers, 1))
    assert 0 < fastest <= slowest


@pytest.mark.e2e
def test_command_prints_the_table_and_keeps_it(run: Run) -> None:
    done = run("calibrate", "--seconds", "0.1", "--save", "latency.json")
    assert done.returncode == 0, done.stderr
    for text in ("conv2", "fc1", "rest", "Whole network:", "Spread:", "samples were noisy", "C built by gcc"):
        assert text in done.stdout
    table = json.loads(Path("latency.json").read_text())
    assert [variant["sparsity"] for variant in table["variants"]] == list(SPARSITIES)
    again = run("calibrate")
    assert again.returncode == 0
    assert "compiling" not in again.stdout
    assert "Whole network:" in again.stdout
