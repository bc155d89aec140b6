"""Schedules of λ, α and sharpness during training: values that can be printed, compared and read from TOML.

    0.1                                                              constant
    { kind = "constant", value = 0.1 }                               the same
    { kind = "steps", value = 5e-8, factors = [[270, 50]] }          multiplied at epochs, as the paper does
    { kind = "ramp", first = 2, last = 100, start = 0, stop = 0.9, growth = "exponential" }
    { kind = "prior" }                                               α only: α(s) of the planned sparsity
    { kind = "tracked", rise = 0.5 }                                 α only: follows the layer's quantile

Start and stop of a ramp are fractions of training, so that its shape does not depend on the number of epochs; steps
are epochs.
"""

import math
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# Strict: `true` in TOML is not 1. An integer is still accepted as a float.
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]


def elapsed_fraction(epoch: float, epochs: int) -> float:
    """The fraction of training that has elapsed; 1 if there are no epochs."""
    return epoch / epochs if epochs else 1.0


def in_order(steps: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Return steps, pairs of an epoch and a factor, unchanged if their epochs rise."""
    epochs = [epoch for epoch, _ in steps]
    if epochs != sorted(set(epochs)):
        raise ValueError(f"must name each epoch once, in order, got {epochs}")
    return steps


class Table(BaseModel):
    """A table of a file: without unknown keys, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Constant(Table):
    kind: Literal["constant"] = "constant"
    value: NonNegativeFloat

    def at(self, epoch: float, epochs: int) -> float:  # noqa: ARG002 - all schedules have this signature
        return self.value


class Steps(Table):
    """A value that is multiplied by a factor at some epochs."""

    kind: Literal["steps"] = "steps"
    value: NonNegativeFloat
    factors: Annotated[tuple[tuple[NonNegativeFloat, NonNegativeFloat], ...], AfterValidator(in_order)]

    def at(self, epoch: float, epochs: int) -> float:  # noqa: ARG002
        return self.value * math.prod(factor for when, factor in self.factors if epoch >= when)


class Ramp(Table):
    """From `first` to `last` between the fractions `start` and `stop` of training."""

    kind: Literal["ramp"] = "ramp"
    first: NonNegativeFloat
    last: NonNegativeFloat
    start: Fraction = 0.0
    stop: Fraction = 1.0
    growth: Literal["linear", "exponential"] = "linear"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.stop < self.start:
            raise ValueError(f"stop must not be before start, got start {self.start} and stop {self.stop}")
        if self.growth == "exponential" and min(self.first, self.last) == 0:
            raise ValueError(f"first and last must be above 0 for exponential growth, got {self.first} and {self.last}")
        return self

    def at(self, epoch: float, epochs: int) -> float:
        fraction = elapsed_fraction(epoch, epochs)
        if fraction >= self.stop:
            return self.last
        if fraction <= self.start:
            return self.first
        ratio = (fraction - self.start) / (self.stop - self.start)
        if self.growth == "exponential":
            return float(self.first * (self.last / self.first) ** ratio)
        return self.first + (self.last - self.first) * ratio


class Tracked(Table):
    """α follows the quantile of |Θ| during training, so that the sparsity is the planned one at every step.

    `every` is the number of steps between updates: computing the quantile of a large layer costs as much as its
    convolution on a small image. `rise` is the fraction of training in which the sparsity increases from 0 to the
    planned value, fast at first and then slower (cubic, as in gradual pruning); 0: it is there from the start.
    """

    kind: Literal["tracked"] = "tracked"
    every: Annotated[int, Field(strict=True, ge=1)] = 1
    rise: Fraction = 0.0

    def sparsity_fraction(self, epoch: float, epochs: int) -> float:
        """The fraction of the planned sparsity at a (fractional) epoch."""
        fraction = elapsed_fraction(epoch, epochs)
        return 1.0 if fraction >= self.rise else 1.0 - (1.0 - fraction / self.rise) ** 3


class FromPrior(Table):
    """α is the value of the prior for the planned sparsity at the start of training, and stays constant."""

    kind: Literal["prior"] = "prior"


def _number_is_constant(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"kind": "constant", "value": value} if is_number else value


_Schedule = TypeVar("_Schedule")
_ByKind = Annotated[Annotated[_Schedule, Field(discriminator="kind")], BeforeValidator(_number_is_constant)]
Schedule = _ByKind[Constant | Steps | Ramp]
AlphaSchedule = _ByKind[Constant | Steps | Ramp | Tracked | FromPrior]
