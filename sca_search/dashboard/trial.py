"""Details of one trial: sparsity and costs per layer, schedules, metric and weights over epochs."""

from collections.abc import Mapping, Sequence
from typing import Any

from sca_search.config.costs import COST_METRICS
from sca_search.dashboard.read import CandidateFiles
from sca_search.runs.candidates import best_of

# A figure has no pixels for more epochs.
MAX_EPOCHS = 120
_COURSE = ("soft_metric", "rounded_metric", "sparsity", "alpha", "strength", "sharpness")


def trial_detail(files: CandidateFiles, limits: Mapping[str, float]) -> dict[str, Any]:
    """The values of a complete trial; layers are those of its best seed, which an export uses."""
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
    """Per ternary layer: weights, achieved and planned sparsity, and measured costs."""
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
    """Epochs of a training as columns; those of the frozen phase follow the ternary ones."""
    shown = thinned(history)
    ternary = sum(epoch["phase"] == "ternary" for epoch in history)
    frozen_after = max((epoch["epoch"] for epoch in history if epoch["phase"] == "ternary"), default=ternary)
    epochs = [epoch["epoch"] + (frozen_after if epoch["phase"] == "frozen" else 0) for epoch in shown]
    columns = {name: [epoch.get(name) for epoch in shown] for name in _COURSE}
    return {"epoch": epochs, "phase": [epoch["phase"] for epoch in shown], **columns}


def thinned(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MAX_EPOCHS epochs, including the first and the last."""
    if len(history) <= MAX_EPOCHS:
        return list(history)
    last = len(history) - 1
    return [history[round(step * last / (MAX_EPOCHS - 1))] for step in range(MAX_EPOCHS)]


def distribution(snapshots: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """Fraction of weights per bin, in ten-thousandths; `soft` only if W is not tanh Θ itself."""
    if not snapshots:
        return None
    same = all(each["tanh"] == each["soft"] for each in snapshots)
    layers = list(snapshots[0]["alphas"])
    return {
        "epoch": [each["epoch"] for each in snapshots],
        "tanh": [_fractions(each["tanh"]) for each in snapshots],
        "soft": None if same else [_fractions(each["soft"]) for each in snapshots],
        "alphas": {layer: [each["alphas"].get(layer) for each in snapshots] for layer in layers},
    }


def _fractions(counts: Sequence[int]) -> list[int]:
    total = max(1, sum(counts))
    return [round(10_000 * count / total) for count in counts]
