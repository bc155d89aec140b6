"""A candidate: one point of the search, everything that its training needs to be repeated."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from sca_search.config.names import SCA
from sca_search.config.schedule import AlphaSchedule, FromPrior, Ramp, Schedule, Share, Tracked, share_of
from sca_search.config.types import EpochFactors

Form = Literal["paper", "sharpened", "straight-through", "no-tanh"]
Sparsity = Annotated[float, Field(ge=0, lt=1)]
# Root mean square of Θ at the start: what a study tries first.
START_SPREAD = 0.6


class Candidate(BaseModel):
    """What is trained: the plan of the zeros, the schedules and the learning rates."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sparsity: Sparsity  # planned, overall
    method: str = SCA
    form: Form = "sharpened"  # of SCA
    # Share of zeros a layer; a layer that is not named gets the overall sparsity.
    split: dict[str, Sparsity] = {}
    spread: PositiveFloat | None = START_SPREAD  # root mean square of Θ at the start; None: as the weights are
    # How far Θ goes there from the weights as they are: the logarithm of its root mean square goes this share.
    rescaling: Share = 1.0
    from_dense: bool = True  # starts from the dense network; else from an initialisation of its own
    alpha: AlphaSchedule = FromPrior()
    # The share of zeros that the prior is asked for, a layer, where what earlier trials reached says that it should
    # differ from the plan.
    asked: dict[str, Sparsity] = {}
    exact: bool = True  # the zeros are counted out to the plan; else rounding alone decides how many there are
    # λ in units of the ratio of the two gradients at the start (dimensionless), or λ itself.
    strength: Schedule
    strength_is_lambda: bool = False
    sharpness: Schedule
    gradient_sharpness: PositiveFloat | None = None  # β of the gradient at most; None: always the forward pass's own
    # Layers whose schedules are their own.
    layer_alpha: dict[str, AlphaSchedule] = {}
    layer_strength: dict[str, Schedule] = {}
    layer_sharpness: dict[str, Schedule] = {}
    # Share of the training after which weights are rounded and held, the most decided first; 1: none before the end.
    hold_from: Share = 1.0
    learning_rate: PositiveFloat
    latent_learning_rate: PositiveFloat
    learning_rate_steps: EpochFactors = ()  # empty: the study's, or one cycle
    epochs: NonNegativeInt
    frozen_epochs: NonNegativeInt
    frozen_learning_rate: NonNegativeFloat
    # Share of the loss that asks for the dense network's answers instead of the labels, softened by a temperature.
    distillation: Share = 0.0
    temperature: PositiveFloat = 2.0
    seed: NonNegativeInt = 0

    def held_share(self, epoch: float) -> float:
        """How many of the weights are trits for good at a (fractional) epoch: cubic, the last ones take longest."""
        share = share_of(epoch, self.epochs)
        if self.hold_from >= 1.0 or share <= self.hold_from:
            return 0.0
        return 1.0 - (1.0 - (share - self.hold_from) / (1.0 - self.hold_from)) ** 3

    def sparsity_of(self, layer: str) -> float:
        return self.split.get(layer, self.sparsity)

    def asked_of(self, layer: str) -> float:
        return self.asked.get(layer, self.sparsity_of(layer))

    def alpha_of(self, layer: str) -> AlphaSchedule:
        return self.layer_alpha.get(layer, self.alpha)

    def strength_of(self, layer: str, epoch: float) -> float:
        return self.layer_strength.get(layer, self.strength).at(epoch, self.epochs)

    def sharpness_of(self, layer: str, epoch: float) -> float:
        """β of a layer; only the sharpened form has one."""
        if self.form != "sharpened":
            return 1.0
        return self.layer_sharpness.get(layer, self.sharpness).at(epoch, self.epochs)


def sharpened(last: float = 100.0, first: float = 2.0, start: float = 0.0, stop: float = 0.9) -> Ramp:
    """β from soft to nearly a step, exponentially: equal factors in equal times."""
    return Ramp(first=first, last=last, start=start, stop=stop, growth="exponential")


def default_alpha(form: Form) -> FromPrior | Tracked:
    """The paper's basins stand still; a threshold follows the weights that it divides."""
    return FromPrior() if form == "paper" else Tracked()
