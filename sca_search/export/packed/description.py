"""Records as JSON and arrays, and back: the part of a model file that says what is computed."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError
from sca_search.export.graph.records import (
    Activation,
    AdaptivePool,
    Add,
    ChannelAffine,
    Concat,
    Convolution,
    Linear,
    Multiply,
    Pool,
    Record,
    Reshape,
    WeightRecord,
)

KINDS: dict[str, type[Record]] = {
    "convolution": Convolution,
    "linear": Linear,
    "pool": Pool,
    "adaptive_pool": AdaptivePool,
    "activation": Activation,
    "add": Add,
    "multiply": Multiply,
    "concat": Concat,
    "reshape": Reshape,
    "channel_affine": ChannelAffine,
}
_NAMES = {kind: name for name, kind in KINDS.items()}
ARRAYS = ("weight", "scale", "bias")
"""The fields of a record that are arrays; a file keeps each as a tensor, named record.field."""


def describe(record: Record) -> dict[str, Any]:
    """A record's JSON: what is not its default, no arrays, and of a weight its shape and whether it is ternary."""
    plain = {
        field.name: getattr(record, field.name)
        for field in fields(record)
        if field.name not in ARRAYS and getattr(record, field.name) != field.default
    }
    # `kind` is what pools and activations call themselves; the record's own is its type
    described = {"type": _NAMES[type(record)], **plain}
    if isinstance(record, WeightRecord):
        described |= {"ternary": record.ternary, "weight_shape": list(record.weight.shape)}
    return described


def restore(given: Any, array: Callable[[str, str], NDArray[np.float32]], trits: Callable[..., Any]) -> Record:
    """The record that was described.

    `array(record, field)` fetches float values, `trits(record, shape)` a ternary weight. What is said of types is
    checked here; whether shapes fit each other is for the rules of a graph to say.
    """
    if not isinstance(given, dict) or given.get("type") not in tuple(KINDS):  # a list has no hash
        raise ExportError(f"a record must have one of the types {', '.join(KINDS)}")
    kind = KINDS[given["type"]]
    names = {field.name for field in fields(kind)}
    is_weight = issubclass(kind, WeightRecord)
    known = (names - set(ARRAYS)) | {"type"} | ({"ternary", "weight_shape"} if is_weight else set())
    odd = sorted((given.keys() - known) | (known - given.keys() - _with_default(kind)))
    if odd:
        raise ExportError(f"a record of type {given['type']} lacks or does not know {odd[0][:80]!r}")
    values = {name: _PARSERS[name](name, given[name]) for name in names & given.keys() - set(ARRAYS)}
    values |= {name: array(values["name"], name) for name in names & {"scale", "bias"}}
    if is_weight:
        shape = _integers("weight_shape", given["weight_shape"])
        ternary = _flag("ternary", given["ternary"])
        # Before anything is decoded: scales lie in the file, so that many outputs need a large file.
        if shape[:1] != values["scale"].shape:
            raise ExportError(f"{values['name']}: the weight has the shape {shape}, the scale {values['scale'].shape}")
        values["weight"] = trits(values["name"], shape) if ternary else array(values["name"], "weight")
        if shape != values["weight"].shape:
            raise ExportError(f"{values['name']}: the weight has not the shape {shape}")
    return kind(**values)


def _with_default(kind: type[Record]) -> set[str]:
    return {field.name for field in fields(kind) if field.default is not MISSING}


def text(what: str, given: Any, longest: int = 200) -> str:
    """A text that is not too long."""
    if not isinstance(given, str) or len(given) > longest:
        raise ExportError(f"{what} must be a string of at most {longest} characters")
    return given


def texts(what: str, given: Any) -> tuple[str, ...]:
    """A list of them."""
    if not isinstance(given, list):
        raise ExportError(f"{what} must be a list of texts")
    return tuple(text(what, each) for each in given)


def _integers(what: str, given: Any) -> tuple[int, ...]:
    # `type` and not isinstance: True is an int to Python
    if not isinstance(given, list) or not all(type(each) is int for each in given) or len(given) > 8:
        raise ExportError(f"{what} must be a list of whole numbers")
    return tuple(given)


def integers(count: int | None = None) -> Callable[[str, Any], tuple[int, ...]]:
    """A parser of so many whole numbers."""

    def parse(what: str, given: Any) -> tuple[int, ...]:
        numbers = _integers(what, given)
        if count is not None and len(numbers) != count:
            raise ExportError(f"{what} must be {count} whole numbers, got {len(numbers)}")
        return numbers

    return parse


def _integer(what: str, given: Any) -> int:
    return _integers(what, [given])[0]


def _flag(what: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise ExportError(f"{what} must be true or false")
    return given


def _number(what: str, given: Any) -> float:
    if type(given) not in (int, float) or not abs(given) < 1e30:
        raise ExportError(f"{what} must be a number")
    return float(given)


_PARSERS: Mapping[str, Callable[[str, Any], Any]] = {
    "name": text,
    "inputs": texts,
    "shape": integers(),
    "kind": text,  # which kinds there are, a graph's rules know
    "slope": _number,
    "kernel": integers(2),
    "stride": integers(2),
    "dilation": integers(2),
    "padding": integers(4),
    "groups": _integer,
    "ceil_mode": _flag,
    "count_include_pad": _flag,
}
