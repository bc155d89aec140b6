"""The options of the C export, and the choice of a kernel per ternary layer: the fewest cycles by a simple count,
unless the user names one.

The counts were fitted to timings on an x86-64 processor with AVX2; `tune` times the kernels on this machine.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c.tables import entries
from sca_search.export.c.tiles import CELLS, AnyTiles, IntegerTiles, Tiles
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


# Cycles of a listed input and of 64 coded weights, and the fraction of inputs that are not zero.
_LINEAR = (0.8, 10.0, 0.9)
_INTEGER_LINEAR = (0.9, 6.0, 0.8)


def choose_tiles(name: str, kinds: Mapping[str, AnyTiles], options: COptions) -> AnyTiles:
    """The cheapest tiling of a convolution."""
    known = INTEGER_CONVOLUTION_KERNELS if options.integer else CONVOLUTION_KERNELS
    named = _named(name, options, tuple(known), tuple(kinds))
    return kinds[named] if named else min(kinds.values(), key=_cycles)


def _cycles(tiles: AnyTiles) -> float:
    """Approximate cycles for a whole map."""
    blocks = list(tiles.blocks())
    joined = sum(outputs.stop - outputs.start for outputs, _, _ in blocks)
    channels = [channels.stop - channels.start for _, channels, _ in blocks]
    if isinstance(tiles, IntegerTiles):
        laid = float(sum(map(tiles.planes, channels))) * tiles.plane_cells / (2 * CELLS) * _INTEGER_LAY
        cycles = laid + (entries(tiles) * _INTEGER_ADD + joined * _INTEGER_JOIN) * math.ceil(tiles.rows / 2)
    else:
        areas = sum(tiles.areas(count * tiles.block_groups) for count in channels)
        laid = areas * tiles.row_vectors * tiles.plane_rows * (_LAY if tiles.combined == 1 else _LAY_COMBINED)
        vectors = tiles.rows * tiles.cells // CELLS
        cycles = laid + entries(tiles) * vectors * _add_cycles(tiles) + joined * math.ceil(vectors / 8) * _OUTPUT
    return float(tiles.tiles * cycles)


def _add_cycles(tiles: Tiles) -> float:
    if tiles.border is None:
        return _ADD
    askew = _ASKEW if tiles.row_floats % CELLS else 0.0
    return _ADD_IN_PLACE + askew + _GROWTH * max(0.0, tiles.read_bytes / 1024 - _CACHE_KB)


def choose_linear(name: str, weight: Trits, options: COptions) -> str:
    """One of LINEAR_KERNELS, for a weight (outputs, inputs)."""
    if named := _named(name, options, LINEAR_KERNELS, LINEAR_KERNELS):
        return named
    outputs, inputs = weight.shape
    listed, coded, nonzero_inputs = _INTEGER_LINEAR if options.integer else _LINEAR
    cost = -(-outputs // 64) * inputs * nonzero_inputs * coded
    return "lists" if int(np.count_nonzero(weight)) * listed <= cost else "codes"


def _named(name: str, options: COptions, known: tuple[str, ...], possible: tuple[str, ...]) -> str | None:
    kind = options.kernels.get(name)
    if kind is None or kind in possible:
        return kind
    if kind not in known:
        raise ExportError(f"{name}: {unknown_name('kernel', kind, known)}")
    raise ExportError(f"{name}: a layer of this size cannot have the kernel {kind!r}, only {', '.join(possible)}")
