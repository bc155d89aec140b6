"""The types of values in study files and flags, and how strings are parsed into them."""

import re
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from sca_search.config.messages import format_value
from sca_search.config.names import LOSSES, METHODS, METRICS
from sca_search.config.references import expand_home, is_reference
from sca_search.errors import nearest_name

# Larger counts are typing errors, or meant to exhaust memory: a plan has one entry per trial.
_MAX_COUNT = 1_000_000
MAX_PROCESSES = 1024
MAX_SEEDS = 10_000
# Products of numbers up to this, as steps and rescaling compute them, are still finite.
_MAX_FLOAT = 1e30

Integer = Annotated[int, Field(strict=True)]  # strict: `true` is not a number
Count = Annotated[Integer, Field(ge=1, le=_MAX_COUNT)]
CountOrZero = Annotated[Integer, Field(ge=0, le=_MAX_COUNT)]
Seed = Annotated[Integer, Field(ge=0, lt=2**31)]
Images = Annotated[Integer, Field(ge=10, lt=2**31)]
Pixels = Annotated[Integer, Field(ge=1, le=4096)]  # side of an image
Processes = Annotated[Integer, Field(ge=1, le=MAX_PROCESSES)]
Threads = Annotated[Integer, Field(ge=0, le=MAX_PROCESSES)]
PositiveInt = Annotated[int, Field(strict=True, ge=1, le=10**9)]
PositiveFloat = Annotated[float, Field(strict=True, gt=0)]
BoundedFloat = Annotated[PositiveFloat, Field(le=_MAX_FLOAT)]
FractionBelowOne = Annotated[float, Field(strict=True, ge=0, lt=1)]
# An integer is still accepted as a float.
NonNegativeFloat = Annotated[float, Field(strict=True, ge=0)]
Fraction = Annotated[float, Field(strict=True, ge=0, le=1)]
PositiveFraction = Annotated[float, Field(strict=True, gt=0, le=1)]


class Table(BaseModel):
    """A table of a file: without unknown keys, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def in_order(steps: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    """Return steps, pairs of an epoch and a factor, unchanged if their epochs rise."""
    epochs = [epoch for epoch, _ in steps]
    if epochs != sorted(set(epochs)):
        raise ValueError(f"must name each epoch once, in order, got {epochs}")
    return steps


def _bounded(steps: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    in_order(steps)
    epochs, factors = [epoch for epoch, _ in steps], [factor for _, factor in steps]
    if any(number > _MAX_FLOAT for number in (*epochs, *accumulate(factors, mul))):
        raise ValueError(f"must have epochs and products of factors of at most {_MAX_FLOAT:g}, got {list(steps)}")
    return steps


EpochFactors = Annotated[tuple[tuple[NonNegativeFloat, BoundedFloat], ...], AfterValidator(_bounded)]

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _seconds(value: object) -> object:
    """Parse '90', '90s', '10m' and '2h' as seconds."""
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)\s*", value)
    if match is None:
        raise ValueError(f"must be a number of seconds or a time like 90s, 10m or 2h, got {format_value(value)}")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def _range(value: object) -> object:
    """Parse a number as a range that contains only this number."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
    if not isinstance(value, list | tuple) or len(value) != 2:
        raise ValueError(f"must be a number or [low, high], got {format_value(value)}")
    return value


