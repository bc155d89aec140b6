"""A model in integers: what the C export with `--activations int8` computes, defined exactly.

A value is an integer q from -127 to 127 that stands for q · unit, with one unit for each value: the largest magnitude
measured on training images, divided by 127. Sums are exact. A step turns them into values by a requantization
(requantize.py):

- The image: q = (image - mean) · factor in float32, limited, then rounded, halves away from zero.
- Ternary layers add and subtract. Other weights are integers from -127 to 127 with a unit for each output.
- Scale, bias, a residual and the limits of a ReLU are one requantization of the sum, so are Add, Multiply (of the
  product), ChannelAffine, and each part of a Concat.
- A maximum has its input's unit. An average is requantized by a fraction, rounded once.
- Other activations are a table of 255 values.
- Logits of a linear layer leave as integers of 25 bits times a power of two, which is exact in float32; other logits
  as float32(q) · float32(unit).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.graph import records as r
from sca_search.export.graph.fuse import Step, is_convolution, steps_of
from sca_search.export.graph.liveness import Living, living
from sca_search.export.graph.reference import apply
from sca_search.export.integer.requantize import (
    HIGHEST,
    LOGIT_LIMIT,
    Requantization,
    Scaling,
    logit_requantization,
    requantization,
)

AVERAGE_SHIFT = 16
_LARGEST_SUM = 2**31 - 1
_LOGIT_ROOM = 4  # logits may become this many times as large as measured

Weight = NDArray[np.int8]


@dataclass(frozen=True, eq=False)
class IntegerStep(Step):
    """A step with the integers that it needs."""

    weight: Weight | None = None
    requantizations: tuple[Requantization, ...] = ()  # of a Concat one for each part, of others one
    average_factor: int = 0  # over 2^AVERAGE_SHIFT
    table: Weight | None = None  # for inputs from -128 on
    is_logits: bool = False


@dataclass(frozen=True, eq=False)
class IntegerModel:
    """A graph with integer activations."""

    graph: r.Graph
    steps: tuple[IntegerStep, ...]
    largest: Mapping[str, float]  # value that each was made for
    input_factors: r.Floats  # of each channel: twice the values of a unit
    logit_unit: np.float32


def integer_model(graph: r.Graph, largest: Mapping[str, float]) -> IntegerModel:
    """The integers of a model from the largest magnitude of each value; ExportError if integers cannot express it."""
    steps = steps_of(graph)
    live = living(graph)
    units = _units(steps, largest)
    logits = _logit_step(graph, steps)
    logit_unit = _power_of_two(_LOGIT_ROOM * largest[graph.output] / LOGIT_LIMIT) if logits else units[graph.output]
    made = tuple(_integer_step(step, units, live, graph, logit_unit if step.name == logits else None) for step in steps)
    factors = (2 / (graph.std.astype(np.float64) * units[r.INPUT])).astype(np.float32)
    return IntegerModel(graph, made, largest, factors, np.float32(logit_unit))


def _units(steps: tuple[Step, ...], largest: Mapping[str, float]) -> dict[str, float]:
    units = {r.INPUT: _unit(largest[r.INPUT])}
    for step in steps:
        record = step.record
        same = isinstance(record, r.Reshape) or (isinstance(record, r.Pool | r.AdaptivePool) and record.kind == "max")
        units[step.name] = units[step.inputs[0]] if same else _unit(largest[step.name])
    return units


def _unit(largest: float) -> float:
    if not math.isfinite(largest):
        raise ExportError("the training images give NaN or infinity, so that the activations have no scale")
    return largest / HIGHEST if largest > 0 else 1.0


def _power_of_two(at_least: float) -> float:
    return 2.0 ** math.ceil(math.log2(at_least)) if at_least > 0 else 1.0


def _logit_step(graph: r.Graph, steps: tuple[Step, ...]) -> str | None:
    """The linear layer whose only use is as the logits, if there is one."""
    by_name = {step.name: step for step in steps}
    name = graph.output
    while isinstance(by_name[name].record, r.Reshape) and by_name[name].inputs[0] != r.INPUT:
        name = by_name[name].inputs[0]
    record = by_name[name].record
    uses = sum(step.inputs.count(name) for step in steps) + (name == graph.output)
    return name if isinstance(record, r.WeightRecord) and not is_convolution(record) and uses == 1 else None


def _integer_step(
    step: Step, units: Mapping[str, float], live: Mapping[str, Living], graph: r.Graph, logit_unit: float | None
) -> IntegerStep:
    """`logit_unit` if its sums become the logits."""
    record, unit = step.record, units[step.name]
    if not record.has_integers:
        raise ExportError(f"{record.name}: {type(record).__name__} has no kernel for integer activations")
    if isinstance(record, r.WeightRecord):
        return _weighted(step, units, live, logit_unit)
    ratios = [units[name] / unit for name in step.inputs]
    if isinstance(record, r.Activation):
        return IntegerStep(**vars(step), table=_table(record, units[step.inputs[0]], unit))
    if isinstance(record, r.Pool | r.AdaptivePool):
        return IntegerStep(**vars(step), average_factor=_average_factor(step, ratios[0], graph))
    scalings = _scalings(record, ratios, unit)
    return IntegerStep(**vars(step), requantizations=tuple(requantization(record.name, each) for each in scalings))


def _scalings(record: r.Record, ratios: list[float], unit: float) -> tuple[Scaling, ...]:
    """Of records that only requantize; `ratios` are the inputs' units in units of the result."""
    if isinstance(record, r.Add):
        return (Scaling.of_one(ratios[0], ratios[1]),)
    if isinstance(record, r.Multiply):
        return (Scaling.of_one(ratios[0] * ratios[1] * unit),)
    if isinstance(record, r.Concat):
        return tuple(map(Scaling.of_one, ratios))
    if isinstance(record, r.ChannelAffine):
        return (Scaling(record.scale.astype(np.float64) * ratios[0], record.bias.astype(np.float64) / unit),)
    return ()


