"""Kinds of tasks, the names of their losses and metrics, and how a metric's values are shown. Needs no torch.

A study's tables keep the metric's value in the column `accuracy`, whatever it is called: higher is always better.
"""

import difflib

from sca_search.named_object import is_reference

# The first of each kind is the default.
METRICS = {
    "classes": ("accuracy", "balanced-accuracy", "macro-f1"),
    "multi-label": ("macro-f1", "exact-match"),
    "regression": ("r2", "negative-mae", "negative-mse"),
}
LOSSES = {
    "classes": ("cross-entropy", "balanced-cross-entropy"),
    "multi-label": ("binary-cross-entropy",),
    "regression": ("mse", "mae", "huber"),
}
SHARES = frozenset({"accuracy", "balanced-accuracy", "macro-f1", "exact-match"})
ACCURACY = "accuracy"


def is_share(metric: str) -> bool:
    """Whether a metric lies between 0 and 1 and is read in percent."""
    return metric in SHARES


def at_most_one(metric: str | None) -> bool:
    """Whether 1 is the best that there is; None is the default of a kind, and so are all of these."""
    return metric is None or metric == "r2" or is_share(metric)


def short_name(reference: str) -> str:
    """What people read: the name alone of a function of the user's."""
    return reference.rpartition(":")[2]


def shown(metric: str, value: float) -> str:
    """A value with its unit: shares in percent, others as they are."""
    return f"{value:.2%}" if is_share(metric) else f"{value:.5g}"


def shown_spread(metric: str, value: float) -> str:
    """A difference of values: of those with a unit, two digits say what there is to say."""
    return f"{value:.2%}" if is_share(metric) else f"{value:.2g}"


def one(metric: str, level: float) -> float:
    """What counts as one whole where a difference is to be small or large.

    1 for shares and for r2; of a metric with a unit of its own, the size of a level that it has reached.
    """
    return 1.0 if at_most_one(metric) else abs(level) or 1.0


def check_name(given: str, names: dict[str, tuple[str, ...]]) -> str:
    """A known name or a reference to a function, as it is; ValueError with the nearest for anything else."""
    known = sorted({name for of_kind in names.values() for name in of_kind})
    if given in known or is_reference(given):
        return given
    nearest = difflib.get_close_matches(given, known, n=1)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else ""
    raise ValueError(f"must be one of {', '.join(known)}, or module:function, got {given!r}{hint}")
