"""Every error that a user can meet, as one tree.

    ScaError                 anything this package raises on purpose
    ├── InputError           the user's mistake: one sentence, exit code 2, nothing written
    │   ├── SpecError        a study file or a flag
    │   ├── DataError        a data set: unknown, unreachable, malformed
    │   ├── ModelError       a network: unknown, or without a layer to make ternary
    │   ├── RunError         a run folder: missing, damaged, or of another study
    │   │   ├── TakenError       another process works on it
    │   │   └── CheckpointError  a training that was interrupted cannot go on from what it left; it starts again
    │   └── ExportError      a network that a format cannot express, or an exported file that cannot be trusted
    ├── StorageError         the machine's fault: a full disk, a folder that cannot be written; exit code 2
    ├── DivergenceError      a training that left the finite numbers; ends its trial, not the study
    ├── LimitError           a training ran out of memory or time; ends its trial, not the study
    └── CodeError            the user's own code failed in the middle of a study; ends its trial, not the study

A message says where, what, the rule, and what was given.
"""

import difflib
from collections.abc import Iterable


class ScaError(Exception):
    """Anything this package raises on purpose."""


class InputError(ScaError):
    """Something the user gave cannot be used."""


class SpecError(InputError):
    """A study file or a flag breaks a rule."""


class DataError(InputError):
    """A data set is unknown, unreachable or malformed."""


class ModelError(InputError):
    """A network is unknown or has nothing to make ternary."""


class RunError(InputError):
    """A run folder is missing, damaged, or holds another study."""


class TakenError(RunError):
    """Another process works on a run folder."""


class CheckpointError(RunError):
    """A training that was interrupted cannot go on from what it left."""


class ExportError(InputError):
    """A network cannot be expressed in a format, or an exported file cannot be trusted."""


class StorageError(ScaError):
    """The machine could not store what the run produced."""


DIVERGED = "diverged: "
"""How the reason of a trial begins whose training left the finite numbers; others failed for want of room or time."""


class DivergenceError(ScaError):
    """A training left the finite numbers."""

    def __str__(self) -> str:
        return f"{DIVERGED}{super().__str__()}"


class LimitError(ScaError):
    """A training ran out of memory or time."""


class CodeError(ScaError):
    """A network, a loss, a metric or a data set of the user's raised, or gave something else than it must."""


def unknown_name(what: str, given: str, known: Iterable[str]) -> str:
    """A sentence for a name that nobody knows: the known ones, and the nearest if one is near."""
    names = sorted(known)
    return f"unknown {what} {given!r}: known are {', '.join(names)}{nearest_name(given, names)}"


def nearest_name(given: str, known: Iterable[str]) -> str:
    """A question about the nearest known name, or nothing if none is near."""
    nearest = difflib.get_close_matches(given, sorted(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
