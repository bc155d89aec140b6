"""What earlier trials reached corrects what the prior is asked for.

The closed form supposes a strong pull: asked for a sparsity, a layer reaches it. A weak pull drifts. So each finished
trial leaves an observation a layer (asked, reached, strength), and a smooth fit of reached against asked, made monotone
by isotonic regression, tells what to ask for so that the plan is reached. The fit is only trusted while it foretells
observations that it has not seen better than the closed form does.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

# Fewer observations than this cannot tell a drift from noise.
LEAST_OBSERVATIONS = 3
# How far an observation reaches: in log-odds of the sparsity (0.9 and 0.97 are 1.3 apart) and in ln λ.
_REACH_OF_SPARSITY = 1.0
_REACH_OF_STRENGTH = math.log(4.0)
# The closed form's own weight beside the observations: far from all of them it is right again.
_WEIGHT_OF_CLOSED_FORM = 0.05
# A fit takes in so many observations at most, else a long study would spend its time on fits: to leave each out in turn
# costs the square of their number. These many near ones outweigh the closed form's own weight by far.
MOST_OBSERVATIONS = 200
# They are looked for among the newest: in as many trials, every plan comes up again and again.
_LOOKED_AT = 2_000
# Nearer than by this share of the reach, observations weigh about alike (exp(-0.5²/2) = 0.88): of these the newest are
# taken, since later trials resemble the next one in all else that is searched.
_ALIKE = 0.5
# Log-odds are finite between these.
_LOWEST = 1e-4
# And so is the logarithm of a strength from here on.
_WEAKEST = 1e-12
_GRID = np.linspace(0.0, 1.0, 401)


@dataclass(frozen=True)
class Observation:
    """What one layer of one trial was asked for, and what rounding alone gave it."""

    layer: str
    asked: float
    reached: float
    strength: float


def by_layer(observations: Iterable[Observation]) -> dict[str, list[Observation]]:
    """The observations of each layer, in their order."""
    found: dict[str, list[Observation]] = {}
    for each in observations:
        found.setdefault(each.layer, []).append(each)
    return found


def reached_for(observations: Sequence[Observation], strength: float) -> NDArray[np.float64]:
    """The sparsity that a layer will reach for each asked one of the grid; never falling."""
    return _made_rising(_drifted(_GRID, observations, strength))


def asked_for(observations: Sequence[Observation], sparsity: float, strength: float) -> float:
    """What to ask for so that one layer reaches a sparsity: the plan itself while the fit is not trusted."""
    return asked_for_all(observations, [sparsity], strength)[0]


def asked_for_all(observations: Sequence[Observation], sparsities: Sequence[float], strength: float) -> list[float]:
    """`asked_for` of several sparsities; the fit is made once, of what was seen near them."""
    near = nearest(observations, sparsities, strength)
    if not trusted(near):
        return list(sparsities)
    reached = reached_for(near, strength)
    # A stretch that is flat has many answers; the slightest slope picks its middle and keeps the map one to one.
    return [float(asked) for asked in np.interp(sparsities, reached + 1e-9 * _GRID, _GRID)]


def trusted(observations: Sequence[Observation]) -> bool:
    """Whether the fit, each observation left out in turn, foretells it better than the closed form."""
    if len(observations) < LEAST_OBSERVATIONS:
        return False
    closed_form = math.fsum(abs(each.reached - each.asked) for each in observations)
    return leave_one_out_error(observations) * len(observations) < closed_form


def nearest(observations: Sequence[Observation], sparsities: Sequence[float], strength: float) -> Sequence[Observation]:
    """The observations that tell most of some plans at a strength, in their order; all of them while they are few.

    One is near a plan by what was asked for or by what was reached: what is to be asked for lies between the two.
    """
    if len(observations) <= MOST_OBSERVATIONS:
        return observations
    observations = observations[-_LOOKED_AT:]
    plans = _log_odds(np.asarray(sparsities, dtype=np.float64))
    asked, drift, pull = _columns(observations)
    apart = np.minimum(_distance(asked, plans), _distance(asked + drift, plans)) / _REACH_OF_SPARSITY
    far = (pull - math.log(max(strength, _WEAKEST))) / _REACH_OF_STRENGTH
    steps = np.floor(np.hypot(apart, far) / _ALIKE)
    newest_first = -np.arange(len(observations))
    chosen = np.lexsort((newest_first, steps))[:MOST_OBSERVATIONS]
    return [observations[index] for index in np.sort(chosen)]


def _distance(values: NDArray[np.float64], places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each value to the nearest of the places."""
    distance: NDArray[np.float64] = np.abs(values[:, None] - places[None, :]).min(axis=1, initial=math.inf)
    return distance


