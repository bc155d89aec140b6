"""The records as the steps of a C program: operations that follow a layer are fused with it where possible.

A convolution includes a residual sum that follows it, and it or a linear layer the limits of a ReLU or ReLU6.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sca_search.export.graph.records import INPUT, Activation, Add, Convolution, Graph, Record, Shape, WeightRecord

_LIMITS = {"relu": (0.0, math.inf), "relu6": (0.0, 6.0)}


@dataclass(frozen=True)
class Step:
    """A record, its inputs, and the name of its value."""

    record: Record
    inputs: tuple[str, ...]
    name: str
    residual: bool = False  # the last of the inputs is added to the others' result
    limits: tuple[float, float] = (-math.inf, math.inf)

    @property
    def shape(self) -> Shape:
        return self.record.shape


_Front = Callable[[str], Step | None]


def is_convolution(record: Record) -> bool:
    """Whether the convolution kernels are used: a convolution of a single cell is a linear layer."""
    if not isinstance(record, Convolution):
        return False
    single = record.shape[1:] == record.weight.shape[2:] == (1, 1)
    return not (single and record.stride == (1, 1) and record.padding == (0, 0, 0, 0) and record.groups == 1)


def steps_of(graph: Graph) -> tuple[Step, ...]:
    """In the order of execution."""
    uses = graph.uses()
    places = {INPUT: -1}
    steps: list[Step] = []

    def front(name: str) -> Step | None:
        """The step of a weight record with a single use and without limits so far."""
        if name == INPUT or uses[name] > 1:
            return None
        step = steps[places[name]]
        return step if isinstance(step.record, WeightRecord) and step.limits == (-math.inf, math.inf) else None

    for record in graph.records:
        fused = None
        if isinstance(record, Add):
            fused = _with_residual(record, front, places)
        elif isinstance(record, Activation) and record.kind in _LIMITS and (step := front(record.inputs[0])):
            fused = replace(step, limits=_LIMITS[record.kind])
        if fused is None:
            places[record.name] = len(steps)
            steps.append(Step(record, record.inputs, record.name))
        else:
            place = places[fused.name]
            steps[place] = replace(fused, name=record.name)
            places[record.name] = place
    return tuple(steps)


def _with_residual(record: Add, front: _Front, places: dict[str, int]) -> Step | None:
    """The later of two convolutions adds the earlier value, which is available when its own is computed."""
    later, earlier = sorted(record.inputs, key=lambda name: -places[name])
    step = front(later)
    if step is None or step.residual or places[later] == places[earlier] or not is_convolution(step.record):
        return None
    return replace(step, inputs=(*step.inputs, earlier), residual=True)
