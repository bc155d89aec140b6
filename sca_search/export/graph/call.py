"""One call of a traced network as the translation sees it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from torch.fx import Node

from sca_search.errors import ExportError
from sca_search.export.graph.records import Record, Shape, Sides

BATCH = 2
"""Images that a network is traced with: two and not one, so that mixing them shows in a shape."""


def as_map(shape: Shape) -> Shape:
    """A sequence (channels, length) as a map (channels, 1, length): the same values in the same order."""
    return (shape[0], 1, shape[1]) if len(shape) == 2 else shape


@dataclass(frozen=True)
class Value:
    """What a record gives, by its name; `padding` is zeros put around it that the next convolution takes over."""

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
    """A call, the layer that makes it, its arguments (constants are tensors), and the way to add records."""

    node: Node
    place: str
    arguments: list[Any]
    options: dict[str, Any]
    keep: Callable[[Record], Value]

    def __getitem__(self, name: str) -> Any:
        """An argument by the name that ATen's signature has for it, or its default."""
        for index, argument in enumerate(self.node.target._schema.arguments):  # type: ignore[union-attr]
            if argument.name == name:
                given = index < len(self.arguments)
                return self.arguments[index] if given else self.options.get(name, argument.default_value)
        raise AssertionError(f"{self.node.target} has no argument {name}")

    def value(self, name: str) -> Value:
        """An argument that must depend on the input."""
        given = self[name]
        if not isinstance(given, Value):
            self.refuse(f"needs a value that depends on the input as its {name}")
        return self.unpadded(given)

    def unpadded(self, value: Value) -> Value:
        """The value, unless zeros are to be put around it."""
        if any(value.padding):
            self.refuse("follows a padding with zeros, which only a convolution can take over")
        return value

    @property
    def sizes(self) -> tuple[int, ...]:
        """The result's shape as torch has it, the batch included."""
        result = self.node.meta["val"]
        return tuple((result[0] if isinstance(result, tuple | list) else result).shape)

    @property
    def shape(self) -> Shape:
        """The result's shape without the batch; a sequence counts as a map one pixel high."""
        sizes = self.sizes
        if len(sizes) not in (2, 3, 4) or sizes[0] != BATCH:
            self.refuse(f"gives neither maps nor vectors, one an image: two images became the shape {sizes}")
        return as_map(sizes[1:])

    def add(self, record: type[Record], inputs: Sequence[Value], shape: Shape, **fields: Any) -> Value:
        """A record of that type under the layer's name."""
        return self.keep(record(self.place, tuple(value.name for value in inputs), shape, **fields))

    def refuse(self, why: str) -> NoReturn:
        """Says which layer and operation it is, and why not."""
        raise ExportError(f"{self.place}: the operation {self.node.target} {why}")
