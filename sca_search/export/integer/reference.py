"""Runs a model in integers, with torch and numpy: the reference that the C export must equal bit for bit; and measures
the largest values, from which the scales follow.

Layers are summed in float64, which represents all integers below 2^53: their sums are exact in any order.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sca_search.export.graph import records as r
from sca_search.export.graph.reference import pooled
from sca_search.export.graph.torch_module import RecordNetwork
from sca_search.export.integer.model import AVERAGE_SHIFT, IntegerModel, IntegerStep
from sca_search.export.integer.requantize import HIGHEST, Integers, requantize


def evaluate_integer(model: IntegerModel, images: r.Floats) -> r.Floats:
    """The logits of a batch of images before normalization."""
    logits: r.Floats = every_integer(model, images)[model.graph.output].astype(np.float32) * model.logit_unit
    return logits


class IntegerNetwork(nn.Module):
    """The same as a torch module."""

    def __init__(self, model: IntegerModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return torch.from_numpy(evaluate_integer(self.model, images.numpy().astype(np.float32)))


def every_integer(model: IntegerModel, images: r.Floats) -> dict[str, Integers]:
    """The integers of each step, and of the input."""
    values = {r.INPUT: quantized_input(model, images)}
    for step in model.steps:
        inputs = [values[name] for name in step.inputs]
        values[step.name] = _MEANING[type(step.record)](step, step.record, *inputs)
    return values


def quantized_input(model: IntegerModel, images: r.Floats) -> Integers:
    """The image in integers. In float32 there is a subtraction and a multiplication; the rest is exact."""
    mean, factors = (
        values.reshape(1, -1, *[1] * (images.ndim - 2)) for values in (model.graph.mean, model.input_factors)
    )
    doubled = np.clip((images.astype(np.float32) - mean) * factors, np.float32(-2 * HIGHEST), np.float32(2 * HIGHEST))
    halves = np.trunc(doubled).astype(np.int64)
    rounded: Integers = np.sign(halves) * ((np.abs(halves) + 1) // 2)
    return rounded


def _weighted(step: IntegerStep, record: r.Convolution | r.Linear, x: Integers, *residual: Integers) -> Integers:
    assert step.weight is not None
    weight, values = torch.from_numpy(step.weight.astype(np.float64)), torch.from_numpy(x.astype(np.float64))
    if isinstance(record, r.Convolution):
        top, bottom, left, right = record.padding
        padded = F.pad(values, (left, right, top, bottom))
        sums = F.conv2d(padded, weight, None, record.stride, 0, record.dilation, record.groups)
    else:
        sums = F.linear(values, weight)
    exact: Integers = np.rint(sums.numpy()).astype(np.int64)  # some convolution algorithms round
    return requantize(exact, step.requantizations[0], *residual)


def _pool(step: IntegerStep, record: r.Pool | r.AdaptivePool, x: Integers) -> Integers:
    return pooled(record, x, lambda sums, count: average(sums, count, step.average_factor))


def average(sums: Integers, count: int, factor: int) -> Integers:
    """sum / count · factor / 2^AVERAGE_SHIFT to the nearest integer, ties rounded up."""
    divisor = count << AVERAGE_SHIFT
    return np.clip((2 * sums * factor + divisor) // (2 * divisor), -HIGHEST, HIGHEST)


_MEANING: dict[type[r.Record], Callable[..., Any]] = {
    r.Convolution: _weighted,
    r.Linear: _weighted,
    r.Pool: _pool,
    r.AdaptivePool: _pool,
    r.Activation: lambda step, _, x: step.table[x + HIGHEST + 1].astype(np.int64),
    r.Add: lambda step, _, left, right: requantize(left, step.requantizations[0], right),
    r.Multiply: lambda step, _, value, gate: requantize(value * gate, step.requantizations[0]),
    r.Concat: lambda step, _, *parts: np.concatenate(list(map(requantize, parts, step.requantizations)), axis=1),
    r.Reshape: lambda _, record, x: x.reshape(len(x), *record.shape),
    r.ChannelAffine: lambda step, _, x: requantize(x, step.requantizations[0]),
}


CALIBRATION_IMAGES = 512
_PORTION = 64


def largest_values(graph: r.Graph, images: Iterable[r.Floats]) -> dict[str, float]:
    """The largest absolute value of each record, and of the input, over batches of images before normalization."""
    network = RecordNetwork(graph)
    largest = dict.fromkeys([r.INPUT, *(record.name for record in graph.records)], 0.0)

    def measure(name: str, value: Tensor) -> None:
        largest[name] = max(largest[name], float(value.abs().max()))

    for record, step in zip(graph.records, network.steps, strict=True):
        step.register_forward_hook(lambda _module, _inputs, value, name=record.name: measure(name, value))
    with torch.inference_mode():
        for batch in images:
            for part in torch.split(torch.from_numpy(batch), _PORTION):
                measure(r.INPUT, (part - network.mean) / network.std)
                network(part)
    return largest
