"""A candidate: one point of the search space, with everything that is needed to repeat its training."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat

from sca_search.config.names import SCA
from sca_search.config.schedule import AlphaSchedule, Fraction, FromPrior, Ramp, Schedule, Tracked
from sca_search.config.types import EpochFactors

Form = Literal["paper", "sharpened", "straight-through", "no-tanh"]
Sparsity = Annotated[float, Field(ge=0, lt=1)]
# Root mean square of Θ at the start: what a study tries first.
START_SPREAD = 0.6


class Candidate(BaseModel):
    """What is trained: planned sparsities, schedules and learning rates."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    sparsity: Sparsity  # planned, overall
    method: str = SCA
    form: Form = "sharpened"  # of SCA
    # Planned sparsity per layer; layers that are not named get the overall sparsity.
    split: dict[str, Sparsity] = {}
    spread: PositiveFloat | None = START_SPREAD  # root mean square of Θ at the start; None: that of the weights
    # Fraction of the way from the root mean square of the weights to `spread`, in logarithms.
    rescaling: Fraction = 1.0
    from_dense: bool = True  # start from the dense network, or from a new initialisation
    alpha: AlphaSchedule = FromPrior()
    exact: bool = True  # whether the exact step sets the planned number of zeros, or rounding alone determines it
    # λ in units of the ratio of the two gradients at the start (dimensionless), or λ itself.
    strength: Schedule
    strength_is_lambda: bool = False
    sharpness: Schedule
    gradient_sharpness: PositiveFloat | None = None  # maximum β in the gradient; None: that of the forward pass
    # Schedules of single layers.
    layer_alpha: dict[str, AlphaSchedule] = {}
    layer_strength: dict[str, Schedule] = {}
    layer_sharpness: dict[str, Schedule] = {}
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
        return self.split.get(layer, self.sparsity)

    def alpha_of(self, layer: str) -> AlphaSchedule:
        return self.layer_alpha.get(layer, self.alpha)

    def strength_of(self, layer: str, epoch: float) -> float:
        return self.layer_strength.get(layer, self.strength).at(epoch, self.epochs)

    def sharpness_of(self, layer: str, epoch: float) -> float:
        """β of a layer; 1 unless the form is sharpened."""
        if self.form != "sharpened":
            return 1.0
        return self.layer_sharpness.get(layer, self.sharpness).at(epoch, self.epochs)


def sharpened(last: float = 100.0, first: float = 2.0, start: float = 0.0, stop: float = 0.9) -> Ramp:
    """β that rises exponentially from soft to nearly a step."""
    return Ramp(first=first, last=last, start=start, stop=stop, growth="exponential")


def default_alpha(form: Form) -> FromPrior | Tracked:
    """Constant α in the paper's form; otherwise the threshold follows the quantile of the latents."""
    return FromPrior() if form == "paper" else Tracked()
