"""A candidate: one point of the search, everything that its training needs to be repeated."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from sca_search.schedule import AlphaSchedule, FromPrior, Ramp, Schedule, Tracked

Sparsity = Annotated[float, Field(ge=0, lt=1)]


class Candidate(BaseModel):
    """What is trained: the plan of the zeros, the schedules and the learning rates."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sparsity: Sparsity  # planned, overall
    form: Literal["paper", "sharpened"] = "sharpened"
    # Share of zeros a layer; a layer that is not named gets the overall sparsity.
    split: dict[str, Sparsity] = {}
    spread: PositiveFloat = 0.6  # root mean square of Θ at the start, where the scale is free
    alpha: AlphaSchedule = FromPrior()
    # λ in units of the ratio of the two gradients at the start (dimensionless), or λ itself.
    strength: Schedule
    strength_is_lambda: bool = False
    sharpness: Schedule
    # Layers whose schedules are their own.
    layer_strength: dict[str, Schedule] = {}
    layer_sharpness: dict[str, Schedule] = {}
    learning_rate: PositiveFloat
    latent_learning_rate: PositiveFloat
    epochs: PositiveInt
    frozen_epochs: NonNegativeInt
    frozen_learning_rate: NonNegativeFloat
    # Share of the loss that asks for the dense network's answers instead of the labels, softened by a temperature.
    distillation: Annotated[float, Field(ge=0, le=1)] = 0.0
    temperature: PositiveFloat = 2.0
    seed: NonNegativeInt = 0

    def sparsity_of(self, layer: str) -> float:
        return self.split.get(layer, self.sparsity)

    def strength_of(self, layer: str, epoch: float) -> float:
        return self.layer_strength.get(layer, self.strength).at(epoch, self.epochs)

    def sharpness_of(self, layer: str, epoch: float) -> float:
        """β of a layer; the paper's form has none."""
        if self.form == "paper":
            return 1.0
        return self.layer_sharpness.get(layer, self.sharpness).at(epoch, self.epochs)


def sharpened(last: float = 100.0, first: float = 2.0, stop: float = 0.9) -> Ramp:
    """β from soft to nearly a step, exponentially: equal factors in equal times."""
    return Ramp(first=first, last=last, stop=stop, growth="exponential")


def default_alpha(form: Literal["paper", "sharpened"]) -> FromPrior | Tracked:
    """The paper's basins stand still; the sharpened threshold follows the weights that it divides."""
    return Tracked() if form == "sharpened" else FromPrior()
