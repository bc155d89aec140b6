"""A C program that times a network at several sparsities and prints the results: see kernels/calibrate.c.

Its variants are the network's own C source with random trits, compiled as a user compiles it: latency depends on the
positions of the zeros, not on learned values. They run with time stamps between the steps and without: the stamps give
the fraction of each step, the run without them the total time.
"""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.c.amalgamate import kernel_file, kernel_texts
from sca_search.export.c.compiler import Compiler
from sca_search.export.c.emit import quoted
from sca_search.export.c.layers import chosen_kernels
from sca_search.export.c.source import model_files, stamped_steps
from sca_search.export.graph import records as r
from sca_search.export.packed.format import describe
from sca_search.system.machine import usable_cores


def nonzeros_at(graph: r.Graph, sparsity: float) -> dict[str, int]:
    """Non-zero weights per ternary layer, at the same sparsity in each; at least one."""
    return {layer.name: max(1, round((1 - sparsity) * layer.weight.size)) for layer in graph.ternary_layers}


def with_random_trits(graph: r.Graph, nonzeros: Mapping[str, int], seed: int = 0) -> r.Graph:
    """The graph with these numbers of non-zero trits, at random places in each layer."""
    draws = np.random.default_rng(seed)
    filled = {layer.name: _filled(layer, nonzeros[layer.name], draws) for layer in graph.ternary_layers}
    return replace(graph, records=tuple(filled.get(record.name, record) for record in graph.records))


def _filled(layer: r.WeightRecord, nonzeros: int, draws: np.random.Generator) -> r.WeightRecord:
    """Scaled so that values stay near 1 in deep networks; a bias, as in trained layers, prevents outputs that are
    always zero, which C skips."""
    size, outputs = layer.weight.size, len(layer.weight)
    trits = np.zeros(size, dtype=np.int8)
    trits[draws.choice(size, nonzeros, replace=False)] = draws.choice(np.array([-1, 1], dtype=np.int8), nonzeros)
    scale = np.full(outputs, np.sqrt(2 * outputs / nonzeros), dtype=np.float32)
    bias = 0.1 * draws.standard_normal(outputs).astype(np.float32)
    return replace(layer, weight=trits.reshape(layer.weight.shape), scale=scale, bias=bias)


FORMAT = "sca-search/latency"
VERSION = 1
# Closer together where kernels list each weight and time follows the non-zeros.
SPARSITIES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
_REPORT_EVERY = 4  # files after which a compilation reports its progress

Say = Callable[[str], None]


def network_hash(graph: r.Graph) -> str:
    """Hash of a network's structure: records and their shapes, without weights."""
    structure = [list(graph.input_shape), [describe(record) for record in graph.records], graph.output]
    return hashlib.sha256(json.dumps(structure, sort_keys=True).encode()).hexdigest()[:16]


@functools.cache
def kernels_hash() -> str:
    """Hash of everything that determines the speed of a model's C source: the kernels, and the source generated for a
    fixed network at several sparsities. Comments and file names of the generator do not count.
    """
    graph = _probe_graph()
    variants = (with_random_trits(graph, nonzeros_at(graph, sparsity)) for sparsity in SPARSITIES)
    generated = (model_files(variant)["model.c"] for variant in variants)
    return hashlib.sha256("\0".join((*kernel_texts(), *generated)).encode()).hexdigest()[:16]


def _probe_graph() -> r.Graph:
    """A small network with every kind of ternary layer: dense, strided, depthwise, pointwise and linear."""

    def convolution(
        name: str, source: str, size: int, weight: tuple[int, ...], stride: int, groups: int = 1
    ) -> r.Record:
        scale, border = np.ones(weight[0], dtype=np.float32), weight[-1] // 2
        values = np.zeros(weight, dtype=np.int8)
        sides = (border, border, border, border)
        shape = (weight[0], size, size)
        return r.Convolution(name, (source,), shape, values, scale, scale, (stride, stride), sides, groups=groups)

    outputs = np.ones(10, dtype=np.float32)
    records = (
        convolution("first", r.INPUT, 16, (16, 3, 3, 3), 1),
        convolution("second", "first", 16, (16, 16, 3, 3), 1),
        convolution("strided", "second", 8, (32, 16, 3, 3), 2),
        convolution("depthwise", "strided", 8, (32, 1, 3, 3), 1, groups=32),
        convolution("pointwise", "depthwise", 8, (64, 32, 1, 1), 1),
        r.Pool("pool", ("pointwise",), (64, 4, 4), "max", (2, 2), (2, 2)),
        convolution("small", "pool", 4, (64, 64, 3, 3), 1),
        r.AdaptivePool("mean", ("small",), (64, 1, 1), "average"),
        r.Reshape("flat", ("mean",), (64,)),
        r.Linear("linear", ("flat",), (10,), np.zeros((10, 64), dtype=np.int8), outputs, outputs),
    )
    statistics = np.ones(3, dtype=np.float32)
    return r.Graph((3, 16, 16), statistics, statistics, records, "linear", tuple("0123456789"))


