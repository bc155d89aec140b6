"""Details of one trial: costs per layer, schedules, metric and weights over epochs, feature maps as small PNGs."""

import base64
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from sca_search.config.costs import COST_METRICS
from sca_search.config.study import StudySpec
from sca_search.dashboard.read import CandidateFiles
from sca_search.errors import RunError
from sca_search.runs.candidates import exported_model, refit_text

# A figure has no pixels for more epochs.
MAX_EPOCHS = 120
_COURSE = ("soft_metric", "rounded_metric", "sparsity", "alpha", "strength", "soft_fraction")


def trial_detail(files: CandidateFiles, row: Mapping[str, Any], spec: StudySpec, metric: str) -> dict[str, Any]:
    """The values of a complete trial; layers are those of the exported model, the trial's own or a refit."""
    first, best = files.records[0], exported_model(files.records, row, spec.goal, metric)
    return {
        "layers": layer_rows(best),
        "epoch_columns": epoch_columns(files.history),
        "distribution": distribution(files.snapshots),
        "exported": {name: best[name] for name in ("refit", "metric")},
        "refits": [record["metric"] for record in files.records if record["refit"]],
        "refit_text": refit_text(best, metric),
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
            "planned": candidate.get("allocation", {}).get(name, candidate.get("sparsity")),
            **{metric.key: count[metric.key] for metric in COST_METRICS if metric.key in count},
        }
        for name, count in record["layers"].items()
    ]


def epoch_columns(history: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Epochs of a training as columns; those of the frozen phase follow the ternary ones."""
    shown = subsampled(history)
    ternary = sum(epoch["phase"] == "ternary" for epoch in history)
    frozen_after = max((epoch["epoch"] for epoch in history if epoch["phase"] == "ternary"), default=ternary)
    epochs = [epoch["epoch"] + (frozen_after if epoch["phase"] == "frozen" else 0) for epoch in shown]
    columns = {name: [epoch.get(name) for epoch in shown] for name in _COURSE}
    return {"epoch": epochs, "phase": [epoch["phase"] for epoch in shown], **columns}


def subsampled(history: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
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


# Dark blue over green to yellow with evenly rising lightness (viridis): readable for everyone, and in gray.
_STOPS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_CELL, _GAP, _LEFT, _TOP = 96, 10, 190, 70
_INK, _QUIET = (31, 41, 55), (107, 114, 128)


def page_features(features: Mapping[str, Any]) -> dict[str, Any] | None:
    """features.json of a trial for the page, with pictures as data URIs; None if there are none."""
    if not features:
        return None
    try:
        return {
            "labels": [str(label) for label in features["labels"]],
            "compared": int(features["compared"]),
            "images": _uris(features["images"], colored=False),
            "layers": [
                {
                    "layer": str(layer["layer"]),
                    "number": int(layer["number"]),
                    "ternary": bool(layer["ternary"]),
                    "cka": float(layer["cka"]),
                    "dense": _uris(layer["dense_maps"]),
                    "rounded": _uris(layer["ternary_maps"]),
                }
                for layer in features["layers"]
            ],
        }
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"features.json cannot be read: {error}") from error


def contact_sheet(features: Mapping[str, Any], title: str) -> Image.Image:
    """All maps on one picture: one row per layer; per image the map of the dense network, then of the ternary one."""
    layers, images = features["layers"], _pictures(features["images"], colored=False)
    width = _LEFT + len(images) * (2 * _CELL + 3 * _GAP)
    whole = Image.new("RGB", (width, _TOP + (1 + len(layers)) * (_CELL + _GAP) + _GAP), "white")
    draw = ImageDraw.Draw(whole)
    draw.text((_GAP, 12), title, _INK, ImageFont.load_default(18))
    draw.text((_GAP, 40), "left: dense   right: ternary", _QUIET, ImageFont.load_default(14))
    for column, image in enumerate(images):
        place = (_LEFT + column * (2 * _CELL + 3 * _GAP) + (_CELL + _GAP) // 2, _TOP)
        whole.paste(_scaled(image), place)
    for row, layer in enumerate(layers, 1):
        _draw_layer(whole, draw, layer, _TOP + row * (_CELL + _GAP))
    return whole


def _draw_layer(whole: Image.Image, draw: ImageDraw.ImageDraw, layer: Mapping[str, Any], top: int) -> None:
    draw.text((_GAP, top + 20), str(layer["layer"])[:24], _INK, ImageFont.load_default(15))
    kind = "ternary" if layer["ternary"] else "dense"
    draw.text((_GAP, top + 42), f"{kind}, CKA {layer['cka']:.3f}", _QUIET, ImageFont.load_default(13))
    if layer["dense_maps"] is None:
        draw.text((_LEFT, top + 42), "fully connected: no map", _QUIET, ImageFont.load_default(13))
    both = zip(_pictures(layer["dense_maps"]), _pictures(layer["ternary_maps"]), strict=True)
    for column, pair in enumerate(both):
        left = _LEFT + column * (2 * _CELL + 3 * _GAP)
        for side, picture in enumerate(pair):
            whole.paste(_scaled(picture), (left + side * (_CELL + _GAP // 2), top))


def _scaled(picture: Image.Image) -> Image.Image:
    return picture.convert("RGB").resize((_CELL, _CELL), Image.Resampling.NEAREST)


def _pictures(maps: Mapping[str, Any] | None, *, colored: bool = True) -> list[Image.Image]:
    if maps is None:
        return []
    width, height = int(maps["width"]), int(maps["height"])
    pictures = []
    for pixels in map(base64.b64decode, maps["pixels"]):
        if len(pixels) != width * height:
            raise ValueError(f"a map of {width} by {height} must have {width * height} bytes, got {len(pixels)}")
        picture = Image.frombytes("L", (width, height), pixels)
        if colored:
            picture = picture.convert("P")
            picture.putpalette(_palette())
        pictures.append(picture)
    return pictures


def _uris(maps: Mapping[str, Any] | None, *, colored: bool = True) -> list[str]:
    uris = []
    for picture in _pictures(maps, colored=colored):
        file = io.BytesIO()
        picture.save(file, "PNG", optimize=True)
        uris.append("data:image/png;base64," + base64.b64encode(file.getvalue()).decode())
    return uris


@lru_cache(maxsize=1)
def _palette() -> list[int]:
    places = np.arange(256) / 255 * (len(_STOPS) - 1)
    channels = [np.interp(places, range(len(_STOPS)), channel) for channel in zip(*_STOPS, strict=True)]
    return [round(level) for color in zip(*channels, strict=True) for level in color]
