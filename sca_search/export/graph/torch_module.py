"""Records -> a torch module that is ready to use and needs no other classes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sca_search.export.graph import records as r


class RecordNetwork(nn.Module):
    """A graph of records in torch; the weights are buffers and move with the module."""

    mean: Tensor
    std: Tensor

    def __init__(self, graph: r.Graph) -> None:
        super().__init__()
        self.input_shape = graph.input_shape
        self.class_names = graph.class_names
        self.about = dict(graph.about)
        ones = [1] * (len(graph.input_shape) - 1)
        self.register_buffer("mean", _tensor(graph.mean).view(-1, *ones))
        self.register_buffer("std", _tensor(graph.std).view(-1, *ones))
        self.steps = nn.ModuleList(_Step(record) for record in graph.records)
        self._wiring = [(record.name, record.inputs) for record in graph.records]
        self._output = graph.output
        self._last_uses = graph.last_uses()
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        if tuple(images.shape[1:]) != self.input_shape:
            raise ValueError(f"images must have the shape (batch, {self.input_shape}), got {tuple(images.shape)}")
        values = {r.INPUT: (images - self.mean) / self.std}
        for place, (step, (name, inputs)) in enumerate(zip(self.steps, self._wiring, strict=True)):
            values[name] = step(*[values[each] for each in inputs])
            for used in {*inputs, name}:  # values without further uses are freed
                if self._last_uses.get(used, place) <= place:
                    del values[used]
        return values[self._output]


class _Step(nn.Module):
    """One record: its arrays as buffers, its meaning from the table below."""

    weight: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, record: r.Record) -> None:
        super().__init__()
        self.record = record
        for field, values in record.arrays.items():
            by_channel = (-1, *[1] * (len(record.shape) - 1))
            self.register_buffer(field, _tensor(values).view(values.shape if field == "weight" else by_channel))

    def forward(self, *inputs: Tensor) -> Tensor:
        return _MEANING[type(self.record)](self, self.record, *inputs)

    def scaled(self, sums: Tensor) -> Tensor:
        return sums * self.scale + self.bias


def _tensor(values: Any) -> Tensor:
    return torch.from_numpy(values.astype(np.float32))


def _convolution(step: _Step, record: r.Convolution, x: Tensor) -> Tensor:
    top, bottom, left, right = record.padding
    if top != bottom or left != right:
        x, top, left = F.pad(x, (left, right, top, bottom)), 0, 0
    return step.scaled(F.conv2d(x, step.weight, None, record.stride, (top, left), record.dilation, record.groups))


def _pool(_step: _Step, record: r.Pool, x: Tensor) -> Tensor:
    padding = (record.padding[0], record.padding[2])
    if record.kind == "max":
        return F.max_pool2d(x, record.kernel, record.stride, padding, ceil_mode=record.ceil_mode)
    return F.avg_pool2d(x, record.kernel, record.stride, padding, record.ceil_mode, record.count_include_pad)


def _adaptive_pool(_step: _Step, record: r.AdaptivePool, x: Tensor) -> Tensor:
    size = (record.shape[1], record.shape[2])
    pooled: Tensor = F.adaptive_max_pool2d(x, size) if record.kind == "max" else F.adaptive_avg_pool2d(x, size)
    return pooled


def _activation(_step: _Step, record: r.Activation, x: Tensor) -> Tensor:
    if record.kind == "leaky_relu":
        return F.leaky_relu(x, record.slope)
    if record.kind == "gelu_tanh":
        return F.gelu(x, approximate="tanh")
    function: Callable[[Tensor], Tensor] = getattr(F, record.kind)  # torch has the same names
    return function(x)


_MEANING: dict[type[r.Record], Callable[..., Tensor]] = {
    r.Convolution: _convolution,
    r.Linear: lambda step, _record, x: step.scaled(F.linear(x, step.weight)),
    r.Pool: _pool,
    r.AdaptivePool: _adaptive_pool,
    r.Activation: _activation,
    r.Add: lambda _step, _record, left, right: left + right,
    r.Multiply: lambda _step, _record, value, gate: value * gate,
    r.Concat: lambda _step, _record, *parts: torch.cat(parts, dim=1),
    r.Reshape: lambda _step, record, x: x.reshape(len(x), *record.shape),
    r.ChannelAffine: lambda step, _record, x: step.scaled(x),
}
