"""A study's metric: one number over a whole split, higher is better, in the user's units."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from sca_search.config.metrics import ACCURACY, METRIC_TABLE, accuracy
from sca_search.config.names import METRICS, short_name
from sca_search.config.references import USER_ERRORS, describe_error
from sca_search.errors import CodeError, DivergenceError, SpecError
from sca_search.training.losses import named_function

if TYPE_CHECKING:
    from sca_search.data import DataSet

Measure = Callable[[Tensor, Tensor], float]
"""(outputs, targets), one row per example -> a number"""

# Bootstrap samples of a standard error: a hundred give it to a fourteenth.
_RESAMPLES = 100


@dataclass(frozen=True)
class Metric:
    """A function with its name; its values are checked, since it may be the user's."""

    name: str
    measure: Measure

    def __call__(self, outputs: Tensor, targets: Tensor) -> float:
        try:
            value = self.measure(outputs, targets)
        except USER_ERRORS as error:
            raise CodeError(f"the metric {self.name} failed with {describe_error(error)}") from error
        try:
            number = float(value)  # raises where it is not a number
        except (TypeError, ValueError, RuntimeError):
            kind = type(value).__name__
            raise CodeError(f"the metric {self.name} must return one finite number, got a {kind}") from None
        if math.isfinite(number):
            return number
        if not bool(torch.isfinite(outputs).all()):
            raise DivergenceError("the network's outputs are not finite")
        raise CodeError(f"the metric {self.name} must return one finite number, got {number}")

    def standard_error(self, outputs: Tensor, targets: Tensor) -> float | None:
        """The bootstrap standard error: the standard deviation over examples drawn with replacement.

        None for accuracy, whose error follows from its value; 0 where a sample has no value, as without any of a class.
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


def metric_of(metric: str | Measure | None, data: "DataSet") -> Metric:
    """The metric of that name, or the user's function or a reference to it; default: that of the data's kind."""
    name, function = named_function("metric", metric, METRICS[data.kind], data)
    measure: Measure = METRIC_TABLE[name].measure if function is None else function
    if not data.input.is_standardized:
        return Metric(short_name(name), measure)
    return Metric(short_name(name), lambda outputs, targets: measure(data.in_units(outputs), data.in_units(targets)))


def try_metric(metric: Metric, data: "DataSet") -> None:
    """Call a metric once with random outputs before anything is trained; SpecError if it fails."""
    targets = data.val.labels
    noise = torch.randn(len(targets), data.num_classes, generator=torch.Generator().manual_seed(0))
    try:
        metric(noise, targets)
    except CodeError as error:
        raise SpecError(f"data set {data.name!r}: {error}") from error
