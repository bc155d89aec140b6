"""The latency of a network as a function of its non-zeros: a sum over its layers, each with a measured curve.

A calibration times the whole network at several sparsities, step by step. The steps of a variant are scaled so that
their sum is the time of the whole prediction without time stamps; a layer's curve then interpolates its scaled times,
made monotone, since more weights never mean less work.
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
Sparsity = Annotated[float, Field(ge=0, lt=1)]


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class StepTime(_Table):
    """The low time of a step; ternary layers also have a kernel and weights."""

    step: str
    low_us: Annotated[float, Field(ge=0)]
    spread: Spread
    kernel: str | None = None
    weights: Positive | None = None
    nonzeros: Positive | None = None


class VariantTime(_Table):
    """The network at one sparsity: its low time in total, and that of its steps in order."""

    sparsity: Sparsity
    low_us: Annotated[float, Field(gt=0)]
    spread: Spread
    steps: Annotated[tuple[StepTime, ...], Field(min_length=1)]


class Calibration(_Table):
    """The output of the calibration program."""

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
    kernels: tuple[str, ...]  # of the layer at each point

    def at(self, nonzeros: float) -> float:
        """Linear interpolation; extrapolated for sparser layers, but never below 0; constant for denser layers."""
        if nonzeros >= self.nonzeros[0] or len(self.nonzeros) == 1:
            return float(np.interp(nonzeros, self.nonzeros, self.microseconds))
        slope = (self.microseconds[1] - self.microseconds[0]) / (self.nonzeros[1] - self.nonzeros[0])
        return max(0.0, self.microseconds[0] - slope * (self.nonzeros[0] - nonzeros))


@dataclass(frozen=True)
class LatencyModel:
    """A network's time from the non-zeros of its ternary layers."""

    fixed_us: float  # everything but ternary layers
    layers: Mapping[str, LayerLatency]
    spread: float  # of the calibration, relative: between the halves of its samples, in the worst variant
    about: Mapping[str, str]

    def predict_us(self, nonzeros: Mapping[str, float]) -> float:
        """Per image on one thread, from the non-zeros of every ternary layer."""
        return self.fixed_us + sum(layer.at(nonzeros[name]) for name, layer in self.layers.items())

    def range_us(self, least_nonzeros: Mapping[str, int]) -> tuple[float, float]:
        """The fastest, every layer with its minimum of non-zeros, and the slowest, without zeros."""
        dense = {name: layer.weights for name, layer in self.layers.items()}
        return self.predict_us(least_nonzeros), self.predict_us(dense)


def latency_model(calibration: Calibration) -> LatencyModel:
    """The latency model of a calibration."""
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
            name: str(getattr(calibration, name))
            for name in ("cpu", "compiler", "kernels", "network", "threads", "batch")
        },
    )


def _scale(variant: VariantTime) -> float:
    steps = sum(step.low_us for step in variant.steps)
    return variant.low_us / steps if steps > 0 else 1.0


def _layer(steps: list[StepTime], scales: list[float]) -> LayerLatency:
    """A layer's curve from its step in every variant; equal numbers of non-zeros are averaged to one point."""
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