def leave_one_out_error(observations: Sequence[Observation]) -> float:
    """Mean distance of what the others foretell from what was reached."""
    asked, drift, pull = _columns(observations)
    # A weight is a product of two, one by the strength and one by the sparsity: all that each observation is foretold
    # from, itself left out, is two products of matrices.
    by_strength = np.exp(-0.5 * ((pull[:, None] - pull[None, :]) / _REACH_OF_STRENGTH) ** 2)
    np.fill_diagonal(by_strength, 0.0)
    by_sparsity = np.exp(-0.5 * ((asked[:, None] - _log_odds(_GRID)[None, :]) / _REACH_OF_SPARSITY) ** 2)
    moved = by_strength @ (drift[:, None] * by_sparsity) / (by_strength @ by_sparsity + _WEIGHT_OF_CLOSED_FORM)
    fits = _shares(_log_odds(_GRID) + moved)
    # Most of them rise by themselves, and a regression of each would take most of the time.
    for index in np.flatnonzero((np.diff(fits, axis=1) < 0.0).any(axis=1)):
        fits[index] = _made_rising(fits[index])
    fits[:, 0], fits[:, -1] = 0.0, 1.0
    foretold = [np.interp(each.asked, _GRID, fit) for each, fit in zip(observations, fits, strict=True)]
    errors = [abs(float(share) - each.reached) for each, share in zip(observations, foretold, strict=True)]
    return math.fsum(errors) / len(errors)


def _made_rising(drifted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The nearest map that never falls, from nothing to everything."""
    fitted: NDArray[np.float64] = isotonic_regression(drifted).x.clip(0.0, 1.0)
    fitted[0], fitted[-1] = 0.0, 1.0  # nothing and everything need no pull
    return fitted


def _drifted(asked: NDArray[np.float64], observations: Sequence[Observation], strength: float) -> NDArray[np.float64]:
    """Each asked sparsity, moved by the mean drift in log-odds of the observations near it."""
    if not observations:
        return asked
    seen, drift, pull = _columns(observations)
    far = (pull - math.log(max(strength, _WEAKEST))) / _REACH_OF_STRENGTH
    apart = (_log_odds(asked)[:, None] - seen[None, :]) / _REACH_OF_SPARSITY
    weights = np.exp(-0.5 * (apart**2 + far[None, :] ** 2))
    mean_drift = (weights @ drift) / (weights.sum(axis=1) + _WEIGHT_OF_CLOSED_FORM)
    return _shares(_log_odds(asked) + mean_drift)


def _columns(observations: Sequence[Observation]) -> tuple[NDArray[np.float64], ...]:
    """Asked, drift and strength of each: log-odds, a difference of two, and a logarithm."""
    asked = _log_odds(np.array([each.asked for each in observations]))
    drift = _log_odds(np.array([each.reached for each in observations])) - asked
    return asked, drift, np.log([max(each.strength, _WEAKEST) for each in observations])


def _log_odds(sparsity: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(sparsity, _LOWEST, 1.0 - _LOWEST)
    odds: NDArray[np.float64] = np.log(inside / (1.0 - inside))
    return odds


def _shares(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    shares: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-log_odds))
    return shares
