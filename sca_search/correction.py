"""What earlier trials reached corrects what the prior is asked for.

The closed form supposes a strong pull: asked for a sparsity, a layer reaches it. A weak pull drifts. So each finished
trial leaves an observation a layer (asked, reached, strength), and a smooth fit of reached against asked, made monotone
by isotonic regression, tells what to ask for so that the plan is reached. The fit is only trusted while it foretells
observations that it has not seen better than the closed form does.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.isotonic import IsotonicRegression

# Fewer observations than this cannot tell a drift from noise.
LEAST_OBSERVATIONS = 3
# How far an observation reaches: in log-odds of the sparsity (0.9 and 0.97 are 1.3 apart) and in ln λ.
_REACH_OF_SPARSITY = 1.0
_REACH_OF_STRENGTH = math.log(4.0)
# The closed form's own weight beside the observations: far from all of them it is right again.
_WEIGHT_OF_CLOSED_FORM = 0.05
# Log-odds are finite between these.
_LOWEST = 1e-4
_GRID = np.linspace(0.0, 1.0, 401)


@dataclass(frozen=True)
class Observation:
    """What one layer of one trial was asked for, and what rounding alone gave it."""

    layer: str
    asked: float
    reached: float
    strength: float


def reached_for(observations: Sequence[Observation], strength: float) -> NDArray[np.float64]:
    """The sparsity that a layer will reach for each asked one of the grid; never falling."""
    fitted = IsotonicRegression(y_min=0.0, y_max=1.0).fit_transform(_GRID, _drifted(_GRID, observations, strength))
    fitted[0], fitted[-1] = 0.0, 1.0  # nothing and everything need no pull
    return np.asarray(fitted, dtype=np.float64)


def asked_for(observations: Sequence[Observation], sparsity: float, strength: float) -> float:
    """What to ask for so that one layer reaches a sparsity: the plan itself while the fit is not trusted."""
    return asked_for_all(observations, [sparsity], strength)[0]


def asked_for_all(observations: Sequence[Observation], sparsities: Sequence[float], strength: float) -> list[float]:
    """`asked_for` of several sparsities; the fit is made once."""
    if not trusted(observations):
        return list(sparsities)
    reached = reached_for(observations, strength)
    # A stretch that is flat has many answers; the slightest slope picks its middle and keeps the map one to one.
    return [float(asked) for asked in np.interp(sparsities, reached + 1e-9 * _GRID, _GRID)]


def trusted(observations: Sequence[Observation]) -> bool:
    """Whether the fit, each observation left out in turn, foretells it better than the closed form."""
    if len(observations) < LEAST_OBSERVATIONS:
        return False
    closed_form = math.fsum(abs(each.reached - each.asked) for each in observations)
    return leave_one_out_error(observations) * len(observations) < closed_form


def leave_one_out_error(observations: Sequence[Observation]) -> float:
    """Mean distance of what the others foretell from what was reached."""
    errors = []
    for index, left_out in enumerate(observations):
        others = [*observations[:index], *observations[index + 1 :]]
        foretold = np.interp(left_out.asked, _GRID, reached_for(others, left_out.strength))
        errors.append(abs(float(foretold) - left_out.reached))
    return math.fsum(errors) / len(errors)


def _drifted(asked: NDArray[np.float64], observations: Sequence[Observation], strength: float) -> NDArray[np.float64]:
    """Each asked sparsity, moved by the mean drift in log-odds of the observations near it."""
    if not observations:
        return asked
    seen = _log_odds(np.array([each.asked for each in observations]))
    drift = _log_odds(np.array([each.reached for each in observations])) - seen
    pull = np.log([max(each.strength, 1e-12) for each in observations])
    far = (pull - math.log(max(strength, 1e-12))) / _REACH_OF_STRENGTH
    apart = (_log_odds(asked)[:, None] - seen[None, :]) / _REACH_OF_SPARSITY
    weights = np.exp(-0.5 * (apart**2 + far[None, :] ** 2))
    mean_drift = (weights @ drift) / (weights.sum(axis=1) + _WEIGHT_OF_CLOSED_FORM)
    drifted: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-(_log_odds(asked) + mean_drift)))
    return drifted


def _log_odds(sparsity: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(sparsity, _LOWEST, 1.0 - _LOWEST)
    odds: NDArray[np.float64] = np.log(inside / (1.0 - inside))
    return odds