def calibration_sources(graph: r.Graph, sparsities: Sequence[float] = SPARSITIES) -> dict[str, str]:
    """The files of the program, by name. ExportError if the network has no ternary layer, or no C."""
    if not graph.ternary_layers:
        raise ExportError("the network must have a ternary layer to be calibrated, it has none")
    variants = [
        with_random_trits(graph, nonzeros_at(graph, sparsity), seed) for seed, sparsity in enumerate(sparsities)
    ]
    files = {f"variant_{number}.c": _variant(number, variant) for number, variant in enumerate(variants)}
    files["variants.h"] = _table(graph, variants, sparsities)
    files |= {name: kernel_file(name) for name in ("calibrate.c", "calibrate.h", "stopwatch.c")}
    return files | {"Makefile": kernel_file("Makefile.calibrate")}


def build_calibration(
    folder: Path, program: Path, compiler: Compiler, flags: tuple[str, ...], say: Say, cross: tuple[str, ...] = ()
) -> None:
    """Compiles the sources in a folder; `cross` are the flags for another machine."""
    # More optimization would vectorize the loops of the stopwatch, and their cycles would no longer be known.
    objects = {"stopwatch": ("-O1", str(folder / "stopwatch.c")), "calibrate": (str(folder / "calibrate.c"),)}
    objects |= {path.stem: (str(path),) for path in sorted(folder.glob("variant_*.c"))}

    def compile_one(name: str) -> None:
        compiler.run([*cross, *flags, *objects[name], "-c", "-o", f"{program}-{name}.o"])

    say(f"compiling {len(objects)} files")
    with ThreadPoolExecutor(usable_cores()) as pool:
        for done, _ in enumerate(pool.map(compile_one, objects), start=1):
            if done % _REPORT_EVERY == 0 and done < len(objects):
                say(f"compiled {done} of {len(objects)}")
    made = [f"{program}-{name}.o" for name in objects]
    static = ("-static",) if cross else ()
    compiler.run([*cross, *static, "-o", str(program), *made, "-lm"])
    for each in made:
        Path(each).unlink()


def _variant(number: int, variant: r.Graph) -> str:
    files = model_files(variant)
    model = files["model.c"].replace('#include "model.h"\n', files["model.h"])
    return kernel_file("variant.c").replace("@NUMBER@", str(number)).replace("@MODEL@", model)


def _table(graph: r.Graph, variants: list[r.Graph], sparsities: Sequence[float]) -> str:
    """The header with the program's variants and their descriptions."""
    sizes = {
        "VARIANTS": len(variants),
        "STEPS": len(stamped_steps(graph)),
        "INPUTS": prod(graph.input_shape),
        "CHANNELS": graph.input_shape[0],
        "OUTPUTS": len(graph.class_names),
    }
    statistics = ", ".join(f"{{{mean:.9g}, {std:.9g}}}" for mean, std in zip(graph.mean, graph.std, strict=True))
    names = [f"variant_{number}_predict" for number in range(len(variants))]
    lines = [f"#define {name} {size}" for name, size in sizes.items()]
    lines += [f"void {name}(const float *in, float *out);" for name in names]
    lines.append(f"static void (*const variants[VARIANTS])(const float *in, float *out) = {{{', '.join(names)}}};")
    rows = ",\n".join(f"    {{{', '.join(map(quoted, _described(variant)))}}}" for variant in variants)
    lines += [
        f"static const double statistics[CHANNELS][2] = {{{statistics}}}; /* mean and deviation */",
        f"static const char *const sparsities[VARIANTS] = {{{', '.join(quoted(str(each)) for each in sparsities)}}};",
        f"static const char *const about = {quoted(_about(graph))};",
        f"static const char *const described[VARIANTS][STEPS] = {{\n{rows},\n}};",
    ]
    return "\n".join(lines) + "\n"


def _about(graph: r.Graph) -> str:
    """The first lines of what the program prints."""
    about = {"format": FORMAT, "version": VERSION, "network": network_hash(graph), "kernels": kernels_hash()}
    about |= {"threads": 1, "batch": 1}
    return "".join(f'  "{name}": {json.dumps(value)},\n' for name, value in about.items())


def _described(variant: r.Graph) -> list[str]:
    """The description of each step, as the inside of a JSON object."""
    layers = {layer.name: layer for layer in variant.ternary_layers}
    kernels = chosen_kernels(variant)
    described = []
    for name in stamped_steps(variant):
        step: dict[str, object] = {"step": name}
        if name in layers:
            weights, zeros = layers[name].weight.size, layers[name].zeros
            step |= {"kernel": kernels[name], "weights": weights, "nonzeros": weights - zeros}
        described.append(json.dumps(step)[1:-1])
    return described
