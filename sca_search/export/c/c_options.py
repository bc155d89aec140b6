"""What a user may decide about the C export."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
