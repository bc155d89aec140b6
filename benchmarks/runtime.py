"""Latency of the exported C compared with onnxruntime, and as a function of the number of non-zero weights.

Networks with random trits, including their dense first and last layer; batch size 1, one thread. All engines of a cell
are timed interleaved in one process, and only samples between undisturbed calibration loops count.

    python -m benchmarks.runtime --cells DIR --readme

With --deepsparse PYTHON, the interpreter of an environment with DeepSparse 1.8, that engine is timed as well, in a
separate process. Cells that exist below --cells are not measured again.
"""

import argparse
import importlib.metadata
import json
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import README, RESULTS, provenance, table, write_section
from benchmarks.runtime_layers import layer_cells, layer_report
from benchmarks.size import NETWORKS, random_network
from sca_search.export.c.choose_kernel import COptions
from sca_search.export.c.compiler import PORTABLE, require_compiler
from sca_search.export.c.library import CompiledModel, compile_source, require_answers
from sca_search.export.c.source import write_c
from sca_search.export.graph.network import Network
from sca_search.export.graph.records import Graph, TestVectors
from sca_search.export.integer.model import integer_model
from sca_search.export.integer.reference import largest_values
from sca_search.export.latency.bench import (
    FLOAT,
    INT8,
    Engine,
    adds_of,
    bench_engines,
    c_engine,
    onnx_rivals,
)
from sca_search.export.latency.onnx_engines import float_model
from sca_search.export.verify import choose_vectors

SPARSITIES = (0.0, 0.5, 0.7, 0.9, 0.95, 0.98)
DEEPSPARSE = "DeepSparse"
AVX2, NATIVE, INTEGERS = "C, AVX2", "C, native", "C, integers"

Cell = dict[str, Any]


def main() -> None:
    arguments = _arguments()
    torch.set_num_threads(1)
    cells = [
        _cached(arguments.cells, f"{name}-{sparsity:g}", lambda: _cell(name, sparsity, arguments))  # noqa: B023 - at once
        for name in arguments.networks
        for sparsity in arguments.sparsities
    ]
    source = f"{provenance()}, {_tools()}"
    write_section(RESULTS, "runtime", f"## Speed of the exported C\n\n{_full_table(cells)}\n\n{source}")
    if arguments.readme:
        write_section(README, "runtime", f"{_short_table(cells)}  \n{source}")
    if not arguments.no_layers:
        layers = _cached(arguments.cells, "layers", lambda: layer_cells(arguments.networks, _builds()[_main_build()]))
        write_section(RESULTS, "runtime by layer", f"## Latency by list entries\n\n{layer_report(layers)}\n\n{source}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=NETWORKS)
    parser.add_argument("--sparsities", nargs="+", type=float, default=list(SPARSITIES))
    parser.add_argument("--seconds", type=float, default=12.0, help="seconds for all engines of a cell together")
    parser.add_argument(
        "--deepsparse", type=Path, metavar="PYTHON", help="Python interpreter of an environment with DeepSparse"
    )
    parser.add_argument("--cells", type=Path, metavar="DIR", help="store measurements here, and continue from them")
    parser.add_argument("--no-layers", action="store_true", help="measure only whole networks")
    parser.add_argument("--readme", action="store_true", help="also write the short table to the README")
    return parser.parse_args()


def _tools() -> str:
    """Other versions that the results depend on."""
    compiler = require_compiler().version().splitlines()[0]
    return f"onnxruntime {importlib.metadata.version('onnxruntime')}, {compiler}"


def _cached(folder: Path | None, name: str, measure: Callable[[], Any]) -> Any:
    """The measurement, read from its file if that exists."""
    path = folder / f"{name}.json" if folder is not None else None
    if path is not None and path.is_file():
        return json.loads(path.read_text())
    measured = measure()
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(measured, indent=1))
    return measured


def _builds() -> dict[str, tuple[str, ...]]:
    """Compiler flags by build; the first build is the one that is compared."""
    native = {NATIVE: require_compiler().native()}
    if platform.machine() not in ("x86_64", "AMD64"):
        return native
    return {AVX2: (*PORTABLE, "-march=x86-64-v3", "-mavx2", "-mfma"), **native}


def _main_build() -> str:
    return next(iter(_builds()))


def _cell(name: str, sparsity: float, arguments: argparse.Namespace) -> Cell:
    """One network at one sparsity, with every engine."""
    network = replace(random_network(name, sparsity), images=None)
    graph = network.graph()
    vectors = _vectors(network, graph)
    models = _compiled(graph, vectors)
    image = vectors.images[0]
    engines: list[Engine] = [c_engine(build, model, image) for build, model in models.items()]
    rivals, missing = onnx_rivals(graph, vectors)
    assert not missing, missing
    engines += rivals
    bench = bench_engines(engines, arguments.seconds, adds_of(graph))
    cell = {"network": name, "sparsity": sparsity, "init_ms": _init_ms(models[_main_build()])} | bench.as_json()
    if arguments.deepsparse:
        cell["deepsparse_us"] = _deepsparse(arguments.deepsparse, graph)
    times = ", ".join(f"{each['name']} {each['median_us']:.0f}" for each in cell["engines"])
    print(f"{name} {sparsity:g}: {times}, DeepSparse {cell.get('deepsparse_us')}", flush=True)
    return cell


