"""One call of a traced network, as the input of its translation."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.fx import Node

from sca_search.errors import ExportError
from sca_search.export.graph.records import Record, Shape, Sides

BATCH = 2
"""Batch size for tracing: two and not one, so that mixing images shows in a shape."""


def as_map(shape: Shape) -> Shape:
    """A sequence (channels, length) as a map (channels, 1, length): the same values in the same order."""
    return (shape[0], 1, shape[1]) if len(shape) == 2 else shape


@dataclass(frozen=True)
class Value:
    """The value of a record, by name; `padding` is zeros around it, which the next convolution absorbs."""

    name: str
    shape: Shape
    padding: Sides = (0, 0, 0, 0)

    @property
    def padded_shape(self) -> Shape:
        """The shape with the zeros around it, as torch has it."""
        if not any(self.padding):
            return self.shape
        top, bottom, left, right = self.padding
        channels, height, width = self.shape
        return (channels, top + height + bottom, left + width + right)


def depends_on_input(argument: Any) -> bool:
    """Whether an argument of a call is, or holds, a value of the graph."""
    if isinstance(argument, list | tuple):
        return any(map(depends_on_input, argument))
    return isinstance(argument, Value)


@dataclass(frozen=True)
class Call:
    """A call, the layer that makes it, its arguments (constants are tensors), and a function that adds records."""

    node: Node
    place: str
    arguments: list[Any]
    options: dict[str, Any]
    keep: Callable[[Record], Value]

    def __getitem__(self, name: str) -> Any:
        """An argument by its name in ATen's signature, or its default."""
        for index, argument in enumerate(self.node.target._schema.arguments):  # type: ignore[union-attr]
            if argument.name == name:
                positional = index < len(self.arguments)
                return self.arguments[index] if positional else self.options.get(name, argument.default_value)
        raise AssertionError(f"{self.node.target} has no argument {name}")

    def value(self, name: str) -> Value:
        """An argument that must depend on the input."""
        value = self[name]
        if not isinstance(value, Value):
            self.reject(f"needs a value that depends on the input as its {name}")
        return self.unpadded(value)

    def unpadded(self, value: Value) -> Value:
        """The value, which must not have padding."""
        if any(value.padding):
            self.reject("follows a padding with zeros, which only a convolution can absorb")
        return value

    @property
    def sizes(self) -> tuple[int, ...]:
        """The result's shape in torch, with the batch."""
        result = self.node.meta["val"]
        return tuple((result[0] if isinstance(result, tuple | list) else result).shape)

    @property
    def shape(self) -> Shape:
        """The result's shape without the batch; a sequence counts as a map one pixel high."""
        sizes = self.sizes
        if len(sizes) not in (2, 3, 4) or sizes[0] != BATCH:
            self.reject(f"must give one map or vector per image: two images became the shape {sizes}")
        return as_map(sizes[1:])

    def add(self, record: type[Record], inputs: Sequence[Value], shape: Shape, **fields: Any) -> Value:
        """A record of that type under the layer's name."""
        return self.keep(record(self.place, tuple(value.name for value in inputs), shape, **fields))

    def reject(self, why: str) -> NoReturn:
        """ExportError with the layer, the operation and the reason."""
        raise ExportError(f"{self.place}: the operation {self.node.target} {why}")
