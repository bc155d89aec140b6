"""The input of an export: a trained torch network and its metadata."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sca_search.data.input_spec import InputSpec
from sca_search.export.graph.records import ChannelAffine, Floats, Graph, WeightRecord
from sca_search.export.graph.trace import record_name, trace

Zeros = Mapping[str, tuple[int, int]]
"""Layer -> its zeros, its weights."""


@dataclass(frozen=True)
class Images:
    """Inputs before normalization, to compare formats on: their number, batches, and labels if known."""

    count: int
    batches: Callable[[], Iterable[Floats]]
    labels: Callable[[], NDArray[np.int64]] | None = None


@dataclass(frozen=True, eq=False)
class Network:
    """A baked network, its input, and the zeros that a study claims."""

    model: nn.Module
    input: InputSpec
    ternary_layers: tuple[str, ...] = ()
    claim: Zeros | None = None  # None: what is counted in the network itself
    images: Images | None = None  # a validation split, where there is one
    training: Images | None = None  # images that calibrate the scales of integer activations
    about: Mapping[str, Any] = field(default_factory=dict)  # goes into model files; JSON
    study_toml: str | None = None  # the study that found it; written next to the model files
    state_file: Path | None = None  # where its state was read from

    def graph(self) -> Graph:
        """Its records."""
        traced = trace(
            self.model,
            self.input.input_shape,
            ternary_layers=self.ternary_layers,
            mean=self.input.mean or None,
            std=self.input.std or None,
            class_names=self.input.classes,
            about=self.about,
        )
        return in_units(traced, self.input) if self.input.is_standardized else traced

    def claimed_zeros(self) -> Zeros:
        """By the names of records."""
        if self.claim is not None:
            return {record_name(name): count for name, count in self.claim.items()}
        weights = {name: self.model.get_parameter(f"{name}.weight") for name in self.ternary_layers}
        return {record_name(name): (int((weight == 0).sum()), weight.numel()) for name, weight in weights.items()}

    def normalized(self) -> nn.Module:
        """The network as a module that takes images before normalization."""
        return Normalized(self.model, self.input)


class Normalized(nn.Module):
    """A network that normalizes its input, and converts its outputs to the user's units, in evaluation mode."""

    mean: Tensor
    std: Tensor
    target_mean: Tensor | None
    target_std: Tensor | None

    def __init__(self, network: nn.Module, spec: InputSpec) -> None:
        super().__init__()
        channels, *sides = spec.input_shape
        by_channel = (-1, *[1] * len(sides))
        for name, values in (("mean", spec.mean or [0.0] * channels), ("std", spec.std or [1.0] * channels)):
            self.register_buffer(name, torch.tensor(values, dtype=torch.float32).view(by_channel))
        for name, units in (("target_mean", spec.target_mean), ("target_std", spec.target_std)):
            self.register_buffer(name, torch.tensor(units, dtype=torch.float32) if units else None)
        self.network = network
        self.eval()

    def forward(self, images: Tensor) -> Tensor:
        answers: Tensor = self.network((images - self.mean) / self.std)
        if self.target_mean is None or self.target_std is None:
            return answers
        return answers * self.target_std + self.target_mean


def in_units(graph: Graph, spec: InputSpec) -> Graph:
    """The graph with output · std + mean folded into its last layer, or as one more record if that is not possible."""
    shift, factor = (np.array(values, dtype=np.float32) for values in (spec.target_mean, spec.target_std))
    last = graph.record(graph.output)
    is_used = any(graph.output in record.inputs for record in graph.records)
    if isinstance(last, WeightRecord) and not is_used:
        answering = replace(last, scale=last.scale * factor, bias=last.bias * factor + shift)
        return replace(graph, records=tuple(answering if record is last else record for record in graph.records))
    denormalize = ChannelAffine(f"{last.name}_in_units", (last.name,), last.shape, factor, shift)
    return replace(graph, records=(*graph.records, denormalize), output=denormalize.name)
