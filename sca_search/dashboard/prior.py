"""The prior: α against sparsity in closed form, as corrected by what trials reached, and what they reached."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from sca_search.ternary.prior_correction import Observation, asked_for_all

# Each more costs a fit; a page is drawn again with every trial.
MOST_FITTED = 24
MOST_SHOWN = 4000


def prior_view(
    prior: Mapping[str, Any], closed_form: Mapping[str, Any], ended: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """The page's values. `ended` are records by trial: α and the sparsity that rounding alone gave, a layer."""
    observations = _observations(prior)
    layers = list(prior.get("layers", {})) or list(closed_form.get("alpha", {}))
    shown = observations[-MOST_SHOWN:]
    return {
        "layers": layers,
        "closed": dict(closed_form) if closed_form else None,
        "corrected": {layer: found for layer in layers if (found := corrected(closed_form, layer, observations))},
        "ended": {layer: _ended(layer, ended) for layer in layers},
        "asked": {layer: [(each.asked, each.reached) for each in shown if each.layer == layer] for layer in layers},
        "drift": mean_drift(observations),
    }


def corrected(closed_form: Mapping[str, Any], layer: str, observations: Sequence[Observation]) -> list[float] | None:
    """α that the prior would now be asked for, at the closed form's sparsities; None while it is not corrected."""
    alphas = closed_form.get("alpha", {}).get(layer)
    mine = tuple(each for each in observations if each.layer == layer)[-MOST_FITTED:]
    if not alphas or not mine:
        return None
    sparsities = tuple(closed_form["sparsity"])
    asked = _asked(mine, sparsities)
    if asked == sparsities:
        return None
    return [float(alpha) for alpha in np.interp(asked, sparsities, alphas)]


@lru_cache(maxsize=256)
def _asked(observations: tuple[Observation, ...], sparsities: tuple[float, ...]) -> tuple[float, ...]:
    strength = median(each.strength for each in observations)
    return tuple(asked_for_all(observations, sparsities, strength))


def mean_drift(observations: Sequence[Observation]) -> float | None:
    """How far layers ended from what they were asked for, before the exact step."""
    if not observations:
        return None
    return sum(abs(each.reached - each.asked) for each in observations) / len(observations)


def _observations(prior: Mapping[str, Any]) -> list[Observation]:
    return [
        Observation(str(each["layer"]), float(each["asked"]), float(each["reached"]), float(each["strength"]))
        for each in prior.get("observations", ())
    ]


def _ended(layer: str, records: Mapping[int, Mapping[str, Any]]) -> list[tuple[int, float, float]]:
    """Trial, sparsity reached and α at the end."""
    return [
        (trial, record["reached"][layer], record["alphas"][layer])
        for trial, record in records.items()
        if layer in record.get("reached", {}) and layer in record.get("alphas", {})
    ]
