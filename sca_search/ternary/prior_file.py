"""The observations of the prior correction in a file that another study can start from.

{"format": "sca-search/prior", "version": 1, "form": "paper", "layers": {"conv2": [32, 16, 5, 5], …},
 "observations": [{"layer": "conv2", "asked": 0.5, "reached": 0.49, "strength": 10.0}, …]}
"""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sca_search.errors import SpecError
from sca_search.system.files import write_text_atomic
from sca_search.ternary.allocation import LayerShape
from sca_search.ternary.prior_correction import Observation

FORMAT = "sca-search/prior"
VERSION = 1


def write_prior(path: Path, form: str, layers: Sequence[LayerShape], observations: Sequence[Observation]) -> None:
    """Write the observations of a study."""
    head = {
        "format": FORMAT,
        "version": VERSION,
        "form": form,
        "layers": {layer.name: list(layer.shape) for layer in layers},
    }
    # One observation per line, each by the C encoder: indented by Python, those of ten thousand trials take seconds.
    encode = json.JSONEncoder(allow_nan=False).encode
    lines = ",\n    ".join(encode(vars(each)) for each in observations)
    entries = f"[\n    {lines}\n  ]" if observations else "[]"
    write_text_atomic(path, f'{json.dumps(head, indent=2)[:-2]},\n  "observations": {entries}\n}}\n')


def read_prior(path: Path, form: str, layers: Sequence[LayerShape]) -> list[Observation]:
    """The observations of a file that was written for this network and form."""
    content = _content(path)
    if (content.get("format"), content.get("version")) != (FORMAT, VERSION):
        found = f"{content.get('format')!r}, version {content.get('version')!r}"
        raise SpecError(f"{path}: a prior must have the format {FORMAT!r}, version {VERSION}, got {found}")
    if content.get("form") != form:
        raise SpecError(f"{path}: the prior must be of this study's form, {form}, got {content.get('form')!r}")
    ours, theirs = {layer.name: list(layer.shape) for layer in layers}, content.get("layers")
    if ours != theirs:
        raise SpecError(f"{path}: the prior must be of this study's layers, {_shown(ours)}, got {_shown(theirs)}")
    try:
        return [_observation(entry, ours) for entry in content["observations"]]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise SpecError(f"{path}: is a damaged prior, an observation is invalid: {error}") from error


def _content(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SpecError(f"{path}: there is no such prior file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError(f"{path}: cannot be read as a prior file: {error}") from error
    if not isinstance(content, dict):
        raise SpecError(f"{path}: a prior must be a JSON object, got {type(content).__name__}")
    return content


def _observation(entry: dict[str, Any], layers: dict[str, list[int]]) -> Observation:
    values = {name: _number(entry[name]) for name in ("asked", "reached", "strength")}
    if entry["layer"] not in layers:
        raise ValueError(f"layer {entry['layer']!r} is not in the file's list of layers")
    if not all(0.0 <= values[name] <= 1.0 for name in ("asked", "reached")):
        raise ValueError(f"asked and reached must lie between 0 and 1, got {values}")
    if not (math.isfinite(values["strength"]) and values["strength"] >= 0.0):
        raise ValueError(f"strength must be a finite number of at least 0, got {values['strength']}")
    return Observation(entry["layer"], **values)


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"must be a number, got {value!r}")
    return float(value)


def _shown(layers: object) -> str:
    if not isinstance(layers, dict):
        return repr(layers)
    names = [
        f"{name} {'×'.join(map(str, shape)) if isinstance(shape, list) else shape}" for name, shape in layers.items()
    ]
    return ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
