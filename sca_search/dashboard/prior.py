"""The prior: α against sparsity in closed form and corrected by trials, and the sparsity that trials achieved."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from statistics import median
from typing import Any

import numpy as np

from sca_search.ternary.prior_correction import Observation, asked_for_all

# Observations per fit and on the page, which is written again with every trial.
MAX_FITTED = 24
MAX_SHOWN = 4000


def prior_view(
    prior: Mapping[str, Any], closed_form: Mapping[str, Any], ended: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """The values of the page. `ended` are records by trial, with α and the achieved sparsity per layer."""
    observations = _observations(prior)
    layers = list(prior.get("layers", {})) or list(closed_form.get("alpha", {}))
    shown = observations[-MAX_SHOWN:]
    return {
        "layers": layers,
        "closed": dict(closed_form) if closed_form else None,
        "corrected": {layer: found for layer in layers if (found := corrected(closed_form, layer, observations))},
        "ended": {layer: _ended(layer, ended) for layer in layers},
        "asked": {layer: [(each.asked, each.reached) for each in shown if each.layer == layer] for layer in layers},
        "drift": mean_drift(observations),
    }


def corrected(closed_form: Mapping[str, Any], layer: str, observations: Sequence[Observation]) -> list[float] | None:
    """α of the corrected prior at the sparsities of the closed form; None while there is no correction."""
    alphas = closed_form.get("alpha", {}).get(layer)
    mine = tuple(each for each in observations if each.layer == layer)[-MAX_FITTED:]
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
    """Mean difference of achieved and requested sparsity, before the exact step."""
    if not observations:
        return None
    return sum(abs(each.reached - each.asked) for each in observations) / len(observations)


def _observations(prior: Mapping[str, Any]) -> list[Observation]:
    return [
        Observation(str(each["layer"]), float(each["asked"]), float(each["reached"]), float(each["strength"]))
        for each in prior.get("observations", ())
    ]


def _ended(layer: str, records: Mapping[int, Mapping[str, Any]]) -> list[tuple[int, float, float]]:
    """Trial, achieved sparsity and final α."""
    return [
        (trial, record["reached"][layer], record["alphas"][layer])
        for trial, record in records.items()
        if layer in record.get("reached", {}) and layer in record.get("alphas", {})
    ]
