"""One trial in depth: zeros and bytes a layer, its schedules, its accuracy and its weights over epochs."""

from collections.abc import Mapping, Sequence
from typing import Any

from sca_search.config.costs import COST_METRICS
from sca_search.dashboard.read import CandidateFiles
from sca_search.runs.candidates import best_of

# More epochs than a figure has pixels to tell apart are thinned.
MOST_EPOCHS = 120
_COURSE = ("soft_metric", "rounded_metric", "sparsity", "alpha", "strength", "sharpness")


def trial_detail(files: CandidateFiles, limits: Mapping[str, float]) -> dict[str, Any]:
    """The page's values for a complete trial; the model is that of its best seed, as an export takes it."""
    first, best = files.records[0], best_of(files.records, limits)
    return {
        "layers": layer_rows(best),
        "course": course(files.history),
        "distribution": distribution(files.snapshots),
        "seeds": [record["metric"] for record in files.records],
        "form": first.get("candidate", {}).get("form", ""),
        "dead_layers": list(best.get("dead_layers", ())),
    }


def layer_rows(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Each ternary layer: its weights, zeros and plan; bytes and milliseconds where they were measured."""
    candidate = record.get("candidate", {})
    return [
        {
            "name": name,
            "weights": count["weights"],
            "sparsity": count["zeros"] / max(1, count["weights"]),
            "planned": candidate.get("split", {}).get(name, candidate.get("sparsity")),
            **{metric.key: count[metric.key] for metric in COST_METRICS if metric.key in count},
        }
        for name, count in record["layers"].items()
    ]


def course(history: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """A training's epochs as columns; those with frozen trits follow the ternary ones."""
    kept = thinned(history)
    ternary = sum(epoch["phase"] == "ternary" for epoch in history)
    frozen_after = max((epoch["epoch"] for epoch in history if epoch["phase"] == "ternary"), default=ternary)
    epochs = [epoch["epoch"] + (frozen_after if epoch["phase"] == "frozen" else 0) for epoch in kept]
    columns = {name: [epoch.get(name) for epoch in kept] for name in _COURSE}
    return {"epoch": epochs, "phase": [epoch["phase"] for epoch in kept], **columns}


def thinned(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most so many epochs, the first and the last among them."""
    if len(history) <= MOST_EPOCHS:
        return list(history)
    last = len(history) - 1
    return [history[round(step * last / (MOST_EPOCHS - 1))] for step in range(MOST_EPOCHS)]


def distribution(snapshots: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Shares of the weights in each bin, in ten-thousandths; `soft` only where W is not tanh Θ itself."""
    if not snapshots:
        return None
    same = all(each["tanh"] == each["soft"] for each in snapshots)
    layers = list(snapshots[0]["alphas"])
    return {
        "epoch": [each["epoch"] for each in snapshots],
        "tanh": [_shares(each["tanh"]) for each in snapshots],
        "soft": None if same else [_shares(each["soft"]) for each in snapshots],
        "alphas": {layer: [each["alphas"].get(layer) for each in snapshots] for layer in layers},
    }


def _shares(counts: Sequence[int]) -> list[int]:
    whole = max(1, sum(counts))
    return [round(10_000 * count / whole) for count in counts]