def _vectors(network: Network, graph: Graph) -> TestVectors:
    images = choose_vectors(graph, None)
    with torch.inference_mode():
        logits = network.model.eval().double()(torch.from_numpy(images).double()).float().numpy()
    return TestVectors(images, np.ascontiguousarray(logits))


def _compiled(graph: Graph, vectors: TestVectors) -> dict[str, CompiledModel]:
    with tempfile.TemporaryDirectory() as temporary:
        write_c(Path(temporary), graph, vectors)
        models = {build: compile_source(Path(temporary), flags=flags, keep=False) for build, flags in _builds().items()}
        for build, model in models.items():
            require_answers(build, model, vectors)
        whole = integer_model(graph, largest_values(graph, [vectors.images]))
        write_c(Path(temporary), graph, vectors, COptions(integer=whole))
        models[INTEGERS] = compile_source(Path(temporary), flags=_builds()[_main_build()], keep=False)
    return models


def _init_ms(model: CompiledModel) -> float:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        model.initialize()
        times.append(time.perf_counter() - began)
    return 1e3 * min(times)


def _deepsparse(python: Path, graph: Graph, seconds: float = 4.0) -> float:
    """The median in microseconds. It is not interleaved, because it needs its own process."""
    model = float_model(graph)
    # Opset 13 is equivalent for the operators used here, and DeepSparse supports no later one.
    model.opset_import[0].version, model.ir_version = 13, 7
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        worker = Path(__file__).with_name("deepsparse_worker.py")
        command = [str(python), str(worker), str(path), str(seconds)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return 1e6 * float(np.median(json.loads(done.stdout.splitlines()[-1])))


def _engine(cell: Cell, name: str) -> Cell:
    return next(engine for engine in cell["engines"] if engine["name"] == name)


def _first(cell: Cell) -> Cell:
    """The build that is compared with other engines."""
    engine: Cell = cell["engines"][0]
    return engine


def _full_table(cells: list[Cell]) -> str:
    known = (AVX2, NATIVE, INTEGERS)
    builds = [name for name in known if any(engine["name"] == name for engine in cells[0]["engines"])]
    others = [FLOAT, INT8]
    headings = ["network", "sparsity", *(f"{name}, µs" for name in (*builds, *others, DEEPSPARSE))]
    headings += [*(f"times {name}" for name in (*others, DEEPSPARSE)), f"integers, times {INT8}"]
    headings += ["required additions per cycle", "library, kB", "tables, kB", "scratch, kB", "init, ms", "noisy"]
    rows = [_full_row(cell, builds, others) for cell in cells]
    clock = np.median([cell["clock_ghz"] for cell in cells])
    return (
        f"{table(headings, rows)}\n\nMedian (interquartile range) of quiet samples, one image, one thread, at "
        f"{clock:.2f} GHz; the ratios are those of {builds[0]}. The dense first and last layer are included. "
        "onnxruntime fp32 uses plain float weights, its fastest option; int8 uses unsigned activations and signed "
        "weights of reduced range. DeepSparse ran in its own process, with the same sparse weights. *noisy* is the "
        "fraction of discarded samples, during which a calibration loop was slow or the thread was interrupted. "
        "Required additions are non-zero weights times output positions, including dense layers. Tables and scratch "
        "are memory; kB are 1,000 bytes. *integers* is the export with integer activations."
    )


def _full_row(cell: Cell, builds: list[str], others: list[str]) -> list[str]:
    ours, deep = _first(cell), cell.get("deepsparse_us")
    times = [
        f"{each['median_us']:,.0f} ({each['iqr_us']:,.0f})" for each in (_engine(cell, n) for n in (*builds, *others))
    ]
    ratios = [f"{_engine(cell, name)['median_us'] / ours['median_us']:.2f}" for name in others]
    return [
        cell["network"],
        f"{cell['sparsity']:g}",
        *times,
        f"{deep:,.0f}" if deep else "not measured",
        *ratios,
        f"{deep / ours['median_us']:.2f}" if deep else "",
        f"{_engine(cell, INT8)['median_us'] / _engine(cell, INTEGERS)['median_us']:.2f}",
        f"{ours['adds_per_cycle']:.2f}",
        *(f"{ours[key] / 1000:,.1f}" for key in ("disk_bytes", "table_bytes", "scratch_bytes")),
        f"{cell['init_ms']:.1f}",
        f"{max(engine['noisy_fraction'] for engine in cell['engines']):.0%}",
    ]


def _short_table(cells: list[Cell]) -> str:
    """The table for the README."""
    headings = [
        "network",
        "sparsity",
        "exported C, µs",
        f"{FLOAT}, µs",
        "times",
        "integers, µs",
        f"{INT8}, µs",
        "times",
    ]
    rows = []
    for cell in cells:
        pairs = ((_first(cell)["name"], FLOAT), (INTEGERS, INT8))
        times = [[_engine(cell, name)["median_us"] for name in pair] for pair in pairs]
        shown = [[f"{ours:,.0f}", f"{theirs:,.0f}", f"{theirs / ours:.1f}"] for ours, theirs in times]
        rows.append([cell["network"], f"{cell['sparsity']:g}", *shown[0], *shown[1]])
    build = f"{_first(cells[0])['name']}, " if _first(cells[0])["name"] == AVX2 else ""
    return (
        f"{table(headings, rows)}\n\n{build}random trits, batch size 1, one thread, all engines interleaved in one "
        "process; medians of quiet samples; integers: `--activations int8`."
    )


if __name__ == "__main__":
    main()
