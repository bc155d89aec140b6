"""The kinds of values that a study file and flags may hold, and how a text becomes one."""

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, Field

from sca_search.errors import nearest_name
from sca_search.method_names import METHODS, NOT_DONE
from sca_search.metric_name import LOSSES, METRICS, check_name
from sca_search.recipe import Measure, PositiveFloat
from sca_search.schedule import Share
from sca_search.spec_faults import shown

# Strict, as in a schedule: `true` is no number.
Whole = Annotated[int, Field(strict=True)]
# Beyond these a number is a slip of the finger, or meant to fill somebody's memory: a plan has an entry a trial.
_MOST = 1_000_000
MOST_PROCESSES = 1024
Count = Annotated[Whole, Field(ge=1, le=_MOST)]
CountOrNone = Annotated[Whole, Field(ge=0, le=_MOST)]
Pixels = Annotated[Whole, Field(ge=1, le=4096)]  # of a side
MOST_SEEDS = 10_000
Processes = Annotated[Whole, Field(ge=1, le=MOST_PROCESSES)]
Threads = Annotated[Whole, Field(ge=0, le=MOST_PROCESSES)]
ShareBelowOne = Annotated[float, Field(strict=True, ge=0, lt=1)]

_SECONDS = {"s": 1, "m": 60, "h": 3600}


def _seconds(given: object) -> object:
    """'90', '90s', '10m' and '2h' are numbers of seconds."""
    if not isinstance(given, str):
        return given
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)\s*", given)
    if match is None:
        raise ValueError(f"must be a number of seconds or a time like 90s, 10m or 2h, got {shown(given)}")
    return float(match[1]) * _SECONDS[match[2] or "s"]


def _range(given: object) -> object:
    """A number stands for a range that holds only itself."""
    if isinstance(given, int | float) and not isinstance(given, bool):
        return (given, given)
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ValueError(f"must be a number or [low, high], got {shown(given)}")
    return given


def _rising(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[1] < ends[0]:
        raise ValueError(f"must be a number or [low, high] with low <= high, got {list(ends)}")
    return ends


def _names(given: object) -> object:
    """'a,b' is a list of two patterns, as a flag gives it."""
    return tuple(part.strip() for part in given.split(",") if part.strip()) if isinstance(given, str) else given


# Thirty years: a thread cannot be told to wait for much longer.
Seconds = Annotated[PositiveFloat, Field(le=1e9), BeforeValidator(_seconds)]
HalfWidth = Annotated[float, Field(strict=True, ge=0, le=20)]  # of a logarithm: its exponential is half a billion
# Beyond it, answers that are softened by it are all alike.
Temperature = Annotated[PositiveFloat, Field(le=1e4)]
Patterns = Annotated[tuple[str, ...], BeforeValidator(_names)]
PositiveRange = Annotated[tuple[Measure, Measure], BeforeValidator(_range), AfterValidator(_rising)]
ShareRange = Annotated[tuple[ShareBelowOne, ShareBelowOne], BeforeValidator(_range), AfterValidator(_rising)]


def _place(given: Path) -> Path:
    """No shell has seen what a study file says, and no system call."""
    if "\0" in str(given):
        raise ValueError(f"must be the name of a file or folder, got {str(given)[:200]!r}")
    try:
        return given.expanduser()
    except RuntimeError as error:
        raise ValueError(f"must be the name of a file or folder, got {str(given)[:200]!r}: {error}") from error


Folder = Annotated[Path, AfterValidator(_place)]
# Above 3, tanh² of an upper quantile is 1 to the last bit, and α could not tell sparsities apart.
_SpreadEnd = Annotated[PositiveFloat, Field(le=3)]
Spread = Annotated[tuple[_SpreadEnd, _SpreadEnd], BeforeValidator(_range), AfterValidator(_rising)]
HoldRange = Annotated[tuple[Share, Share], BeforeValidator(_range), AfterValidator(_rising)]
_Early = Annotated[float, Field(strict=True, ge=0, lt=0.9)]  # sharpness is at its end after nine tenths
EarlyRange = Annotated[tuple[_Early, _Early], BeforeValidator(_range), AfterValidator(_rising)]
KeptShare = Annotated[float, Field(strict=True, gt=0, le=1)]
Growths = Annotated[
    tuple[Literal["linear", "exponential", "step"], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
    Field(min_length=1),
]


Augmentation = Literal["none", "crop-flip", "scale-aspect"]


def known_method(given: object) -> object:
    """One of the methods; a name that is none of them is answered with the nearest."""
    if isinstance(given, str) and given not in METHODS:
        if given in NOT_DONE:
            raise ValueError(f"must be a method that is there; {given} is not, since {NOT_DONE[given]}")
        raise ValueError(f"must be one of {', '.join(METHODS)}, got {given!r}{nearest_name(given, METHODS)}")
    return given


def known_augmentation(given: object) -> object:
    known = get_args(Augmentation)
    if isinstance(given, str) and given not in known:
        raise ValueError(f"must be one of {', '.join(known)}, got {given!r}{nearest_name(given, known)}")
    return given


# Of Lightning's Trainer. The others are the study's business: how long, what is logged, what is kept.
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


# Those that leave a network's weights in single precision, as all that measures and exports it takes for granted.
PRECISIONS = ("32-true", "32", "16-mixed", "16", "bf16-mixed", "bf16")


def _trainer_settings(given: object) -> object:
    if not isinstance(given, dict):
        return given
    for name in given:
        if name not in TRAINER_SETTINGS:
            near = nearest_name(str(name), TRAINER_SETTINGS)
            raise ValueError(f"must have only {', '.join(TRAINER_SETTINGS)}, got {shown(name)}{near}")
    together = given.get("accumulate_grad_batches", 1)
    if type(together) is not int or not 1 <= together <= _MOST:
        raise ValueError(
            f"must have accumulate_grad_batches from 1 to {_MOST:,}, a whole number, got {shown(together)}"
        )
    if str(precision := given.get("precision", "32")) not in PRECISIONS:
        raise ValueError(f"must have as precision one of {', '.join(PRECISIONS)}, got {shown(precision)}")
    return given


TrainerSettings = Annotated[dict[str, bool | int | float | str | list[int]], BeforeValidator(_trainer_settings)]


# How names begin that stand for an object made in Python.
IN_PYTHON = "python:"


def _with_whole_path(name: str) -> str:
    """A user's file is found again from wherever a run is looked at."""
    place, colon, own = name.rpartition(":")
    return f"{Path(place).expanduser().resolve()}{colon}{own}" if place.endswith(".py") else name


OwnName = Annotated[str, AfterValidator(_with_whole_path)]
LossName = Annotated[OwnName, AfterValidator(lambda given: check_name(given, LOSSES))]
MetricName = Annotated[OwnName, AfterValidator(lambda given: check_name(given, METRICS))]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
