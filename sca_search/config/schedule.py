"""Schedules of λ, α and sharpness over a training: small values that print, compare and read from TOML.

    0.1                                                              constant
    { kind = "constant", value = 0.1 }                               the same
    { kind = "steps", value = 5e-8, factors = [[270, 50]] }          multiplied at epochs, as the paper does
    { kind = "ramp", first = 2, last = 100, start = 0, stop = 0.9, growth = "exponential" }
    { kind = "prior" }                                               α only: α(s) of the planned sparsity
    { kind = "tracked", rise = 0.5 }                                 α only: follows the layer's quantile

A ramp's start and stop are shares of the training, so it keeps its shape when epochs change; steps are epochs.
"""

import math
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

# Strict: a TOML `true` is no 1. Whole numbers still pass where a float is wanted.
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0)]
Share = Annotated[float, Field(strict=True, ge=0, le=1)]


def share_of(epoch: float, epochs: int) -> float:
    """How much of a training is over; one without epochs is over when it begins."""
    return epoch / epochs if epochs else 1.0


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Constant(_Value):
    """The same value throughout."""

    kind: Literal["constant"] = "constant"
    value: NonNegativeFloat

    def at(self, epoch: float, epochs: int) -> float:  # noqa: ARG002 - every schedule answers the same question
        return self.value


class Steps(_Value):
    """A value multiplied by a factor at each of some epochs."""

    kind: Literal["steps"] = "steps"
    value: NonNegativeFloat
    factors: tuple[tuple[NonNegativeFloat, NonNegativeFloat], ...]

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        epochs = [epoch for epoch, _ in self.factors]
        if epochs != sorted(set(epochs)):
            raise ValueError(f"factors must name each epoch once, in order, got {epochs}")
        return self

    def at(self, epoch: float, epochs: int) -> float:  # noqa: ARG002
        return self.value * math.prod(factor for when, factor in self.factors if epoch >= when)


class Ramp(_Value):
    """From `first` to `last` between the shares `start` and `stop` of the training."""

    kind: Literal["ramp"] = "ramp"
    first: NonNegativeFloat
    last: NonNegativeFloat
    start: Share = 0.0
    stop: Share = 1.0
    growth: Literal["linear", "exponential"] = "linear"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.stop < self.start:
            raise ValueError(f"stop must not come before start, got start {self.start} and stop {self.stop}")
        if self.growth == "exponential" and min(self.first, self.last) == 0:
            raise ValueError(f"exponential growth needs first and last above 0, got {self.first} and {self.last}")
        return self

    def at(self, epoch: float, epochs: int) -> float:
        share = share_of(epoch, epochs)
        if share >= self.stop:
            return self.last
        if share <= self.start:
            return self.first
        way = (share - self.start) / (self.stop - self.start)
        if self.growth == "exponential":
            return float(self.first * (self.last / self.first) ** way)
        return self.first + (self.last - self.first) * way


class Tracked(_Value):
    """α follows the quantile of |Θ| while it trains, so that the planned sparsity holds at every moment.

    `every` is the number of steps between two looks: a selection over a large layer costs as much as its
    convolution on a small image. `rise` is the share of the training in which the sparsity climbs from 0 to the
    plan, fast at first and slower the fewer weights are left (cubic, as in gradual pruning); 0: it holds at once.
    """

    kind: Literal["tracked"] = "tracked"
    every: Annotated[int, Field(strict=True, ge=1)] = 1
    rise: Share = 0.0

    def share_at(self, epoch: float, epochs: int) -> float:
        """How much of the planned sparsity holds at a (fractional) epoch."""
        share = share_of(epoch, epochs)
        return 1.0 if share >= self.rise else 1.0 - (1.0 - share / self.rise) ** 3


class FromPrior(_Value):
    """α stays where the prior puts it for the planned sparsity when training begins."""

    kind: Literal["prior"] = "prior"


def _number_is_constant(given: object) -> object:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return {"kind": "constant", "value": given} if is_number else given


Schedule = Annotated[
    Annotated[Constant | Steps | Ramp, Field(discriminator="kind")], BeforeValidator(_number_is_constant)
]
AlphaSchedule = Annotated[
    Annotated[Constant | Steps | Ramp | Tracked | FromPrior, Field(discriminator="kind")],
    BeforeValidator(_number_is_constant),
]
