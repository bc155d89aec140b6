"""Which kernel is fastest for each ternary layer on this machine, found by timing the layer alone with each of them."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from sca_search.errors import ExportError
from sca_search.export.c.choose_kernel import CONVOLUTION_KERNELS, LINEAR_KERNELS, COptions
from sca_search.export.c.layers import can_have
from sca_search.export.c.library import CompiledModel, compile_source
from sca_search.export.c.source import write_c
from sca_search.export.graph.fuse import is_convolution
from sca_search.export.graph.records import INPUT, Floats, Graph, Record, Reshape, TestVectors, WeightRecord
from sca_search.export.latency.timing import Timing, stopwatch, time_interleaved

Timer = Callable[[Graph, WeightRecord], Mapping[str, Timing]]
"""A graph and one of its layers -> the time of each kernel that the layer can use."""

_SECONDS = 0.5  # for all kernels of a layer together


def tune(graph: Graph, say: Callable[[str], None] = lambda _line: None, timer: Timer | None = None) -> dict[str, str]:
    """The fastest kernel for each ternary layer, by name: what `COptions.kernels` takes."""
    chosen = {}
    for layer in graph.ternary_layers:
        timings = (timer or time_kernels)(graph, layer)
        chosen[layer.name] = min(timings, key=lambda kind: timings[kind].low)
        described = ", ".join(f"{kind} {1e6 * timing.low:.1f} µs" for kind, timing in timings.items())
        say(f"{layer.name}: {chosen[layer.name]} ({described})")
    return chosen


def time_kernels(graph: Graph, layer: WeightRecord) -> Mapping[str, Timing]:
    """One layer of a graph with each kernel that it can use, interleaved."""
    image = layer_input(graph, layer)
    samplers = {kind: stopwatch().sampler(model, image) for kind, model in layer_models(graph, layer).items()}
    return time_interleaved(samplers, _SECONDS).each


def layer_models(graph: Graph, layer: WeightRecord, flags: tuple[str, ...] = ()) -> dict[str, CompiledModel]:
    """A layer alone, compiled with each kernel that it can use."""
    alone = one_layer(graph, layer)
    known = [kind for kind in CONVOLUTION_KERNELS if can_have(graph, layer.name, kind)] if is_convolution(layer) else ()
    nothing = TestVectors(np.zeros((1, *alone.input_shape), np.float32), np.zeros((1, 1), np.float32))
    models = {}
    for kind in known or LINEAR_KERNELS:
        with tempfile.TemporaryDirectory() as temporary:
            try:
                write_c(Path(temporary), alone, nothing, COptions(kernels={layer.name: kind}))
            except ExportError:  # the layer alone cannot use that kernel
                continue
            models[kind] = compile_source(Path(temporary), flags=flags, keep=False)
    return models


def one_layer(graph: Graph, layer: WeightRecord) -> Graph:
    """A graph with only one layer of another; of its outputs, only the first is named."""
    shape = graph.shape_of(layer.inputs[0])
    records: tuple[Record, ...] = (replace(layer, inputs=(INPUT,)),)
    if len(layer.shape) > 1:
        records = (*records, Reshape(f"{layer.name}.flat", (layer.name,), (int(np.prod(layer.shape)),)))
    channels = np.ones(shape[0], dtype=np.float32)
    return Graph(shape, 0 * channels, channels, records, records[-1].name, ("first",))


def layer_input(graph: Graph, layer: WeightRecord) -> Floats:
    """An input as after a ReLU: half of it zeros, which some kernels skip."""
    noise = np.random.default_rng(0).standard_normal(graph.shape_of(layer.inputs[0]))
    return np.maximum(noise, 0).astype(np.float32)