def _table(record: r.Activation, input_unit: float, unit: float) -> Weight:
    inputs = np.arange(-HIGHEST - 1, HIGHEST + 1).astype(np.float64)
    values = np.rint(apply(record, [inputs * input_unit]) / unit)
    return np.clip(values, -HIGHEST, HIGHEST).astype(np.int8)


def _average_factor(step: Step, ratio: float, graph: r.Graph) -> int:
    record = step.record
    assert isinstance(record, r.Pool | r.AdaptivePool)
    if record.kind == "max":
        return 0
    # 2 · sum · factor has 64 bits: of 2^22 cells of 2^7 and a factor of 2^31.
    cells = math.prod(record.kernel) if isinstance(record, r.Pool) else math.prod(graph.shape_of(record.inputs[0])[1:])
    if ratio >= 2 ** (31 - AVERAGE_SHIFT) or cells > 2**22:
        raise ExportError(
            f"{record.name}: an average of {cells} cells is too large or too fine for integer activations"
        )
    return int(np.rint(ratio * 2**AVERAGE_SHIFT))


def _weighted(
    step: Step, units: Mapping[str, float], live: Mapping[str, Living], logit_unit: float | None
) -> IntegerStep:
    record, unit = step.record, logit_unit or units[step.name]
    assert isinstance(record, r.WeightRecord)
    if record.ternary:
        weight, weight_units = live[record.name].weight, np.ones(len(record.weight))
    else:
        weight, weight_units = quantized_weight(record.weight)
    sums = np.abs(weight.astype(np.int64)).reshape(len(weight), -1).sum(axis=1)
    if HIGHEST * int(sums.max()) > _LARGEST_SUM:
        raise ExportError(f"{record.name}: its sums can be larger than 32 bits hold")
    ratio = record.scale.astype(np.float64) * weight_units * units[step.inputs[0]] / unit
    other = units[step.inputs[-1]] / unit if step.residual else 0.0
    lowest, highest = (limit / unit for limit in step.limits)
    scaling = Scaling(ratio, record.bias.astype(np.float64) / unit, other, (lowest, highest))
    to = requantization(record.name, scaling) if logit_unit is None else logit_requantization(record.name, scaling)
    return IntegerStep(**vars(step), weight=weight, requantizations=(to,), is_logits=logit_unit is not None)


def quantized_weight(weight: Weight | r.Floats) -> tuple[Weight, NDArray[np.float64]]:
    """Integers from -127 to 127 and the unit per output: its largest weight, divided by 127."""
    values = weight.astype(np.float64)
    largest = np.abs(values).reshape(len(values), -1).max(axis=1)
    units = np.where(largest > 0, largest / HIGHEST, 1.0)
    return np.rint(values / units.reshape(-1, *[1] * (values.ndim - 1))).astype(np.int8), units
