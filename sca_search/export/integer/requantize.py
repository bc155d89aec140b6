"""Integer sums as integer values on another scale: by a factor, a bias and a shift per channel.

A value q stands for q · unit. A layer's output is (sum · factor + bias + other · residual) >> shift, rounded down: the
bias includes half a unit, so that the result is the nearest integer, with ties rounded up. It is then clipped to
[lowest, highest]. All of it is defined in integers of 64 bits; beyond `sum_limits` the result is clipped whatever the
sum, and between these limits 32 bits are enough.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sca_search.errors import ExportError

HIGHEST = 127
"""Values are from -127 to 127, so that every value can be negated."""

LOGIT_LIMIT = 2**24 - 1
"""Up to here, an integer is a float32 without rounding."""

_MOST_SHIFT = 30
_INT32 = 2**31 - 1

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Requantization:
    """Factor, bias and shift per channel, and the factor of a residual."""

    factor: Integers
    bias: Integers
    other: Integers
    shift: Integers
    lowest: int
    highest: int

    @cached_property
    def sum_limits(self) -> tuple[Integers, Integers]:
        """The sums per channel beyond which the result is the lowest or the highest, whatever the residual."""
        beyond = ((HIGHEST + 1) << self.shift) + HIGHEST * np.abs(self.other)
        factor = np.where(self.factor == 0, 1, np.abs(self.factor))
        sign = np.sign(self.factor)
        up, down = -((self.bias - beyond) // factor), (-beyond - self.bias - 1) // factor
        ends = np.stack([sign * up, sign * down])
        low, high = ends.min(axis=0), ends.max(axis=0)
        return np.clip(low, -_INT32, _INT32), np.clip(high, -_INT32, _INT32)


@dataclass(frozen=True, eq=False)
class Scaling:
    """What the integers approximate: sum · ratio + bias + residual · other, in units of the result."""

    ratio: NDArray[np.float64]
    bias: NDArray[np.float64]
    other: float = 0.0
    limits: tuple[float, float] = (-math.inf, math.inf)  # in the same units

    @classmethod
    def of_one(cls, ratio: float, other: float = 0.0) -> "Scaling":
        """The same for all channels."""
        return cls(np.array([ratio]), np.zeros(1), other)


def requantization(where: str, scaling: Scaling) -> Requantization:
    """With the largest shift for which 32 bits are enough; ExportError if there is none."""
    shifts = np.full(len(scaling.ratio), -1)
    for shift in range(_MOST_SHIFT + 1):
        factor, bias, other = _at(scaling, shift)
        room = (HIGHEST + 1) * 2.0**shift + 2 * HIGHEST * np.abs(other) + np.abs(bias) + np.abs(factor)
        shifts = np.where(room < _INT32, shift, shifts)
    if (shifts < 0).any():
        channel = int(np.argmin(shifts))
        raise ExportError(
            f"{where}: the scale {scaling.ratio[channel]:.3g} and bias {scaling.bias[channel]:.3g} of channel {channel}"
            " are too large for integer activations, compared with the measured values"
        )
    return _rounded(scaling, shifts, HIGHEST)


def logit_requantization(where: str, scaling: Scaling) -> Requantization:
    """For logits, which are integers of 25 bits: products have 64 bits."""
    largest = float(np.abs(scaling.ratio).max(initial=0.0))
    shift = _MOST_SHIFT - max(0, math.ceil(math.log2(largest)) if largest > 0 else 0)
    if shift < 0 or not np.abs(scaling.bias).max(initial=0.0) < 2**31:
        raise ExportError(f"{where}: its scale or bias is too large for integer activations, compared with the logits")
    shifts = np.full(len(scaling.ratio), shift)
    return _rounded(scaling, shifts, LOGIT_LIMIT)


def _rounded(scaling: Scaling, shifts: NDArray[np.integer], most: int) -> Requantization:
    factor, bias, other = (values.astype(np.int64) for values in _at(scaling, shifts))
    lowest, highest = (int(np.clip(np.rint(limit), -most, most)) for limit in scaling.limits)
    return Requantization(factor, bias, other, shifts.astype(np.int64), lowest, highest)


def _at(scaling: Scaling, shift: "int | NDArray[np.integer]") -> tuple[NDArray[np.float64], ...]:
    """Factor, bias and the residual's factor, of any magnitude."""
    power = np.power(2.0, np.broadcast_to(shift, scaling.ratio.shape))
    half = np.floor(power / 2)  # nothing where nothing is shifted out
    return np.rint(scaling.ratio * power), np.rint(scaling.bias * power) + half, np.rint(scaling.other * power)


def requantize(sums: Integers, to: Requantization, residual: Integers | int = 0) -> Integers:
    """Sums with channels along the second axis, or of any shape with the numbers of a single channel."""
    factor, bias, other, shift = (
        values.reshape(1, -1, *[1] * (sums.ndim - 2)) for values in (to.factor, to.bias, to.other, to.shift)
    )
    shifted: Integers = (sums * factor + bias + residual * other) >> shift
    return shifted.clip(to.lowest, to.highest)
