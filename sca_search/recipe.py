"""A recipe: one point that is trained as it stands instead of searched, as the paper gives it.

    [recipe]
    epochs = 370                        # the full length; fewer `train.epochs` shorten everything in proportion
    alpha = 0.1
    strength_lambda = 5e-8
    lambda_steps = [[270, 50]]          # at an epoch of the full length, by a factor
    learning_rate = 0.005
    learning_rate_steps = [[120, 0.1], [270, 0.1]]
    initialisation = "pretrained"

A study with a recipe has no goal: its trials are seeds of this one point, and the zeros are as they land.
"""

from itertools import accumulate
from operator import mul
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sca_search.schedule import NonNegativeFloat

PositiveFloat = Annotated[float, Field(strict=True, gt=0)]
PositiveInt = Annotated[int, Field(strict=True, ge=1, le=10**9)]
# Products of these, as steps and shortening make them, are still numbers.
_MOST = 1e30
Measure = Annotated[PositiveFloat, Field(le=_MOST)]


def _in_order(steps: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    epochs = [epoch for epoch, _ in steps]
    if epochs != sorted(set(epochs)):
        raise ValueError(f"must name each epoch once, in order, got {epochs}")
    if any(number > _MOST for number in (*epochs, *accumulate((factor for _, factor in steps), mul))):
        raise ValueError(f"must have epochs and products of factors of at most {_MOST:g}, got {list(steps)}")
    return steps


EpochFactors = Annotated[tuple[tuple[NonNegativeFloat, Measure], ...], AfterValidator(_in_order)]


class RecipeSpec(BaseModel):
    """The paper's values for one network on one data set; epochs are those of the full length."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    epochs: PositiveInt
    images: PositiveInt | None = None  # of an epoch of the full length; fewer (data.train_limit) shorten it as well
    alpha: NonNegativeFloat
    strength_lambda: Measure  # λ itself
    lambda_steps: EpochFactors = ()
    learning_rate: Measure
    learning_rate_steps: EpochFactors = ()  # empty: one cycle
    optimizer: Literal["adam"] = "adam"
    initialisation: Literal["xavier", "pretrained"] = "xavier"
    tanh: bool = True  # else W = Θ without bounds: the paper's ablation
    # Root mean square of Θ at the start. None: as the weights are at full length, rescaled the more the shorter it is.
    spread: PositiveFloat | None = None
