"""The prior: α against sparsity in closed form, and the sparsity per layer that trials planned and achieved."""

from collections.abc import Mapping
from typing import Any


def prior_view(
    closed_form: Mapping[str, Any], records: Mapping[int, Mapping[str, Any]], *, is_planned: bool = True
) -> dict[str, Any]:
    """The values of the page. `records` are those of candidates by trial; some studies do not plan a sparsity."""
    of_trials = (layer for record in records.values() for layer in record["layers"])
    layers = list(dict.fromkeys([*closed_form.get("alpha", {}), *of_trials]))
    achieved = {layer: _achieved(layer, records) if is_planned else [] for layer in layers}
    drifts = [abs(reached - planned) for pairs in achieved.values() for planned, reached in pairs]
    return {
        "layers": layers,
        "closed": dict(closed_form) if closed_form else None,
        "ended": {layer: _ended(layer, records) for layer in layers},
        "achieved": achieved,
        "drift": sum(drifts) / len(drifts) if drifts else None,
    }


def _achieved(layer: str, records: Mapping[int, Mapping[str, Any]]) -> list[tuple[float, float]]:
    """Planned sparsity, and the one achieved by rounding alone before the exact step."""
    return [
        (record["candidate"]["split"].get(layer, record["candidate"]["sparsity"]), record["reached"][layer])
        for record in records.values()
        if layer in record.get("reached", {}) and "candidate" in record
    ]


def _ended(layer: str, records: Mapping[int, Mapping[str, Any]]) -> list[tuple[int, float, float]]:
    """Trial, achieved sparsity and final α."""
    return [
        (trial, record["reached"][layer], record["alphas"][layer])
        for trial, record in records.items()
        if layer in record.get("reached", {}) and layer in record.get("alphas", {})
    ]
