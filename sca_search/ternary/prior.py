"""The prior: which α gives a layer the sparsity asked for, and the other way round.

If the pull is strong, a weight ends at zero exactly when it starts inside the zero basin |θ| < atanh √(α/2)
(Proposition 3). So sparsity = F(atanh √(α/2)), F being the distribution of |Θ| when the pull begins, and

    α(s) = 2 tanh²(Q_s),   Q_s the s-quantile of |Θ|.

Monotone, a layer at a time, one selection each.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sca_search.ternary.parametrize import alpha_of_threshold, threshold_of_alpha

# A quantile of a layer mostly moves by far less than the first of these in a step of training, and seldom by more than
# the second, where a schedule moves it, too; a few weights in a hundred lie so near to it. The third is for schedules
# of a few hundred steps: even then it is three times as fast as a selection among all.
_NEARBY = (0.01, 0.05, 0.25)


def zeros_for_sparsity(sparsity: float, weights: int) -> int:
    """How many of a layer's weights are zero at a sparsity, to the nearest whole weight."""
    return math.floor(sparsity * weights + 0.5)


def border(latent: Tensor, sparsity: float, near: float = 0.0) -> float:
    """Q_s: a magnitude with round(s·n) weights below it, half-way between its two neighbours.

    0 for no zeros at all and infinity for nothing but zeros, as Propositions 1 and 2 have it. Where it was a step ago
    (`near`) spares most of the work and does not change the answer.
    """
    zeros = zeros_for_sparsity(sparsity, latent.numel())
    if zeros <= 0:
        return 0.0
    if zeros >= latent.numel():
        return math.inf
    # In the order of memory, whatever the layout: a quantile does not mind, and nothing is copied.
    magnitudes = latent.detach().abs().cpu().numpy().ravel(order="K")
    below, above = _neighbours(magnitudes, zeros, near)
    return (below + above) / 2.0


def _neighbours(magnitudes: NDArray[np.float32], rank: int, near: float) -> tuple[float, float]:
    """The last magnitude below a rank, and the first from it on."""
    some, place = _around(magnitudes, rank, near)
    # A selection, not torch.quantile, which refuses more than 16 M values; numpy's finds both neighbours at once.
    below, above = np.partition(some, (place - 1, place))[place - 1 : place + 1]
    return float(below), float(above)


def _around(magnitudes: NDArray[np.float32], rank: int, near: float) -> tuple[NDArray[np.float32], int]:
    """The magnitudes close to where a rank was, and its place among them; all of them where it has moved away."""
    for nearby in _NEARBY if 0.0 < near < math.inf else ():
        below = magnitudes < (1.0 - nearby) * near
        close = (magnitudes <= (1.0 + nearby) * near) != below
        place = rank - int(np.count_nonzero(below))
        if 0 < place < np.count_nonzero(close):
            return magnitudes[np.flatnonzero(close)], place  # by number: faster than by mask where few are taken
    return magnitudes, rank


def alpha_for_sparsity(latent: Tensor, sparsity: float, near: float = 0.0) -> float:
    """α(s) = 2 tanh²(Q_s) for one layer; `near`: Q_s a step ago."""
    return alpha_of_threshold(border(latent, sparsity, near))


def sparsity_for_alpha(latent: Tensor, alpha: float) -> float:
    """F(atanh √(α/2)): the share of a layer's weights inside the zero basin of α."""
    if latent.numel() == 0:
        return 0.0
    inside = latent.detach().abs() < threshold_of_alpha(alpha)
    return float(torch.count_nonzero(inside)) / latent.numel()
