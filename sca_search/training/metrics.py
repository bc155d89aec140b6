"""How good a network's answers are: one number over a whole split, higher is better, in the user's own units."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from sca_search.config.names import ACCURACY, METRICS, short_name
from sca_search.config.references import USER_ERRORS, describe_error, is_reference, load_object
from sca_search.data import DataSet
from sca_search.errors import CodeError, DivergenceError, SpecError

Measure = Callable[[Tensor, Tensor], float]
"""(outputs, targets), a row an example -> a number"""

# How many samples with replacement tell a standard error: a hundred know it to a fourteenth.
_RESAMPLES = 100


def accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples whose largest output is that of their class."""
    return int((outputs.argmax(1) == targets).sum()) / len(targets)


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean over the classes that occur of the share of their examples that are answered right."""
    right = (outputs.argmax(1) == targets).double()
    classes = [float(right[targets == label].mean()) for label in torch.unique(targets)]
    return sum(classes) / len(classes)


def macro_f1(outputs: Tensor, targets: Tensor) -> float:
    """The mean over classes, or labels, of 2·hits / (2·hits + misses + false alarms); 0 where none of these is.

    Of classes, those that occur among targets or answers; a label is answered where its output is above 0.
    """
    if targets.ndim == 1:
        answers = outputs.argmax(1)
        classes = torch.unique(torch.cat([answers, targets]))
        said, meant = answers[:, None] == classes, targets[:, None] == classes
    else:
        said, meant = outputs > 0, targets > 0.5
    hits, either = (said & meant).sum(0).double(), said.sum(0) + meant.sum(0)
    return float((2 * hits / either.clamp(min=1)).mean())


def exact_match(outputs: Tensor, targets: Tensor) -> float:
    """The share of examples of which every label is answered right."""
    return float(((outputs > 0) == (targets > 0.5)).all(1).double().mean())


def r2(outputs: Tensor, targets: Tensor) -> float:
    """1 - Σ(error²) / Σ(distance from the mean²), the mean over the outputs; no number where targets are all alike."""
    errors = (targets - outputs).double().square().sum(0)
    spreads = (targets.double() - targets.double().mean(0)).square().sum(0)
    return float((1 - errors / spreads).mean())


def negative_mae(outputs: Tensor, targets: Tensor) -> float:
    return -float((targets - outputs).double().abs().mean())


def negative_mse(outputs: Tensor, targets: Tensor) -> float:
    return -float((targets - outputs).double().square().mean())


_MEASURES: dict[str, Measure] = {
    "accuracy": accuracy,
    "balanced-accuracy": balanced_accuracy,
    "macro-f1": macro_f1,
    "exact-match": exact_match,
    "r2": r2,
    "negative-mae": negative_mae,
    "negative-mse": negative_mse,
}


@dataclass(frozen=True)
class Metric:
    """A measure with its name; what it gives is checked, since a user may have written it."""

    name: str
    measure: Measure

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        try:
            value = self.measure(outputs, targets)
        except USER_ERRORS as error:
            raise CodeError(f"the metric {self.name} failed with {describe_error(error)}") from error
        return self._number(value, outputs)

    def _number(self, value: object, outputs: Tensor) -> float:
        try:
            number = float(value)  # type: ignore[arg-type]  # whatever is none raises
        except (TypeError, ValueError, RuntimeError):
            kind = type(value).__name__
            raise CodeError(f"the metric {self.name} must give one finite number, it gave a {kind}") from None
        if math.isfinite(number):
            return number
        if not bool(torch.isfinite(outputs).all()):
            raise DivergenceError("the network's answers are not finite")
        raise CodeError(f"the metric {self.name} must give one finite number, it gave {number}")

    def standard_error(self, outputs: Tensor, targets: Tensor) -> float | None:
        """How far chance may move the value, by bootstrap: its spread over examples drawn with replacement.

        None of accuracy, whose error follows from its value; 0 where a sample has no value, as without any of a class.
        """
        if self.measure is accuracy:
            return None
        generator = np.random.default_rng(0)
        values = []
        for _ in range(_RESAMPLES):
            rows = torch.from_numpy(generator.integers(0, len(targets), len(targets)))
            try:
                values.append(self(outputs[rows], targets[rows]))
            except CodeError:
                return 0.0
        return float(np.std(values))


ACCURACY_METRIC = Metric(ACCURACY, accuracy)


def metric_of(given: str | Measure | None, data: DataSet) -> Metric:
    """The metric of that name, or a user's function, by its name or itself; by default that of the data's kind."""
    known = METRICS[data.kind]
    name = given if isinstance(given, str | None) else getattr(given, "__name__", type(given).__name__)
    if not isinstance(given, str | None):
        measure: Measure = given
    elif given is not None and is_reference(given):
        function = load_object(given, "the metric")
        if not callable(function):
            raise SpecError(f"the metric {given} must be a function of (outputs, targets), got {function!r}")
        measure = function
    elif given is None or given in known:
        measure = _MEASURES[given or known[0]]
    else:
        raise SpecError(
            f"the metric {given} is not for targets that are {data.kind}, as those of {data.name}: "
            f"known are {', '.join(known)}"
        )
    return Metric(
        short_name(name or known[0]), partial(_in_units, measure, data) if data.input.is_standardised else measure
    )


def _in_units(measure: Measure, data: DataSet, outputs: Tensor, targets: Tensor) -> float:
    return measure(data.in_units(outputs), data.in_units(targets))


def try_metric(metric: Metric, data: DataSet) -> None:
    """Asks a metric once before anything is trained, with noise for answers."""
    targets = data.val.labels
    noise = torch.randn(len(targets), data.num_classes, generator=torch.Generator().manual_seed(0))
    try:
        metric(noise, targets)
    except CodeError as error:
        raise SpecError(f"data set {data.name!r}: {error}") from error
