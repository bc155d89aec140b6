"""Which kernel a ternary layer gets: the one that needs fewest cycles by a simple count, unless the user named one.

The counts were fitted to timings on an x86-64 processor with AVX2; `tune` times the kernels on the machine at hand.
"""

from sca_search.errors import ExportError, unknown_name
from sca_search.export.c_options import CONVOLUTION_KERNELS, LINEAR_KERNELS, COptions
from sca_search.export.c_tiles import Tiles, entries
from sca_search.export.records import Trits

# Cycles of a row of eight cells: laid out in a plane, added to a sum, kept between blocks.
_LAY, _ADD, _KEEP = 1.3, 0.55, 2.0
# Cycles of a listed input, of 64 coded weights, and the share of inputs that are not zero.
_LISTED, _CODED, _INPUTS = 0.8, 10.0, 0.8


def choose_tiles(name: str, weight: Trits, kinds: dict[str, Tiles], options: COptions) -> Tiles:
    """Of the ways to cut a convolution that are possible, the cheapest."""
    if name in options.kernels:
        return kinds[_named(name, options, tuple(CONVOLUTION_KERNELS), tuple(kinds))]
    return min(kinds.values(), key=lambda tiles: convolution_cycles(tiles, weight))


def convolution_cycles(tiles: Tiles, weight: Trits) -> float:
    """Of a whole map, roughly."""
    laid = sum(
        tiles.areas((channels.stop - channels.start) * tiles.block_groups) * tiles.planes
        for _, channels, _ in tiles.blocks()
    )
    kept = tiles.outputs * (-(-tiles.group_inputs // tiles.block) - 1)
    added = entries(tiles, weight)
    return tiles.tiles * (laid * tiles.plane_rows * _LAY + (added * _ADD + kept * _KEEP) * tiles.rows)


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
