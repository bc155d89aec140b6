"""Random graphs for the tests of the formats: every operation on one input, all results side by side in the output.

One graph then costs one compilation, and each operation is still compared by itself.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph import records as r
from sca_search.export.graph.reference import every_value
from sca_search.export.graph.shapes import check_graph, output_shape

WEIGHT_KINDS = ("trits", "no zeros", "all zeros", "dead channels", "mostly zeros", "floats")


@dataclass
class Builder:
    """Collects records whose shapes follow from their inputs."""

    input_shape: r.Shape
    random: np.random.Generator
    records: list[r.Record] = field(default_factory=list)

    def shape(self, name: str) -> r.Shape:
        return next((record.shape for record in self.records if record.name == name), self.input_shape)

    def add(self, record: r.Record) -> str:
        """Appends it under its name and a number, with the shape that it must have."""
        named = replace(record, name=f"{record.name}.{len(self.records)}")
        named = replace(named, shape=output_shape(named, tuple(self.shape(name) for name in named.inputs)))
        self.records.append(named)
        return named.name

    def floats(self, *shape: int) -> r.Floats:
        return self.random.standard_normal(shape).astype(np.float32)

    def weight(self, kind: str, *shape: int) -> r.Trits | r.Floats:
        if kind == "floats":
            return self.floats(*shape)
        zeros = {"trits": 0.5, "no zeros": 0.0, "all zeros": 1.0, "dead channels": 0.3, "mostly zeros": 0.95}[kind]
        trits = self.random.choice(np.array([-1, 1], dtype=np.int8), shape)
        trits[self.random.random(shape) < zeros] = 0
        if kind == "dead channels":
            trits[:: int(self.random.integers(1, 3))] = 0
        return trits

    def convolution(self, source: str, outputs: int, kernel: tuple[int, int], kind: str, **settings: Any) -> str:
        channels = self.shape(source)[0] // settings.get("groups", 1)
        weight = self.weight(kind, outputs, channels, *kernel)
        scale, bias = self.floats(outputs), self.floats(outputs)
        return self.add(r.Convolution(f"conv {kind}".replace(" ", "_"), (source,), (), weight, scale, bias, **settings))

    def random_convolution(self, source: str, kind: str) -> str:
        """Any kernel that fits, with any stride, padding, dilation and grouping."""
        pick = self.random.integers
        channels, height, width = self.shape(source)
        groups = int(self.random.choice([g for g in range(1, channels + 1) if channels % g == 0]))
        padding = tuple(int(n) for n in pick(0, 4, 4))
        spans = (height + padding[0] + padding[1], width + padding[2] + padding[3])
        kernel = tuple(int(pick(1, min(5, span) + 1)) for span in spans)
        dilation = tuple(
            1 if size == 1 else int(pick(1, min(3, (span - 1) // (size - 1)) + 1))
            for size, span in zip(kernel, spans, strict=True)
        )
        return self.convolution(
            source,
            groups * int(pick(1, 4)),
            (kernel[0], kernel[1]),
            kind,
            stride=tuple(int(n) for n in pick(1, 4, 2)),
            padding=padding,
            dilation=dilation,
            groups=groups,
        )

    def linear(self, source: str, outputs: int, kind: str) -> str:
        flat = self.flat(source)
        weight = self.weight(kind, outputs, *self.shape(flat))
        name = f"linear {kind}".replace(" ", "_")
        return self.add(r.Linear(name, (flat,), (), weight, self.floats(outputs), self.floats(outputs)))

    def random_pool(self, source: str, kind: Any) -> str:
        pick = self.random.integers
        _, height, width = self.shape(source)
        kernel = (int(pick(1, min(4, height) + 1)), int(pick(1, min(4, width) + 1)))
        rows, columns = (int(pick(0, size // 2 + 1)) for size in kernel)
        padding = (rows, rows, columns, columns)
        stride = (int(pick(1, 4)), int(pick(1, 4)))
        ceil, counts = bool(pick(0, 2)), kind == "average" and bool(pick(0, 2))
        return self.add(r.Pool(f"pool_{kind}", (source,), (), kind, kernel, stride, padding, ceil, counts))

    def random_adaptive_pool(self, source: str, kind: Any) -> str:
        channels, height, width = self.shape(source)
        sizes = int(self.random.integers(1, height + 2)), int(self.random.integers(1, width + 2))
        return self.add(r.AdaptivePool(f"adaptive_{kind}", (source,), (channels, *sizes), kind))

    def gate(self, source: str) -> str:
        """A value times a gate for each of its channels, as in squeeze-and-excitation."""
        channels = self.shape(source)[0]
        mean = self.add(r.AdaptivePool("squeeze", (source,), (channels, 1, 1), "average"))
        inner = self.convolution(mean, channels, (1, 1), "trits")
        gate = self.add(r.Activation("gate", (inner,), (), "hardsigmoid"))
        return self.add(r.Multiply("excite", (source, gate), ()))

    def flat(self, source: str) -> str:
        shape = self.shape(source)
        return source if len(shape) == 1 else self.add(r.Reshape("flat", (source,), (math.prod(shape),)))

    def graph(self, names: list[str]) -> r.Graph:
        """All those values one behind the other."""
        output = self.add(r.Concat("all", tuple(self.flat(name) for name in names), ()))
        channels = self.input_shape[0]
        mean, std = self.floats(channels), np.abs(self.floats(channels)) + np.float32(0.5)
        classes = tuple(str(index) for index in range(*self.shape(output)))
        graph = r.Graph(self.input_shape, mean, std, tuple(self.records), output, classes)
        check_graph(graph)
        return graph


def every_operation(input_shape: r.Shape, seed: int) -> tuple[r.Graph, list[str]]:
    """A graph with every kind of record at random settings, and the names of the values in its output."""
    builder = Builder(input_shape, np.random.default_rng(seed))
    names = [builder.random_convolution(r.INPUT, kind) for kind in WEIGHT_KINDS]
    channels = input_shape[0]
    names += [
        builder.convolution(r.INPUT, channels, (3, 3), kind, groups=channels, padding=(1, 1, 1, 1))
        for kind in ("trits", "floats")  # depthwise
    ]
    names += [
        builder.linear(r.INPUT, outputs, kind) for outputs, kind in zip((1, 3, 17, 5, 2, 4), WEIGHT_KINDS, strict=True)
    ]
    for kind in ("max", "average"):
        names += [builder.random_pool(r.INPUT, kind), builder.random_pool(r.INPUT, kind)]
        names.append(builder.random_adaptive_pool(r.INPUT, kind))
    names += [builder.add(r.Activation(kind, (r.INPUT,), (), kind, slope=0.1)) for kind in get_args(r.ActivationKind)]
    affine = builder.add(r.ChannelAffine("affine", (r.INPUT,), (), builder.floats(channels), builder.floats(channels)))
    names += [
        affine,
        builder.add(r.Add("add", (affine, names[-1]), ())),
        builder.add(r.Add("twice", (r.INPUT, r.INPUT), ())),
        builder.add(r.Multiply("multiply", (r.INPUT, affine), ())),
        builder.add(r.Concat("concat", (affine, r.INPUT, affine), ())),
        builder.gate(r.INPUT),
    ]
    return builder.graph(names), names


def random_images(graph: r.Graph, count: int, seed: int = 0) -> r.Floats:
    """Images whose normalized values are of order 1."""
    by_channel = (-1, *[1] * (len(graph.input_shape) - 1))
    noise = np.random.default_rng(seed).standard_normal((count, *graph.input_shape))
    return (noise * graph.std.reshape(by_channel) + graph.mean.reshape(by_channel)).astype(np.float32)


def worst_difference(
    graph: r.Graph, names: list[str], images: r.Floats, logits: NDArray[np.float32]
) -> tuple[float, str]:
    """The largest difference of any operation from the reference, in parts of its largest value (at least 1)."""
    values = every_value(graph, images)
    worst, where, begin = 0.0, "", 0
    for name in names:
        expected = values[name].reshape(len(images), -1)
        given = logits[:, begin : begin + expected.shape[1]]
        begin += expected.shape[1]
        difference = float(np.abs(given - expected).max() / max(1.0, np.abs(expected).max()))
        if not difference <= worst:
            worst, where = difference, name
    assert begin == logits.shape[1]
    return worst, where
