"""The prior correction: a monotone fit of achieved against requested sparsity, from earlier trials.

The closed form assumes a strong regularizer, with which a layer achieves the requested sparsity. With a weak one it
drifts. So each finished trial gives an observation per layer (requested, achieved, λ), and a smooth fit of achieved
against requested, made monotone by isotonic regression, gives the sparsity to request for the planned one. The fit is
used only while it predicts held-out observations better than the closed form.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

# Fewer observations than this cannot distinguish a drift from noise.
LEAST_OBSERVATIONS = 3
# Kernel widths: in log-odds of the sparsity (0.9 and 0.97 are 1.3 apart) and in ln λ.
_REACH_OF_SPARSITY = 1.0
_REACH_OF_STRENGTH = math.log(4.0)
# The weight of the closed form relative to an observation: far from all observations it applies unchanged.
_WEIGHT_OF_CLOSED_FORM = 0.05
# The maximum number of observations of a fit, else a long study would spend its time on fits: leave-one-out costs the
# square of their number. This many close ones outweigh the closed form by far.
MOST_OBSERVATIONS = 200
# They are selected among this many of the newest: in as many trials, every planned sparsity occurs many times.
_NEWEST = 2_000
# Closer than this fraction of the kernel width, observations have about the same weight (exp(-0.5²/2) = 0.88): of these
# the newest are used, since later trials resemble the next one in all other parameters.
_ALIKE = 0.5
# Limits of sparsity and λ for finite logarithms.
_LOWEST = 1e-4
_WEAKEST = 1e-12
_GRID = np.linspace(0.0, 1.0, 401)


@dataclass(frozen=True)
class Observation:
    """The requested sparsity of one layer in one trial, and the one achieved by rounding alone."""

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
    """The predicted achieved sparsity for each requested one of the grid; monotone."""
    return _made_rising(_drifted(_GRID, observations, strength))


def asked_for(observations: Sequence[Observation], sparsity: float, strength: float) -> float:
    """The sparsity to request for one layer so that it achieves the given one: unchanged while the fit is not used."""
    return asked_for_all(observations, [sparsity], strength)[0]


def asked_for_all(observations: Sequence[Observation], sparsities: Sequence[float], strength: float) -> list[float]:
    """`asked_for` of several sparsities with one fit of the observations close to them."""
    near = nearest(observations, sparsities, strength)
    if not trusted(near):
        return list(sparsities)
    reached = reached_for(near, strength)
    # A flat part has many inverses; a tiny slope picks its middle and makes the map invertible.
    return [float(asked) for asked in np.interp(sparsities, reached + 1e-9 * _GRID, _GRID)]


def trusted(observations: Sequence[Observation]) -> bool:
    """Whether the fit predicts each left-out observation better than the closed form."""
    if len(observations) < LEAST_OBSERVATIONS:
        return False
    closed_form = math.fsum(abs(each.reached - each.asked) for each in observations)
    return leave_one_out_error(observations) * len(observations) < closed_form


def nearest(observations: Sequence[Observation], sparsities: Sequence[float], strength: float) -> Sequence[Observation]:
    """The observations closest to some planned sparsities and λ, in their order; all of them while they are few.

    The distance uses both the requested and the achieved sparsity: the one to request lies between the two.
    """
    if len(observations) <= MOST_OBSERVATIONS:
        return observations
    observations = observations[-_NEWEST:]
    plans = _log_odds(np.asarray(sparsities, dtype=np.float64))
    asked, drift, log_strength = _columns(observations)
    apart = np.minimum(_distance(asked, plans), _distance(asked + drift, plans)) / _REACH_OF_SPARSITY
    far = (log_strength - math.log(max(strength, _WEAKEST))) / _REACH_OF_STRENGTH
    steps = np.floor(np.hypot(apart, far) / _ALIKE)
    newest_first = -np.arange(len(observations))
    chosen = np.lexsort((newest_first, steps))[:MOST_OBSERVATIONS]
    return [observations[index] for index in np.sort(chosen)]


def _distance(values: NDArray[np.float64], points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each value to the nearest point."""
    distance: NDArray[np.float64] = np.abs(values[:, None] - points[None, :]).min(axis=1, initial=math.inf)
    return distance


def leave_one_out_error(observations: Sequence[Observation]) -> float:
    """Mean absolute error of the achieved sparsity predicted from all other observations."""
    asked, drift, log_strength = _columns(observations)
    # A kernel weight is the product of one for λ and one for the sparsity: all leave-one-out predictions together are
    # two matrix products.
    by_strength = np.exp(-0.5 * ((log_strength[:, None] - log_strength[None, :]) / _REACH_OF_STRENGTH) ** 2)
    np.fill_diagonal(by_strength, 0.0)
    by_sparsity = np.exp(-0.5 * ((asked[:, None] - _log_odds(_GRID)[None, :]) / _REACH_OF_SPARSITY) ** 2)
    moved = by_strength @ (drift[:, None] * by_sparsity) / (by_strength @ by_sparsity + _WEIGHT_OF_CLOSED_FORM)
    fits = _fractions(_log_odds(_GRID) + moved)
    # Most of them are monotone already, and a regression of each would take most of the time.
    for index in np.flatnonzero((np.diff(fits, axis=1) < 0.0).any(axis=1)):
        fits[index] = _made_rising(fits[index])
    fits[:, 0], fits[:, -1] = 0.0, 1.0
    predicted = [float(np.interp(each.asked, _GRID, fit)) for each, fit in zip(observations, fits, strict=True)]
    errors = [abs(sparsity - each.reached) for each, sparsity in zip(observations, predicted, strict=True)]
    return math.fsum(errors) / len(errors)


def _made_rising(drifted: NDArray[np.float64]) -> NDArray[np.float64]:
    """The closest monotone map from 0 to 1."""
    fitted: NDArray[np.float64] = isotonic_regression(drifted).x.clip(0.0, 1.0)
    fitted[0], fitted[-1] = 0.0, 1.0  # these do not depend on the regularizer
    return fitted


def _drifted(asked: NDArray[np.float64], observations: Sequence[Observation], strength: float) -> NDArray[np.float64]:
    """Each requested sparsity, moved by the mean drift in log-odds of the observations close to it."""
    if not observations:
        return asked
    observed, drift, log_strength = _columns(observations)
    far = (log_strength - math.log(max(strength, _WEAKEST))) / _REACH_OF_STRENGTH
    apart = (_log_odds(asked)[:, None] - observed[None, :]) / _REACH_OF_SPARSITY
    weights = np.exp(-0.5 * (apart**2 + far[None, :] ** 2))
    mean_drift = (weights @ drift) / (weights.sum(axis=1) + _WEIGHT_OF_CLOSED_FORM)
    return _fractions(_log_odds(asked) + mean_drift)


def _columns(observations: Sequence[Observation]) -> tuple[NDArray[np.float64], ...]:
    """Requested sparsity in log-odds, its drift, and ln λ of each observation."""
    asked = _log_odds(np.array([each.asked for each in observations]))
    drift = _log_odds(np.array([each.reached for each in observations])) - asked
    return asked, drift, np.log([max(each.strength, _WEAKEST) for each in observations])


def _log_odds(sparsity: NDArray[np.float64]) -> NDArray[np.float64]:
    inside = np.clip(sparsity, _LOWEST, 1.0 - _LOWEST)
    odds: NDArray[np.float64] = np.log(inside / (1.0 - inside))
    return odds


def _fractions(log_odds: NDArray[np.float64]) -> NDArray[np.float64]:
    fractions: NDArray[np.float64] = 1.0 / (1.0 + np.exp(-log_odds))
    return fractions
