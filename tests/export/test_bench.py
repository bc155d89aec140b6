"""Timing in turns on a machine that is not always quiet, and sca-search bench."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError
from sca_search.export import onnx as onnx_export
from sca_search.export.c.amalgamate import kernel_file
from sca_search.export.folder import ExportOptions, export_network
from sca_search.export.graph.network import Network
from sca_search.export.graph.records import INPUT, Activation, Convolution, Graph, Linear, Reshape
from sca_search.export.graph.reference import evaluate
from sca_search.export.latency.bench import FLOAT, INT8, OURS, TORCH, Bench, Engine, EngineTiming, adds_of, bench_folder
from sca_search.export.latency.onnx_engines import float_engine, int8_engine
from sca_search.export.latency.timing import Timing, python_sampler, stopwatch, time_interleaved
from tests.support.command import Outcome
from tests.support.random_records import Builder, random_images

Run = Callable[..., Outcome]


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export folder of a small network."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    nn.init.constant_(model[2].weight, 1.0)
    network = Network(model, InputSpec((1, 8, 8), ("a", "b", "c")), ("2",))
    folder = tmp_path_factory.mktemp("bench") / "export"
    export_network(folder, network, ExportOptions(formats=("packed", "c")))
    return folder


def timing_of(seconds: list[float], quiet: list[bool] | None = None) -> Timing:
    return Timing(np.array(seconds), np.array([True] * len(seconds) if quiet is None else quiet))


def test_timing_counts_only_quiet_samples() -> None:
    seconds = [100.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0]
    timing = timing_of(seconds, [False, *[True] * 11])
    # of 1 to 11 the quartiles are 3.5 and 8.5, the tenth percentile is 2
    assert (timing.median, timing.spread, timing.low) == (6.0, 5.0, 2.0)
    assert timing.noisy_fraction == pytest.approx(1 / 12)
    assert timing.has_quiet


def test_timing_without_a_quiet_phase_counts_all_and_says_so() -> None:
    timing = timing_of([1.0, 2.0, 3.0, 4.0, 5.0], [True, True, True, True, False])
    assert not timing.has_quiet
    assert timing.median == 3.0


def test_programs_take_turns_and_have_equal_numbers_of_samples() -> None:
    order: list[str] = []

    def sampler(name: str) -> Callable[[int], float]:
        def sample(count: int) -> float:
            order.append(name)
            return count * {"a": 0.002, "b": 0.001}[name]

        return sample

    timings = time_interleaved({"a": sampler("a"), "b": sampler("b")}, seconds=0, least_rounds=3)
    # 4 calls each to see how long they take; then each is called to warm up and sampled, and who begins changes
    assert "".join(order) == "aaaabbbbaabbbbaaaabb"
    assert timings.each["a"].seconds.tolist() == pytest.approx([0.002] * 3)
    assert timings.each["b"].seconds.tolist() == pytest.approx([0.001] * 3)
    assert timings.clock_hz > 1e8


def test_interrupted_samples_are_noisy() -> None:
    timings = time_interleaved({"sleeper": python_sampler(lambda: time.sleep(0.002))}, seconds=0, least_rounds=4)
    assert timings.each["sleeper"].noisy_fraction == 1


def test_slow_calibration_makes_a_sample_noisy(monkeypatch: pytest.MonkeyPatch) -> None:
    # before and after each of four samples: the second sample's loop after it, and the fourth's before, are slow
    loops = iter([(10, 20), (10, 20), (10, 20), (10, 23), (10.9, 21.9), (10, 20), (11.1, 20), (10, 20)])
    monkeypatch.setattr(stopwatch(), "loops", lambda: next(loops))
    timings = time_interleaved({"one": python_sampler(lambda: sum(range(100_000)))}, seconds=0, least_rounds=4)
    quiet = timings.each["one"].quiet.tolist()
    assert quiet[1] is quiet[3] is False
    assert timings.clock_hz == 4_000 * 16 / 10


def test_ratio_and_adds_per_cycle_follow_from_medians() -> None:
    def measured(name: str, seconds: float) -> EngineTiming:
        return EngineTiming(Engine(name, lambda _: 0.0, 5), timing_of([seconds] * 9))

    ours, rival = measured(OURS, 2e-6), measured(FLOAT, 9e-6)
    bench = Bench((ours, rival), clock_hz=1e9, adds=5_000, left_out=(), built_by="")
    assert bench.ratio(ours) == pytest.approx(4.5)
    assert bench.adds_per_cycle(ours) == pytest.approx(2.5)  # 5,000 in 2,000 cycles
    alone = Bench((ours,), clock_hz=1e9, adds=None, left_out=(), built_by="")
    assert alone.ratio(ours) is alone.adds_per_cycle(ours) is None


def test_adds_are_weights_times_cells() -> None:
    ones = np.ones(2, np.float32)
    trits = np.zeros((2, 1, 3, 3), np.int8)
    trits[0, 0, 0] = [1, -1, 1]
    records = (
        Convolution("a", (INPUT,), (2, 4, 5), trits, ones, ones),  # 3 weights, 20 cells
        Reshape("b", ("a",), (40,)),
        Linear("c", ("b",), (2,), np.full((2, 40), 0.5, np.float32), ones, ones),  # 80 weights
    )
    graph = Graph((1, 6, 7), ones[:1], ones[:1], records, "c", ("x", "y"))
    assert adds_of(graph) == 3 * 20 + 80


def test_onnxruntime_answers_as_the_model_does() -> None:
    builder = Builder((3, 8, 8), np.random.default_rng(1))
    hidden = builder.add(Activation("relu", (builder.convolution(INPUT, 8, (3, 3), "trits"),), (), "relu"))
    graph = builder.graph([builder.linear(hidden, 4, "trits"), builder.linear(hidden, 2, "floats")])
    images = random_images(graph, 4)
    expected = evaluate(graph, images)
    exact = float_engine(graph, images[0]).run()
    assert np.abs(exact - expected[0]).max() <= 1e-5 * np.abs(expected).max()
    rounded = int8_engine(graph, images[0], images)
    apart = np.abs(rounded.run() - expected[0]).max() / np.abs(expected).max()
    assert 1e-5 < apart < 0.1  # seven bits per weight, eight an activation
    assert rounded.file_bytes > 0


def engines_of(printed: Mapping[str, object]) -> list[str]:
    engines = printed["engines"]
    assert isinstance(engines, list)
    return [engine["name"] for engine in engines]


@pytest.mark.e2e
def test_bench_prints_a_table_and_writes_json(exported: Path, run: Run) -> None:
    done = run("bench", str(exported), "--seconds", "0.3", "--save", "figures.json")
    assert done.returncode == 0, done.stderr
    for words in (OURS, FLOAT, INT8, TORCH, "times fp32", "noisy", "scratch", "C built by"):
        assert words in done.stdout
    figures = json.loads(Path("figures.json").read_text())
    assert engines_of(figures) == [OURS, FLOAT, INT8, TORCH]
    assert figures["adds"] == 36 * 36 + 144 * 16 + 192
    ours, rival = figures["engines"][:2]
    assert rival["ratio"] == 1
    assert ours["ratio"] == pytest.approx(rival["median_us"] / ours["median_us"])
    assert ours["samples"] == rival["samples"] >= 7
    assert ours["scratch_bytes"] > 0
    assert figures["engines"][3]["disk_bytes"] == (exported / "model.safetensors").stat().st_size


@pytest.mark.e2e
def test_missing_onnxruntime_is_said_and_left_out(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_export, "find_spec", lambda _name: None)
    bench = bench_folder(exported, seconds=0.1)
    assert engines_of(bench.as_json()) == [OURS, TORCH]
    assert "pip install 'sca-search[onnx]' brings it" in bench.left_out[0]


def test_folder_without_the_packed_model_has_only_the_c_timed(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    (folder / "model.safetensors").unlink()
    bench = bench_folder(folder, seconds=0.1)
    assert engines_of(bench.as_json()) == [OURS]
    assert "contains no model.safetensors, so that" in bench.left_out[0]


def test_bad_requests_are_one_sentence(exported: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(exported, "no-c")
    shutil.rmtree("no-c/c")
    Path("empty").mkdir()
    for arguments, sentence in {
        ("nowhere",): "nowhere: there is no such folder",
        ("empty",): "empty: is not an export folder, it has no export.json",
        ("no-c",): "no-c: contains no c/model.c; sca-search export --format packed,c writes it",
        (str(exported), "--seconds", "0"): "--seconds must be above 0, got 0",
        (str(exported), "--seconds", "nan"): "--seconds must be above 0, got nan",
        (str(exported), "--seconds", "0.1", "--save", "gone/a.json"): "gone/a.json cannot be written",
    }.items():
        done = run("bench", *arguments)
        assert done.returncode == 2, arguments
        assert sentence in done.stderr
    monkeypatch.setenv("CC", "no-such-compiler")
    done = run("bench", str(exported))
    assert done.returncode == 2
    assert "no C compiler was found" in done.stderr


@pytest.mark.e2e
def test_model_that_answers_wrongly_is_not_timed(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    source = (folder / "c" / "model.c").read_text()
    # the model's own function, behind one that returns another answer
    source = source.replace("void model_predict_with(", "static void right_answer(", 1)
    signature = (folder / "c" / "model.h").read_text().partition("void model_predict_with(")[2].partition(";")[0]
    names = [part.split()[-1].strip("*()") for part in signature.split(",")]
    call = f"right_answer({', '.join(names)}); out[0] += 1.0f;"
    source = source.replace(
        "#ifndef MODEL_NO_SCRATCH", f"void model_predict_with({signature}\n{{ {call} }}\n#ifndef MODEL_NO_SCRATCH", 1
    )
    (folder / "c" / "model.c").write_text(source)
    with pytest.raises(ExportError, match="does not reproduce its test vectors"):
        bench_folder(folder, seconds=0.1)


@pytest.mark.parametrize("compiler", [pytest.param(name, marks=pytest.mark.needs(name)) for name in ("gcc", "clang")])
def test_timing_code_is_clean(compiler: str, exported: Path, tmp_path: Path) -> None:
    flags = ["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O3", f"-I{exported / 'c'}"]
    for name in ("stopwatch.c", "library.c"):
        (tmp_path / name).write_text(kernel_file(name))
        subprocess.run([compiler, *flags, "-c", "-o", tmp_path / "a.o", tmp_path / name], check=True)


def test_packed_model_of_another_network_is_refused(exported: Path, tmp_path: Path) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(exported, folder)
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    other = Network(model, InputSpec((1, 2, 2), ("a", "b", "c")))
    export_network(tmp_path / "other", other, ExportOptions(formats=("packed",)))
    shutil.copy(tmp_path / "other" / "model.safetensors", folder)
    with pytest.raises(ExportError, match="its test vectors belong to another model"):
        bench_folder(folder, seconds=0.1)


def test_table_says_where_no_phase_was_quiet(exported: Path) -> None:
    from sca_search.cli.export import bench_lines  # noqa: PLC0415

    bench = bench_folder(exported, seconds=0.1)
    loud = [replace(each, timing=timing_of([1.0] * 9, [False] * 9)) for each in bench.measured]
    lines = bench_lines(replace(bench, measured=tuple(loud)))
    assert any(line.startswith("No quiet phase for C, onnxruntime fp32") for line in lines)
