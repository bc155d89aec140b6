"""A candidate: one point of the search space, with everything that is needed to repeat its training.

Schedules of λ and α during training: values that can be printed, compared and read from TOML.

    0.1                                                              constant
    { kind = "constant", value = 0.1 }                               the same
    { kind = "steps", value = 5e-8, factors = [[270, 50]] }          multiplied at epochs, as the paper does
    { kind = "ramp", first = 1, last = 40, start = 0, stop = 0.9, interpolation = "exponential" }
    { kind = "prior" }                                               α only: α(s) of the planned sparsity
    { kind = "tracked", start = 0, rise = 0.5 }                      α only: follows the layer's quantile

Start and stop of a ramp are fractions of training, so that its shape does not depend on the number of epochs; steps
are epochs.
"""

import math
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveFloat,
    model_validator,
)

from sca_search.config.names import SCA
from sca_search.config.types import EpochFactors, Fraction, NonNegativeFloat, Table, in_order


def elapsed_fraction(epoch: float, epochs: int) -> float:
    """The fraction of training that has elapsed; 1 if there are no epochs."""
    return epoch / epochs if epochs else 1.0


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
    interpolation: Literal["linear", "exponential"] = "linear"

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if self.stop < self.start:
            raise ValueError(f"stop must not be before start, got start {self.start} and stop {self.stop}")
        if self.interpolation == "exponential" and min(self.first, self.last) == 0:
            raise ValueError(
                f"first and last must be above 0 for exponential interpolation, got {self.first} and {self.last}"
            )
        return self

    def at(self, epoch: float, epochs: int) -> float:
        fraction = elapsed_fraction(epoch, epochs)
        if fraction >= self.stop:
            return self.last
        if fraction <= self.start:
            return self.first
        ratio = (fraction - self.start) / (self.stop - self.start)
        if self.interpolation == "exponential":
            return float(self.first * (self.last / self.first) ** ratio)
        return self.first + (self.last - self.first) * ratio


class Tracked(Table):
    """α follows the quantile of |Θ| during training, so that the sparsity is the planned one at every step.

    `every` is the number of steps between updates: computing the quantile of a large layer costs as much as its
    convolution on a small image. The sparsity increases from 0 to the planned value between the fractions `start` and
    `start + rise` of training, fast at first and then slower (cubic, as in gradual pruning); with a rise of 0 it is the
    planned one from `start` on.
    """

    kind: Literal["tracked"] = "tracked"
    every: Annotated[int, Field(strict=True, ge=1)] = 1
    start: Fraction = 0.0
    rise: Fraction = 0.0

    def sparsity_fraction(self, epoch: float, epochs: int) -> float:
        """The fraction of the planned sparsity at a (fractional) epoch."""
        since = elapsed_fraction(epoch, epochs) - self.start
        if since < 0.0:
            return 0.0
        return 1.0 if since >= self.rise else 1.0 - (1.0 - since / self.rise) ** 3


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


Form = Literal["decoupled", "paper", "straight-through", "no-tanh"]
Gradient = Literal["straight-through", "tanh", "flow"]
Sparsity = Annotated[float, Field(ge=0, lt=1)]
# Root mean square of Θ at the start: the first value that a study tries.
START_SPREAD = 0.6


class Candidate(BaseModel):
    """One training configuration: planned sparsities, schedules and learning rates."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sparsity: Sparsity  # planned, overall
    method: str = SCA
    form: Form = "decoupled"  # of SCA
    # Planned sparsity per layer; layers that are not named get the overall sparsity.
    allocation: dict[str, Sparsity] = {}
    spread: PositiveFloat | None = START_SPREAD  # root mean square of Θ at the start; None: that of the weights
    # Fraction of the way from the root mean square of the weights to `spread`, in logarithms.
    rescaling: Fraction = 1.0
    from_dense: bool = True  # start from the dense network, or from a new initialization
    alpha: AlphaSchedule = FromPrior()
    exact: bool = True  # whether the exact step sets the planned number of zeros, or rounding alone determines it
    adaptive: bool = False  # whether zeros move between layers during training
    # Dimensionless: u = 4αλ in the decoupled form, λ relative to the ratio of the two gradients at the start in the
    # paper's form; or λ itself.
    strength: Schedule
    strength_is_lambda: bool = False
    gradient: Gradient = "straight-through"  # of the decoupled form
    # Schedules of single layers.
    layer_alpha: dict[str, AlphaSchedule] = {}
    layer_strength: dict[str, Schedule] = {}
    learning_rate: PositiveFloat
    latent_learning_rate: PositiveFloat
    learning_rate_steps: EpochFactors = ()  # empty: those of the study, or one-cycle
    epochs: NonNegativeInt
    frozen_epochs: NonNegativeInt
    frozen_learning_rate: NonNegativeFloat
    # Weight of the distillation loss, and the temperature of the teacher.
    distillation: Fraction = 0.0
    temperature: PositiveFloat = 2.0
    seed: NonNegativeInt = 0

    def sparsity_of(self, layer: str) -> float:
        return self.allocation.get(layer, self.sparsity)

    def alpha_of(self, layer: str) -> AlphaSchedule:
        return self.layer_alpha.get(layer, self.alpha)

    def strength_of(self, layer: str, epoch: float) -> float:
        return self.layer_strength.get(layer, self.strength).at(epoch, self.epochs)


def default_alpha(form: Form) -> FromPrior | Tracked:
    """Constant α in the paper's form; otherwise the threshold follows the quantile of the latents."""
    return FromPrior() if form == "paper" else Tracked()
