"""The hierarchy of errors. A command ends with exit code 2 after an InputError or a StorageError.

A message says where, what, the rule, and the actual value.
"""

import difflib
from collections.abc import Iterable


class ScaError(Exception):
    """Anything this package raises on purpose."""


class InputError(ScaError):
    """The user's input is invalid: reported in one sentence, and nothing is written."""


class SpecError(InputError):
    """A study file or a flag breaks a rule."""


class DataError(InputError):
    """A data set is unknown, unreachable or malformed."""


class ModelError(InputError):
    """A network is unknown or has no layer to ternarize."""


class RunError(InputError):
    """A run folder is missing, damaged, or holds another study."""


class TakenError(RunError):
    """A run folder is in use by another process."""


class CheckpointError(RunError):
    """An interrupted training cannot be resumed from its checkpoint; it starts again."""


class ExportError(InputError):
    """A format does not support a network, or an exported file is invalid."""


class StorageError(ScaError):
    """The run's files could not be written: the disk is full, or a folder is not writable."""


DIVERGED = "diverged: "
"""The prefix of the reason of a trial that diverged; other trials fail by lack of memory or time."""


class DivergenceError(ScaError):
    """Training diverged (NaN or infinity); ends its trial, not the study."""

    def __str__(self) -> str:
        return f"{DIVERGED}{super().__str__()}"


class LimitError(ScaError):
    """Training ran out of memory or time; ends its trial, not the study."""


class CodeError(ScaError):
    """The user's network, loss, metric or data set failed during a study; ends its trial, not the study."""


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """A message for an unknown name: the known ones, and the closest if one is close."""
    names = sorted(known)
    return f"unknown {what} {name!r}: known are {', '.join(names)}{nearest_name(name, names)}"


def nearest_name(name: str, known: Iterable[str]) -> str:
    """A suggestion of the closest known name, or nothing if none is close."""
    nearest = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {nearest[0]!r}?" if nearest else ""