def _ascending(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[1] < ends[0]:
        raise ValueError(f"must be a number or [low, high] with low <= high, got {list(ends)}")
    return ends


def _patterns(value: object) -> object:
    """Parse 'a,b', as a flag passes it, as two patterns."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


# Thirty years, close to the maximum timeout of a thread.
Seconds = Annotated[PositiveFloat, Field(le=1e9), BeforeValidator(_seconds)]
HalfWidth = Annotated[float, Field(strict=True, ge=0, le=20)]  # of a logarithm: its exponential is half a billion
# Above it, softened outputs are all equal.
Temperature = Annotated[PositiveFloat, Field(le=1e4)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_patterns)]
_End = TypeVar("_End")
Range = Annotated[tuple[_End, _End], BeforeValidator(_range), AfterValidator(_ascending)]
PositiveRange = Range[BoundedFloat]


def _path(value: Path) -> Path:
    """Expand ~; reject what no system call would accept."""
    if "\0" in str(value):
        raise ValueError(f"must be the name of a file or folder, got {str(value)[:200]!r}")
    try:
        return value.expanduser()
    except RuntimeError as error:
        raise ValueError(f"must be the name of a file or folder, got {str(value)[:200]!r}: {error}") from error


FilePath = Annotated[Path, AfterValidator(_path)]
# Above 3, tanh Θ of most weights is ±1, and only a long flow makes zeros.
Spread = Annotated[PositiveFloat, Field(le=3)]
EarlyFraction = Annotated[Fraction, Field(lt=0.9)]  # the strength reaches its final value after nine tenths
_Option = TypeVar("_Option")
Options = Annotated[
    tuple[_Option, ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
    Field(min_length=1),
]
StrengthSchedules = Options[Literal["linear", "exponential", "step"]]
Gradients = Options[Literal["straight-through", "tanh", "flow"]]
Reallocations = Options[Literal["adaptive", "fixed"]]


def _method(name: str) -> str:
    if name not in METHODS:
        raise ValueError(f"must be one of {', '.join(METHODS)}, got {name!r}{nearest_name(name, METHODS)}")
    return name


Method = Annotated[str, AfterValidator(_method)]

# Settings of Lightning's Trainer that a study may pass on. Length, logging and checkpoints are set by the study.
TRAINER_SETTINGS = (
    "accelerator",
    "accumulate_grad_batches",
    "benchmark",
    "detect_anomaly",
    "deterministic",
    "devices",
    "gradient_clip_algorithm",
    "gradient_clip_val",
    "num_nodes",
    "precision",
    "strategy",
    "sync_batchnorm",
)
# Those that leave the weights in single precision, which evaluation and export rely on.
PRECISIONS = ("32-true", "32", "16-mixed", "16", "bf16-mixed", "bf16")


def _trainer_settings(value: object) -> object:
    if not isinstance(value, dict):
        return value
    for name in value:
        if name not in TRAINER_SETTINGS:
            near = nearest_name(str(name), TRAINER_SETTINGS)
            raise ValueError(f"must have only {', '.join(TRAINER_SETTINGS)}, got {format_value(name)}{near}")
    batches = value.get("accumulate_grad_batches", 1)
    if type(batches) is not int or not 1 <= batches <= _MAX_COUNT:
        rule = f"must have accumulate_grad_batches from 1 to {_MAX_COUNT:,}, an integer"
        raise ValueError(f"{rule}, got {format_value(batches)}")
    if str(precision := value.get("precision", "32")) not in PRECISIONS:
        raise ValueError(f"must have as precision one of {', '.join(PRECISIONS)}, got {format_value(precision)}")
    return value


TrainerSettings = Annotated[dict[str, bool | int | float | str | list[int]], BeforeValidator(_trainer_settings)]


def _with_absolute_path(name: str) -> str:
    """Make the path of a user's file absolute, so that it is found from any folder."""
    place, colon, function = name.rpartition(":")
    return f"{expand_home(place).resolve()}{colon}{function}" if place.endswith(".py") else name


def check_name(name: str, names: dict[str, tuple[str, ...]]) -> str:
    """Return a known name or a reference to a function unchanged; ValueError with the nearest name otherwise."""
    known = sorted({each for of_kind in names.values() for each in of_kind})
    if name in known or is_reference(name):
        return name
    raise ValueError(f"must be one of {', '.join(known)}, or module:function, got {name!r}{nearest_name(name, known)}")


NameOrReference = Annotated[str, AfterValidator(_with_absolute_path)]
LossName = Annotated[NameOrReference, AfterValidator(lambda value: check_name(value, LOSSES))]
MetricName = Annotated[NameOrReference, AfterValidator(lambda value: check_name(value, METRICS))]
RunName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
