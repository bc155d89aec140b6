"""The options of the C export, and the choice of a kernel per ternary layer: the fewest cycles by a simple count,
unless the user names one.

The counts were fitted to timings on an x86-64 processor with AVX2; `tune` times the kernels on the machine at hand.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c.tiles import CELLS, Tiles, entries
from sca_search.export.graph.records import Trits
from sca_search.export.integer.model import IntegerModel

INTEGER_CONVOLUTION_KERNELS = {"lists": 1, "combined": 3}
"""Kernel kinds of ternary convolutions: how many columns of a kernel its planes combine."""

CONVOLUTION_KERNELS = INTEGER_CONVOLUTION_KERNELS | {"in-place": 1}
"""The same with float activations: maps that have a border can be read where they are."""

LINEAR_KERNELS = ("lists", "codes")
"""Kernel kinds of ternary linear layers: the inputs of each sign, or two bits a weight."""


@dataclass(frozen=True)
class COptions:
    """Kernels by the name of a ternary layer; those that are not named are chosen by their cost.

    `stored` weights lie in the source as the kernels read them: more constant data, no tables in memory.
    `integer` is the graph with integer activations, where these are asked for.
    """

    kernels: Mapping[str, str] = field(default_factory=dict)
    stored: bool = False
    integer: IntegerModel | None = None


# Cycles of a vector of eight cells: laid out as it is, laid out combined, added to a sum; and of beginning and ending
# the sums of an output's up to eight rows.
_LAY, _LAY_COMBINED, _ADD, _OUTPUT = 2.5, 1.5, 0.6, 25.0
# The same of a vector that is added in place; more where rows are not whole vectors and lie across cache lines more
# often; and what each KB adds by which what a tile reads exceeds a first-level cache of so many.
_ADD_IN_PLACE, _ASKEW, _GROWTH, _CACHE_KB = 0.7, 0.2, 0.007, 32
# Cycles of a listed input, of 64 coded weights, and the share of inputs that are not zero.
_LISTED, _CODED, _INPUTS = 0.8, 10.0, 0.9


def choose_tiles(name: str, weight: Trits, kinds: dict[str, Tiles], options: COptions) -> Tiles:
    """Of the ways to cut a convolution that are possible, the cheapest."""
    if name in options.kernels:
        return kinds[_named(name, options, tuple(CONVOLUTION_KERNELS), tuple(kinds))]
    return min(kinds.values(), key=lambda tiles: convolution_cycles(tiles, weight))


def convolution_cycles(tiles: Tiles, weight: Trits) -> float:
    """Of a whole map, roughly."""
    blocks = list(tiles.blocks())
    areas = sum(tiles.areas((channels.stop - channels.start) * tiles.block_groups) for _, channels, _ in blocks)
    laid = areas * tiles.row_vectors * tiles.plane_rows * (_LAY if tiles.combined == 1 else _LAY_COMBINED)
    outputs = sum(outputs.stop - outputs.start for outputs, _, _ in blocks) * math.ceil(tiles.vectors / 8)
    added = entries(tiles, weight) * tiles.vectors * _add_cycles(tiles)
    cycles: float = tiles.tiles * (laid + added + outputs * _OUTPUT)
    return cycles


def _add_cycles(tiles: Tiles) -> float:
    if tiles.border is None:
        return _ADD
    askew = _ASKEW if tiles.row_floats % CELLS else 0.0
    return _ADD_IN_PLACE + askew + _GROWTH * max(0.0, tiles.read_bytes / 1024 - _CACHE_KB)


def choose_linear(name: str, weight: Trits, listed: int, options: COptions) -> str:
    """`listed` weights are not zero."""
    if name in options.kernels:
        return _named(name, options, LINEAR_KERNELS, LINEAR_KERNELS)
    outputs, inputs = weight.shape
    coded = -(-outputs // 64) * inputs * _INPUTS * _CODED
    return "lists" if listed * _LISTED <= coded else "codes"


def _named(name: str, options: COptions, known: tuple[str, ...], possible: tuple[str, ...]) -> str:
    kind = options.kernels[name]
    if kind not in known:
        raise ExportError(f"{name}: {unknown_name('kernel', kind, known)}")
    if kind not in possible:
        raise ExportError(f"{name}: a layer of this size cannot have the kernel {kind!r}, only {', '.join(possible)}")
    return kind
