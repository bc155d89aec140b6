"""The options of the C export, and the choice of a kernel per ternary layer: the fewest cycles by a simple count,
unless the user names one.

The counts were fitted to timings on an x86-64 processor with AVX2; `tune` times the kernels on the machine at hand.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c.int8_tiles import IntegerTiles
from sca_search.export.c.tiles import CELLS, Tiles, entries
from sca_search.export.graph.records import Trits
from sca_search.export.integer.model import IntegerModel

INTEGER_CONVOLUTION_KERNELS = {"lists": 1, "combined": 3}
"""Kernels of ternary convolutions: how many columns of a kernel its planes combine."""

CONVOLUTION_KERNELS = INTEGER_CONVOLUTION_KERNELS | {"in-place": 1}
"""The same with float activations: maps that have a border can be read where they are."""

LINEAR_KERNELS = ("lists", "codes")
"""Kernels of ternary linear layers: the inputs of each sign, or two bits per weight."""


@dataclass(frozen=True)
class COptions:
    """Kernels by the name of a ternary layer; those that are not named are chosen by their cost.

    `stored` weights lie in the source as the kernels read them: more constant data, no tables in memory.
    `integer` is the graph with integer activations, if these are requested.
    """

    kernels: Mapping[str, str] = field(default_factory=dict)
    stored: bool = False
    integer: IntegerModel | None = None


# Cycles of a vector of eight cells: laid out as it is, laid out combined, added to a sum; and of beginning and ending
# the sums of an output's up to eight rows.
_LAY, _LAY_COMBINED, _ADD, _OUTPUT = 2.5, 1.5, 0.6, 25.0
# The same of a vector that is added in place; more where rows are not whole vectors and lie across cache lines more
# often; and what each KB adds by which the bytes read per tile exceed a first-level cache of this many KB.
_ADD_IN_PLACE, _ASKEW, _GROWTH, _CACHE_KB = 0.7, 0.2, 0.007, 32
# Integer activations: cycles of two rows of eight cells, laid out in a plane, added to a sum, joined with other sums or
# finished.
_INTEGER_LAY, _INTEGER_ADD, _INTEGER_JOIN = 2.0, 0.55, 8.0


@dataclass(frozen=True)
class LinearCosts:
    """Cycles of a listed input and of 64 coded weights, the fraction of inputs that are not zero, and how many listed
    inputs are summed before they join the others."""

    listed: float
    coded: float
    nonzero_inputs: float
    most_listed: float


FLOAT_LINEAR = LinearCosts(0.8, 10.0, 0.9, 512)  # listed inputs are summed in eight parts
INTEGER_LINEAR = LinearCosts(0.9, 6.0, 0.8, math.inf)  # integer sums are exact


def choose_tiles(name: str, kinds: Mapping[str, Tiles], options: COptions) -> Tiles:
    """The cheapest of the possible ways to cut a convolution."""
    named = _named(name, options, tuple(CONVOLUTION_KERNELS), tuple(kinds))
    return kinds[named] if named else min(kinds.values(), key=convolution_cycles)


def choose_integer_tiles(name: str, kinds: Mapping[str, IntegerTiles], options: COptions) -> IntegerTiles:
    """The same with integer activations."""
    named = _named(name, options, tuple(INTEGER_CONVOLUTION_KERNELS), tuple(kinds))
    return kinds[named] if named else min(kinds.values(), key=integer_convolution_cycles)


def convolution_cycles(tiles: Tiles) -> float:
    """Of a whole map, roughly."""
    blocks = list(tiles.blocks())
    areas = sum(tiles.areas((channels.stop - channels.start) * tiles.block_groups) for _, channels, _ in blocks)
    laid = areas * tiles.row_vectors * tiles.plane_rows * (_LAY if tiles.combined == 1 else _LAY_COMBINED)
    outputs = sum(outputs.stop - outputs.start for outputs, _, _ in blocks) * math.ceil(tiles.vectors / 8)
    added = entries(tiles) * tiles.vectors * _add_cycles(tiles)
    cycles: float = tiles.tiles * (laid + added + outputs * _OUTPUT)
    return cycles


def _add_cycles(tiles: Tiles) -> float:
    if tiles.border is None:
        return _ADD
    askew = _ASKEW if tiles.row_floats % CELLS else 0.0
    return _ADD_IN_PLACE + askew + _GROWTH * max(0.0, tiles.read_bytes / 1024 - _CACHE_KB)


def integer_convolution_cycles(tiles: IntegerTiles) -> float:
    """Of a whole map, roughly."""
    vectors = math.ceil(tiles.rows / 2)
    blocks = list(tiles.blocks())
    planes = sum(tiles.planes(channels.stop - channels.start) for _, channels, _ in blocks)
    joined = sum(outputs.stop - outputs.start for outputs, _, _ in blocks)
    laid = float(planes) * tiles.plane_cells / (2 * CELLS) * _INTEGER_LAY
    cycles: float = tiles.tiles * (laid + (entries(tiles) * _INTEGER_ADD + joined * _INTEGER_JOIN) * vectors)
    return cycles


def choose_linear(name: str, weight: Trits, costs: LinearCosts, options: COptions) -> str:
    """One of LINEAR_KERNELS, for a weight (outputs, inputs)."""
    if named := _named(name, options, LINEAR_KERNELS, LINEAR_KERNELS):
        return named
    outputs, inputs = weight.shape
    coded = -(-outputs // 64) * inputs * costs.nonzero_inputs * costs.coded
    return "lists" if int(np.count_nonzero(weight)) * costs.listed <= coded else "codes"


def _named(name: str, options: COptions, known: tuple[str, ...], possible: tuple[str, ...]) -> str | None:
    kind = options.kernels.get(name)
    if kind is None or kind in possible:
        return kind
    if kind not in known:
        raise ExportError(f"{name}: {unknown_name('kernel', kind, known)}")
    raise ExportError(f"{name}: a layer of this size cannot have the kernel {kind!r}, only {', '.join(possible)}")
