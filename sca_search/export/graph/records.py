"""A trained network as plain records in execution order: numpy arrays and integers, no torch.

Every format is written from these records and every reader returns them. A record takes the values of earlier records
by name and produces one value; shapes are without the batch: (channels, height, width) for maps, (features,) for
vectors. The value named `INPUT` is the image after normalization, (image - mean) / std per channel. An input may also
be a sequence (channels, length); a Reshape then makes it a map of height 1.

BatchNorm is not a record: it is folded into the scale and bias of the preceding layer, or is a ChannelAffine if there
is none. Dropout is left out.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

Shape = tuple[int, ...]
Pair = tuple[int, int]  # along height, along width
Sides = tuple[int, int, int, int]  # top, bottom, left, right
Floats = NDArray[np.float32]
Trits = NDArray[np.int8]

INPUT = "input"
"""The name of the normalized image; no record has it."""
ARRAYS = ("weight", "scale", "bias")
"""The fields of records that are arrays; a packed file has each as a tensor, named record.field."""

ActivationKind = Literal[
    "relu",  # max(x, 0)
    "relu6",  # min(max(x, 0), 6)
    "hardsigmoid",  # relu6(x + 3) / 6
    "hardswish",  # x · hardsigmoid(x)
    "sigmoid",  # 1 / (1 + exp(-x))
    "silu",  # x · sigmoid(x)
    "gelu",  # x · (1 + erf(x / √2)) / 2
    "gelu_tanh",  # x · (1 + tanh(√(2/π) · (x + 0.044715 x³))) / 2
    "tanh",
    "leaky_relu",  # x where x > 0, else slope · x
]


@dataclass(frozen=True, eq=False)
class Record:
    """A unique name, the names of the inputs, the shape of the value."""

    cellwise: ClassVar[bool] = False  # each cell from the cells of the inputs at its place, which it may overwrite
    channelwise: ClassVar[bool] = False  # each channel from the channels of the inputs at its place
    has_integers: ClassVar[bool] = True  # whether there are kernels for integer activations

    name: str
    inputs: tuple[str, ...]
    shape: Shape

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """Those of its fields that are arrays."""
        return {name: getattr(self, name) for name in ARRAYS if hasattr(self, name)}


@dataclass(frozen=True, eq=False)
class WeightRecord(Record):
    """A sum over weights, then scale and bias of each output channel: y[o] = scale[o] · Σ w[o, …]·x[…] + bias[o].

    The weight is int8 where the layer is ternary (only -1, 0, 1) and float32 where it is not.
    """

    weight: Trits | Floats
    scale: Floats  # (outputs,)
    bias: Floats  # (outputs,)

    @property
    def ternary(self) -> bool:
        return self.weight.dtype == np.int8

    @property
    def zeros(self) -> int:
        """How many of the weights are zero."""
        return int(self.weight.size - np.count_nonzero(self.weight))


@dataclass(frozen=True, eq=False)
class Convolution(WeightRecord):
    """Weight (outputs, inputs / groups, height, width); the border is filled with zeros. Correlation, as in torch."""

    stride: Pair = (1, 1)
    padding: Sides = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1


@dataclass(frozen=True, eq=False)
class Linear(WeightRecord):
    """Weight (outputs, inputs), between vectors."""


@dataclass(frozen=True, eq=False)
class Pool(Record):
    """The maximum or the average of windows; window i begins at i · stride - padding.

    A maximum is over the map without its padding. An average divides by the number of cells in the map, with
    `count_include_pad` in the map and its padding; never by cells beyond, where `ceil_mode` lets a last window extend
    over the edge. `ceil_mode` only determines the number of windows, which the shape has as well.
    """

    channelwise = True

    kind: Literal["max", "average"]
    kernel: Pair
    stride: Pair
    padding: Sides = (0, 0, 0, 0)
    ceil_mode: bool = False
    count_include_pad: bool = False  # of averages only


@dataclass(frozen=True, eq=False)
class AdaptivePool(Record):
    """The maximum or the average of n windows over a map of H rows: ⌊iH/n⌋ to ⌈(i+1)H/n⌉; columns likewise.

    The shape has the number of windows; (channels, 1, 1) is the global pool.
    """

    channelwise = True

    kind: Literal["max", "average"]


@dataclass(frozen=True, eq=False)
class Activation(Record):
    """A function of each value; see `ActivationKind` for their formulas."""

    cellwise = channelwise = True

    kind: ActivationKind
    slope: float = 0.0  # of leaky_relu only


@dataclass(frozen=True, eq=False)
class Add(Record):
    """The sum of two values of equal shape."""

    cellwise = channelwise = True


@dataclass(frozen=True, eq=False)
class Multiply(Record):
    """The product of two values: of equal shape, or a map and, second, a gate (channels, 1, 1) for its channels."""

    cellwise = channelwise = True


@dataclass(frozen=True, eq=False)
class Concat(Record):
    """Two or more values concatenated along their first axis, the channels."""


@dataclass(frozen=True, eq=False)
class Reshape(Record):
    """The same values in the same (row-major) order under another shape; a flatten is one."""


@dataclass(frozen=True, eq=False)
class ChannelAffine(Record):
    """scale[c] · x[c] + bias[c] along the first axis: a BatchNorm with no layer to fold into."""

    cellwise = channelwise = True

    scale: Floats
    bias: Floats


RECORDS: tuple[type[Record], ...] = (
    *WeightRecord.__subclasses__(),
    *(kind for kind in Record.__subclasses__() if kind is not WeightRecord),
)
"""All types of records. Every exporter has a table with an entry for each."""


@dataclass(frozen=True, eq=False)
class Graph:
    """A whole model: image in, logits out.

    `about` is JSON for people and for verification: the study's name, goal, trial and accuracies. It has no effect on
    what the model computes.
    """

    input_shape: Shape
    mean: Floats  # (input_shape[0],)
    std: Floats  # (input_shape[0],), above zero
    records: tuple[Record, ...]  # each after its inputs
    output: str  # the record whose value is the logits, shape (classes,)
    class_names: tuple[str, ...]
    about: Mapping[str, Any] = field(default_factory=dict)

    def record(self, name: str) -> Record:
        """The record of that name."""
        return next(record for record in self.records if record.name == name)

    def shape_of(self, name: str) -> Shape:
        """The shape of a value: a record's or the input's."""
        return self.input_shape if name == INPUT else self.record(name).shape

    @property
    def ternary_layers(self) -> tuple[WeightRecord, ...]:
        """The layers whose weights are trits."""
        return tuple(record for record in self.records if isinstance(record, WeightRecord) and record.ternary)

    @property
    def zeros(self) -> dict[str, tuple[int, int]]:
        """The zeros and the weights of each ternary layer."""
        return {layer.name: (layer.zeros, layer.weight.size) for layer in self.ternary_layers}

    @property
    def sparsity(self) -> float:
        """Zeros among all ternary weights; 0 where there are none."""
        zeros, weights = (sum(count[index] for count in self.zeros.values()) for index in (0, 1))
        return zeros / weights if weights else 0.0

    def uses(self) -> Counter[str]:
        """How often each value is used; the output is used once more."""
        return Counter([*(name for record in self.records for name in record.inputs), self.output])

    def last_uses(self) -> dict[str, int]:
        """For each value, the index of the last record that uses it; for the output, one past the last record."""
        uses = {name: place for place, record in enumerate(self.records) for name in record.inputs}
        return uses | {self.output: len(self.records)}


@dataclass(frozen=True, eq=False)
class TestVectors:
    """Images before normalization, and the logits that the model must produce for them."""

    __test__ = False  # pytest takes names that begin with Test for tests

    images: Floats  # (count, *input_shape)
    logits: Floats  # (count, classes)
