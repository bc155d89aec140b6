"""How long a network takes at given numbers of non-zeros: a sum over its layers, each a curve that was measured.

A calibration times the whole network at several sparsities, step by step. The steps of a variant are scaled so that
their sum is the time of the whole prediction, which no time stamps interrupted; a layer's curve then goes through its
scaled times, made monotone, since a weight more is never work less.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from scipy.optimize import isotonic_regression

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Spread = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, lt=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StepTime(_Table):
    """The low time of a step; what is said of weights is said of ternary layers alone."""

    step: str
    low_us: Annotated[float, Field(ge=0)]
    spread: Spread
    kernel: str | None = None
    weights: Positive | None = None
    nonzeros: Positive | None = None


class VariantTime(_Table):
    """The network at one sparsity: its low time as a whole, and that of its steps in order."""

    sparsity: Share
    low_us: Annotated[float, Field(gt=0)]
    spread: Spread
    steps: Annotated[tuple[StepTime, ...], Field(min_length=1)]


class Calibration(_Table):
    """What the program of a calibration prints."""

    format: str
    version: int
    network: str
    kernels: str
    threads: Positive
    batch: Positive
    cpu: str
    compiler: str
    samples: Positive
    noisy_samples: Count
    variants: Annotated[tuple[VariantTime, ...], Field(min_length=2)]


@dataclass(frozen=True)
class LayerLatency:
    """A ternary layer's time by its non-zeros."""

    layer: str
    weights: int
    nonzeros: tuple[int, ...]  # rising
    microseconds: tuple[float, ...]  # never falling
    kernels: tuple[str, ...]  # what the layer had there

    def at(self, nonzeros: float) -> float:
        """Straight from point to point; sparser than all of them, straight on but never below 0; denser, the last."""
        if nonzeros >= self.nonzeros[0] or len(self.nonzeros) == 1:
            return float(np.interp(nonzeros, self.nonzeros, self.microseconds))
        slope = (self.microseconds[1] - self.microseconds[0]) / (self.nonzeros[1] - self.nonzeros[0])
        return max(0.0, self.microseconds[0] - slope * (self.nonzeros[0] - nonzeros))


@dataclass(frozen=True)
class LatencyModel:
    """A network's time, by the non-zeros of its ternary layers."""

    fixed_us: float  # all that is no ternary layer
    layers: Mapping[str, LayerLatency]
    spread: float  # of the calibration, relative: between the halves of its samples, in the worst variant
    about: Mapping[str, str]

    def predict_us(self, nonzeros: Mapping[str, float]) -> float:
        """Of one image on one thread; a number for every ternary layer."""
        return self.fixed_us + sum(layer.at(nonzeros[name]) for name, layer in self.layers.items())

    def range_us(self, least_nonzeros: Mapping[str, int]) -> tuple[float, float]:
        """The fastest, every layer with the fewest non-zeros that it must keep, and the slowest, none of them zero."""
        dense = {name: layer.weights for name, layer in self.layers.items()}
        return self.predict_us(least_nonzeros), self.predict_us(dense)


def latency_model(calibration: Calibration) -> LatencyModel:
    """The model that a calibration gives."""
    scales = [_scale(variant) for variant in calibration.variants]
    fixed = [
        scale * sum(step.low_us for step in variant.steps if step.weights is None)
        for scale, variant in zip(scales, calibration.variants, strict=True)
    ]
    places = [place for place, step in enumerate(calibration.variants[0].steps) if step.weights is not None]
    layers = [_layer([variant.steps[place] for variant in calibration.variants], scales) for place in places]
    return LatencyModel(
        fixed_us=float(np.median(fixed)),
        layers={layer.layer: layer for layer in layers},
        spread=max(variant.spread for variant in calibration.variants),
        about={
            "cpu": calibration.cpu,
            "compiler": calibration.compiler,
            "kernels": calibration.kernels,
            "network": calibration.network,
            "threads": str(calibration.threads),
            "batch": str(calibration.batch),
        },
    )


def _scale(variant: VariantTime) -> float:
    steps = sum(step.low_us for step in variant.steps)
    return variant.low_us / steps if steps > 0 else 1.0


def _layer(steps: list[StepTime], scales: list[float]) -> LayerLatency:
    """A layer's curve from its step in every variant; what has the same number of non-zeros counts as one point."""
    first = steps[0]
    times: dict[int, list[float]] = {}
    for step, scale in zip(steps, scales, strict=True):
        assert step.nonzeros is not None
        times.setdefault(step.nonzeros, []).append(step.low_us * scale)
    nonzeros = sorted(times)
    kernels = {step.nonzeros: step.kernel or "" for step in steps}
    monotone = isotonic_regression([float(np.mean(times[n])) for n in nonzeros]).x
    assert first.weights is not None
    return LayerLatency(
        first.step, first.weights, tuple(nonzeros), tuple(map(float, monotone)), tuple(kernels[n] for n in nonzeros)
    )
