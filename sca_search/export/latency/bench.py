"""The latency of an exported model: our C compared with onnxruntime and torch, one image at a time on one thread.

All are timed in one process, interleaved, so that a slow phase of the machine affects all of them.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sca_search.errors import ExportError
from sca_search.export.c.compiler import require_compiler
from sca_search.export.c.library import CompiledModel, compile_model, require_answers
from sca_search.export.graph.records import Floats, Graph, TestVectors, WeightRecord
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.latency.timing import Sampler, Timing, python_sampler, stopwatch, time_interleaved
from sca_search.export.layout import INTEGER_VECTORS_FILE, PACKED, VECTORS_FILE, C
from sca_search.export.metadata import require_c
from sca_search.export.onnx import onnxruntime_missing
from sca_search.export.packed.format import read_packed
from sca_search.export.packed.test_vectors import read_vectors

OURS, FLOAT, INT8, TORCH = "C", "onnxruntime fp32", "onnxruntime int8", "torch, eager"


@dataclass(frozen=True)
class Engine:
    """One way to run a model, and the memory that it needs; None if unknown."""

    name: str
    sampler: Sampler
    disk_bytes: int | None = None
    scratch_bytes: int | None = None
    table_bytes: int | None = None


@dataclass(frozen=True)
class EngineTiming:
    """An engine's time."""

    engine: Engine
    timing: Timing


@dataclass(frozen=True)
class Bench:
    """Engines timed interleaved; `adds` is the number of additions by non-zero weights, None if unknown."""

    measured: tuple[EngineTiming, ...]
    clock_hz: float
    adds: int | None
    left_out: tuple[str, ...]  # sentences
    built_by: str

    def ratio(self, measured: EngineTiming) -> float | None:
        """Speed-up over onnxruntime in float32, by medians."""
        rival = next((each for each in self.measured if each.engine.name == FLOAT), None)
        return None if rival is None else rival.timing.median / measured.timing.median

    def adds_per_cycle(self, measured: EngineTiming) -> float | None:
        """Additions that the network needs, per cycle that it took; dense engines do more of them."""
        return None if self.adds is None else self.adds / (measured.timing.median * self.clock_hz)

    def as_json(self) -> dict[str, Any]:
        """For files."""
        return {
            "clock_ghz": self.clock_hz / 1e9,
            "adds": self.adds,
            "built_by": self.built_by,
            "left_out": list(self.left_out),
            "engines": [
                {
                    "name": each.engine.name,
                    "median_us": 1e6 * each.timing.median,
                    "iqr_us": 1e6 * each.timing.spread,
                    "low_us": 1e6 * each.timing.low,
                    "ratio": self.ratio(each),
                    "adds_per_cycle": self.adds_per_cycle(each),
                    "samples": len(each.timing.seconds),
                    "noisy_fraction": each.timing.noisy_fraction,
                    "over_quiet_samples": each.timing.has_quiet,
                    "disk_bytes": each.engine.disk_bytes,
                    "scratch_bytes": each.engine.scratch_bytes,
                    "table_bytes": each.engine.table_bytes,
                }
                for each in self.measured
            ],
        }


def bench_folder(folder: Path, seconds: float, say: Callable[[str], None] = lambda _line: None) -> Bench:
    """Times the C source of an export folder, and other engines with the same model, for this many seconds."""
    if not 0 < seconds < math.inf:
        raise ExportError(f"--seconds must be above 0, got {seconds:g}")
    require_c(folder)
    compiler = require_compiler()
    say("compiling")
    model = compile_model(folder, compiler=compiler)
    graph, vectors = read_packed(folder / PACKED) if (folder / PACKED).is_file() else (None, None)
    if (folder / VECTORS_FILE).is_file():  # a packed file in float16 has others than C
        vectors = read_vectors(folder / VECTORS_FILE)
    integers = folder / INTEGER_VECTORS_FILE
    expected = read_vectors(integers) if integers.is_file() else vectors
    if expected is not None:
        require_answers(str(folder / C), model, expected)
    image = vectors.images[0] if vectors is not None else np.zeros(model.input_shape, dtype=np.float32)
    engines, left_out = [c_engine(OURS, model, image)], []
    if graph is None or vectors is None:
        left_out.append(f"{folder} contains no {PACKED}, so that {FLOAT}, {INT8} and torch are left out")
    else:
        rivals, missing = onnx_rivals(graph, vectors)
        engines += [*rivals, torch_engine(graph, image, (folder / PACKED).stat().st_size)]
        left_out += missing
    say(f"timing for {seconds:g} s")
    built_by = f"{compiler.version().splitlines()[0]}, {' '.join(compiler.native())}"
    return bench_engines(engines, seconds, adds_of(graph) if graph else None, tuple(left_out), built_by)


def bench_engines(
    engines: list[Engine], seconds: float, adds: int | None, left_out: tuple[str, ...] = (), built_by: str = ""
) -> Bench:
    """Times engines interleaved, with torch on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        timings = time_interleaved({engine.name: engine.sampler for engine in engines}, seconds)
    finally:
        torch.set_num_threads(threads)
    measured = tuple(EngineTiming(engine, timings.each[engine.name]) for engine in engines)
    return Bench(measured, timings.clock_hz, adds, left_out, built_by)


def c_engine(name: str, model: CompiledModel, image: Floats) -> Engine:
    """A compiled model; its size on disk is that of the library, with the weights."""
    size = model.library_path.stat().st_size
    return Engine(name, stopwatch().sampler(model, image), size, model.scratch_bytes, model.table_bytes)


def onnx_rivals(graph: Graph, vectors: TestVectors) -> tuple[list[Engine], list[str]]:
    """onnxruntime in float32 and int8, or the reason why it is not available."""
    missing = onnxruntime_missing()
    if missing:
        return [], [missing]
    # here, because the packages are an extra
    from sca_search.export.latency.onnx_engines import float_engine, int8_engine  # noqa: PLC0415

    image = vectors.images[0]
    found = {FLOAT: float_engine(graph, image), INT8: int8_engine(graph, image, vectors.images)}
    return [Engine(name, python_sampler(each.run), each.file_bytes) for name, each in found.items()], []


def torch_engine(graph: Graph, image: Floats, disk_bytes: int | None = None) -> Engine:
    """The model as `sca_search.load` returns it."""
    network, batch = RecordNetwork(graph), torch.from_numpy(np.array(image[None]))

    def run() -> None:
        with torch.inference_mode():
            network(batch)

    return Engine(TORCH, python_sampler(run), disk_bytes)


def adds_of(graph: Graph) -> int:
    """Non-zero weights times the cells that use them, multiplications of dense layers included."""
    layers = [record for record in graph.records if isinstance(record, WeightRecord)]
    return sum((layer.weight.size - layer.zeros) * math.prod(layer.shape[1:]) for layer in layers)
