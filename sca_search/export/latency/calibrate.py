"""Measures the latency of networks: a latency model, cached or measured now; one candidate as it would be exported; or
a program that measures on another device."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from sca_search.errors import SpecError, StorageError
from sca_search.export.c.compiler import (
    PORTABLE,
    Compiler,
    digest,
    make_private,
    require_compiler,
    run_program,
    zig_compiler,
)
from sca_search.export.c.cross import TARGETS, require_target
from sca_search.export.c.library import compile_source
from sca_search.export.c.source import write_c
from sca_search.export.graph.network import Network
from sca_search.export.graph.records import Graph, TestVectors
from sca_search.export.latency.model import Calibration
from sca_search.export.latency.program import (
    SPARSITIES,
    build_calibration,
    calibration_sources,
    kernels_hash,
    network_hash,
    nonzeros_at,
    with_random_trits,
)
from sca_search.export.latency.table import parse_calibration, read_calibration, write_calibration
from sca_search.export.latency.timing import Sampler, Timing, stopwatch, time_interleaved
from sca_search.models.scales import baked_layers
from sca_search.system.files import is_leftover, new_folder, write_text_atomic
from sca_search.system.machine import cache_folder, instruction_set
from sca_search.training.task import Task

Say = Callable[[str], None]

_MEASURE_SECONDS = 1.0
_ATTEMPTS = 4
_STEADY = 0.1  # interquartile range relative to the low percentile; a quiet machine has a fifth of it
_MOST_SECONDS = 300


@dataclass(frozen=True)
class CalibrationOptions:
    """How a network is calibrated. Compiling takes longer than the timing, which ends early if it is precise enough."""

    seconds: float = 15.0  # of timing, at most
    fresh: bool = False  # ignore the cache
    sparsities: tuple[float, ...] = SPARSITIES


@dataclass(frozen=True)
class LatencyMeasurement:
    """One image on one thread: the tenth percentile of quiet samples, and the interquartile range relative to it."""

    latency_ms: float
    spread: float
    noisy_fraction: float


@dataclass(frozen=True)
class EmittedProgram:
    """A folder with the program for another device, the compiled programs in it, and the reason if there are none."""

    folder: Path
    programs: tuple[str, ...]
    left_out: str = ""


def graph_of(task: Task, model: nn.Module, layers: tuple[str, ...] | None = None) -> Graph:
    """A network of the task with trits in its ternary layers, or in `layers`. ExportError if it cannot be exported."""
    layers = baked_layers(model, task.ternary_layers) if layers is None else layers
    return Network(model, task.data.input, layers).graph()


def calibration_graph(task: Task) -> Graph:
    """The task's network before any training, half of its ternary weights zero at random."""
    model = task.make_model()
    with torch.no_grad():
        for layer in task.ternary_layers:
            torch.nn.init.ones_(model.get_parameter(f"{layer}.weight"))
    graph = graph_of(task, model)
    return with_random_trits(graph, nonzeros_at(graph, 0.5))


def calibration_of(graph: Graph, say: Say = lambda _line: None, how: CalibrationOptions | None = None) -> Calibration:
    """The measurements of a latency model: from the cache, or measured now."""
    how, compiler = how or CalibrationOptions(), require_compiler()
    known = cached_file(graph, compiler, how)
    if known.is_file() and not how.fresh:
        try:
            return read_calibration(known, graph)
        except SpecError as error:
            say(f"{error}; measuring again")
    calibration = _measured(graph, compiler, how, say)
    try:
        make_private(known.parent)
        write_calibration(known, calibration)
    except StorageError as error:  # a home folder that is not writable, or full
        say(f"the calibration is not cached: {error}")
    return calibration


def cached_file(graph: Graph, compiler: Compiler, how: CalibrationOptions) -> Path:
    """The cache file of a network on this machine: one per processor, compiler and version of the kernels."""
    built_by = (compiler.version(), *compiler.command, *compiler.native())
    parts = [instruction_set(), *built_by, kernels_hash(), network_hash(graph), str(how.sparsities)]
    return cache_folder() / f"latency-{digest(parts)}.json"


