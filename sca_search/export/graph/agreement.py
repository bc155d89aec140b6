"""Whether two implementations of a model agree: logits, classes, and a time limit for comparing them."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sca_search.export.graph.records import Floats

Run = Callable[[Floats], NDArray[np.floating]]
"""Images before normalization -> logits."""

TOLERANCE = 1e-5
"""Allowed difference of logits, relative to the largest: float32 sums in another order stay below."""


@dataclass(frozen=True)
class Agreement:
    """How the logits a of a format compare with the expected b."""

    images: int
    difference: float  # max|a - b| / max|b|
    other_class: int  # images with another predicted class that no tie explains
    ties: int  # images whose largest logits are too close to be ordered
    has_classes: bool = True  # otherwise only values are compared

    @property
    def holds(self) -> bool:
        return self.difference <= TOLERANCE and self.other_class == 0

    def __str__(self) -> str:
        if not self.has_classes:
            return f"{self.difference:.1e} apart"
        classes = f"another class for {self.other_class}" if self.other_class else "same classes"
        ties = f" but for {self.ties} ties" if self.ties else ""
        return f"{self.difference:.1e} apart, {classes}{ties}"


def agreement(answers: NDArray[np.floating], expected: NDArray[np.floating], *, has_classes: bool = True) -> Agreement:
    """Compares logits of the same images."""
    a, b = answers.astype(np.float64), expected.astype(np.float64)
    largest, apart = float(np.abs(b).max(initial=0.0)), float(np.abs(a - b).max(initial=0.0))
    difference = apart / largest if largest > 0 else (0.0 if apart == 0 else np.inf)
    difference = difference if bool(np.isfinite(a).all()) else np.inf
    if not has_classes:
        return Agreement(len(b), difference, 0, 0, has_classes=False)
    mine, theirs = a.argmax(1), b.argmax(1)
    rows = np.arange(len(b))
    other = mine != theirs
    # Two logits that each deviate by the tolerance may swap ranks within twice the tolerance.
    close = b[rows, theirs] - b[rows, mine] <= 2 * TOLERANCE * largest
    return Agreement(len(b), difference, int((other & ~close).sum()), int((other & close).sum()))


def compare(
    runs: Mapping[str, Run], reference: Run, batches: Iterable[Floats], seconds: float, *, has_classes: bool = True
) -> dict[str, Agreement]:
    """Run every format on the batches, each until it has used `seconds` of its own."""
    answers, expected = _timed(runs, reference, batches, seconds)
    return {name: agreement(found, expected[: len(found)], has_classes=has_classes) for name, found in answers.items()}


def _timed(
    runs: Mapping[str, Run], reference: Run, batches: Iterable[Floats], seconds: float
) -> tuple[dict[str, NDArray[np.floating]], NDArray[np.floating]]:
    """The answers of each and of the reference; what answers fewer batches has those of the first."""
    every = {"": reference, **runs}
    left = dict.fromkeys(every, seconds)
    answers: dict[str, list[NDArray[np.floating]]] = {name: [] for name in every}
    for images in batches:
        waiting = [name for name in every if left[name] > 0]
        if "" not in waiting or len(waiting) == 1:
            break
        for name in waiting:
            began = time.monotonic()
            answers[name].append(every[name](images))
            left[name] -= time.monotonic() - began
    found = {name: np.concatenate(each) for name, each in answers.items() if each}
    return found, found.pop("", np.empty(0))


def portions(batches: Iterable[Floats], size: int) -> Iterator[Floats]:
    """The batches split into smaller ones, so that a slow format stops soon after its time limit."""
    for batch in batches:
        yield from (batch[begin : begin + size] for begin in range(0, len(batch), size))


def compare_classes(
    runs: tuple[Run, Run], batches: Iterable[Floats], labels: Callable[[], NDArray[np.int64]] | None, seconds: float
) -> str:
    """The classes of two models, which need not be equal, as a sentence; each runs for at most this many seconds."""
    answers, others = _timed({"mine": runs[0]}, runs[1], batches, seconds)
    mine, other = answers["mine"].argmax(1), others.argmax(1)
    text = f"the same class for {(mine == other).sum()} of {len(mine)} validation images"
    if labels is None:
        return text
    known = labels()[: len(mine)]
    accuracies = [int((classes == known).sum()) / len(mine) for classes in (mine, other)]
    return f"{text}; accuracy {accuracies[0]:.2%}, with float activations {accuracies[1]:.2%}"


def compare_values(runs: tuple[Run, Run], batches: Iterable[Floats], seconds: float) -> str:
    """The difference of the values of two models, which need not be equal, as a sentence."""
    answers, others = _timed({"mine": runs[0]}, runs[1], batches, seconds)
    mine, other = answers["mine"].astype(np.float64), others.astype(np.float64)
    every = np.abs(mine - other) / (float(np.abs(other).max()) or 1.0)
    return f"{every.mean():.1e} apart on average, {every.max():.1e} at most, on {len(every)} validation examples"
