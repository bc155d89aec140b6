"""The built-in metrics: name, kinds of task, function and unit in one table. Needs no torch.

A metric maps (outputs, targets), tensors with one row per example, to a number in the user's units; higher is better.
They are not scikit-learn's: its r2_score squares in float32 and is 0 or 1 where all targets are equal, which must be
an error here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

ACCURACY = "accuracy"


@dataclass(frozen=True)
class MetricInfo:
    """A built-in metric."""

    kinds: tuple[str, ...]  # kinds of task; the first metric of a kind is its default
    measure: "Callable[[Tensor, Tensor], float]"
    is_fraction: bool = False  # between 0 and 1, shown in percent
    at_most_one: bool = False  # 1 is the best possible value


def accuracy(outputs: "Tensor", targets: "Tensor") -> float:
    """The fraction of examples whose largest output is that of their class."""
    return int((outputs.argmax(1) == targets).sum()) / len(targets)


def balanced_accuracy(outputs: "Tensor", targets: "Tensor") -> float:
    """The mean accuracy per class, over the classes that occur."""
    correct = (outputs.argmax(1) == targets).double()
    classes = [float(correct[targets == label].mean()) for label in np.unique(targets).tolist()]
    return sum(classes) / len(classes)


def macro_f1(outputs: "Tensor", targets: "Tensor") -> float:
    """The mean over classes, or labels, of 2·TP / (2·TP + FN + FP); 0 where all of these are 0.

    Classes are those that occur among targets or predictions; a label is predicted where its output is above 0.
    """
    if targets.ndim == 1:
        labels = outputs.argmax(1)
        classes = targets.new_tensor(np.union1d(labels, targets))
        predicted, actual = labels[:, None] == classes, targets[:, None] == classes
    else:
        predicted, actual = outputs > 0, targets > 0.5
    hits, either = (predicted & actual).sum(0).double(), predicted.sum(0) + actual.sum(0)
    return float((2 * hits / either.clamp(min=1)).mean())


def exact_match(outputs: "Tensor", targets: "Tensor") -> float:
    """The fraction of examples with every label predicted correctly."""
    return float(((outputs > 0) == (targets > 0.5)).all(1).double().mean())


def r2(outputs: "Tensor", targets: "Tensor") -> float:
    """1 - Σ(error²) / Σ(distance from the mean²), the mean over the outputs; NaN where all targets are equal."""
    errors = (targets - outputs).double().square().sum(0)
    spreads = (targets.double() - targets.double().mean(0)).square().sum(0)
    return float((1 - errors / spreads).mean())


def negative_mae(outputs: "Tensor", targets: "Tensor") -> float:
    return -float((targets - outputs).double().abs().mean())


def negative_mse(outputs: "Tensor", targets: "Tensor") -> float:
    return -float((targets - outputs).double().square().mean())


METRIC_TABLE = {
    ACCURACY: MetricInfo(("classes",), accuracy, is_fraction=True, at_most_one=True),
    "balanced-accuracy": MetricInfo(("classes",), balanced_accuracy, is_fraction=True, at_most_one=True),
    "macro-f1": MetricInfo(("classes", "multi-label"), macro_f1, is_fraction=True, at_most_one=True),
    "exact-match": MetricInfo(("multi-label",), exact_match, is_fraction=True, at_most_one=True),
    "r2": MetricInfo(("regression",), r2, at_most_one=True),
    "negative-mae": MetricInfo(("regression",), negative_mae),
    "negative-mse": MetricInfo(("regression",), negative_mse),
}