def _measured(graph: Graph, compiler: Compiler, how: CalibrationOptions, say: Say) -> Calibration:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        _write_sources(folder, graph, how, say)
        build_calibration(folder, folder / "calibrate", compiler, compiler.native(), say)
        say(f"timing the network at several sparsities, for at most {how.seconds:g} s")
        output = run_program([str(folder / "calibrate"), f"{how.seconds:g}"]).decode(errors="replace")
    return parse_calibration(output, "the calibration", graph)


def _write_sources(folder: Path, graph: Graph, how: CalibrationOptions, say: Say) -> None:
    say("writing the network's C source at several sparsities")
    for name, text in calibration_sources(graph, how.sparsities).items():
        write_text_atomic(folder / name, text)


def emit_calibration(
    folder: Path, graph: Graph, target: str, say: Say = lambda _line: None, how: CalibrationOptions | None = None
) -> EmittedProgram:
    """Writes the program that calibrates a network on another device: sources, and programs if they can be built."""
    require_target(target)
    check_empty(folder)
    kind = TARGETS[target]
    compiler, programs = zig_compiler(), []
    with new_folder(folder) as new:
        _write_sources(new, graph, how or CalibrationOptions(), say)
        for build in kind.builds if compiler else ():
            assert compiler is not None
            programs.append(f"calibrate-{'-'.join([target, *build.instructions.lower().split()])}")
            cross = ("-target", kind.triple)
            build_calibration(new, new / programs[-1], compiler, (*PORTABLE, *build.flags), say, cross)
    missing = "ziglang is not installed: run make on the device, or pip install 'sca-search[cross]' here"
    return EmittedProgram(folder, tuple(programs), "" if compiler else missing)


def check_options(emit: Path | None, target: str | None, seconds: float) -> None:
    """Checks the options of a calibration before data and network are read."""
    if (emit is None) != (target is None):
        raise SpecError("--emit DIR and --target NAME must be given together: the program is for one kind of device")
    if target is not None and emit is not None:
        require_target(target)
        check_empty(emit)
    if not 0 < seconds < _MOST_SECONDS:
        raise SpecError(f"--seconds must be above 0 and below {_MOST_SECONDS}, got {seconds:g}")


def check_empty(folder: Path) -> None:
    """Rejects a path that exists and is not an empty folder."""
    if folder.exists() and (not folder.is_dir() or not all(map(is_leftover, folder.iterdir()))):
        what = "holds files" if folder.is_dir() else "is a file"
        raise SpecError(f"--emit: {folder} must be a new or an empty folder, it {what}")


def measure_ms(graph: Graph, *, seconds: float = _MEASURE_SECONDS) -> LatencyMeasurement:
    """The C export of this graph, compiled and timed on this machine; repeated if that was not quiet."""
    sampler = sampler_of(graph)
    timing = steadiest(lambda: time_interleaved({"model": sampler}, seconds).each["model"])
    return LatencyMeasurement(1e3 * timing.low, timing.spread / timing.low, timing.noisy_fraction)


def sampler_of(graph: Graph) -> Sampler:
    """The C export of a graph, compiled, on one image; nothing stays on disk."""
    # An image that is normal noise after normalization, as in a calibration.
    channels = (-1, *(1 for _ in graph.input_shape[1:]))
    noise = np.random.default_rng(0).standard_normal(graph.input_shape)
    image = (noise * graph.std.reshape(channels) + graph.mean.reshape(channels)).astype(np.float32)
    nothing = TestVectors(image[None], np.zeros((1, len(graph.class_names)), np.float32))
    with tempfile.TemporaryDirectory() as temporary:
        write_c(Path(temporary), graph, nothing)
        model = compile_source(Path(temporary), keep=False)
    return stopwatch().sampler(model, image)


def steadiest(measure: Callable[[], Timing]) -> Timing:
    """The first of a few timings that is steady and has quiet samples, else the one with the smallest spread."""
    timings: list[Timing] = []
    for _ in range(_ATTEMPTS):
        timings.append(measure())
        if timings[-1].has_quiet and timings[-1].spread <= _STEADY * timings[-1].low:
            return timings[-1]
    return min(timings, key=lambda timing: timing.spread / timing.low)
