"""How many bytes a model takes in each way to store its ternary weights, and the fewest that are possible."""

import math
from dataclasses import dataclass

from sca_search.export.graph.records import Graph
from sca_search.export.packed.format import payload_bytes


@dataclass(frozen=True)
class Sizes:
    """Bytes of the ternary weights; `others` are the numbers that are float32 in every case."""

    weights: int
    bound: float  # Σ n · (H(s) + 1 - s) / 8 over the layers: where zeros lie, and a sign for each non-zero
    packed: int  # in the packed format's code
    others: int

    @property
    def fp32(self) -> int:
        return 4 * self.weights

    @property
    def int8(self) -> int:
        return self.weights

    @property
    def two_bit(self) -> int:
        return -(-self.weights // 4)


def sizes(graph: Graph) -> Sizes:
    """Counted over a graph."""
    layers = graph.ternary_layers
    return Sizes(
        weights=sum(layer.weight.size for layer in layers),
        bound=sum(layer.weight.size * bits_per_weight(layer.zeros / layer.weight.size) for layer in layers) / 8,
        packed=sum(payload_bytes(graph).values()),
        others=4 * _numbers(graph),
    )


def bits_per_weight(sparsity: float) -> float:
    """H(s) + (1 - s): the entropy of a weight that is zero with probability s, its signs even."""
    rest = 1.0 - sparsity
    entropy = -sum(share * math.log2(share) for share in (sparsity, rest) if share > 0)
    return entropy + rest


def _numbers(graph: Graph) -> int:
    """Float values of all records."""
    ternary = {layer.name for layer in graph.ternary_layers}
    return sum(
        getattr(record, field).size
        for record in graph.records
        for field in ("weight", "scale", "bias")
        if hasattr(record, field) and not (field == "weight" and record.name in ternary)
    )
