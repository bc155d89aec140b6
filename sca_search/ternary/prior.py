"""The prior: the α that gives a layer the requested sparsity.

If the regularizer is strong, a weight ends at zero exactly when it starts inside the zero basin |θ| < atanh √(α/2)
(Proposition 3). So sparsity = F(atanh √(α/2)), where F is the distribution of |Θ| when the regularizer starts, and

    α(s) = 2 tanh²(Q_s),   Q_s the s-quantile of |Θ|.

It is monotone and takes one selection per layer.
"""

import math

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sca_search.ternary.parametrize import alpha_of_threshold

# Relative distances from the last quantile in which the new one is searched. In a training step it mostly moves by far
# less than the first, and rarely by more than the second, also where a schedule moves it; a few percent of the weights
# are that close. The third is for schedules of a few hundred steps: still three times as fast as a full selection.
_NEARBY = (0.01, 0.05, 0.25)


def zeros_for_sparsity(sparsity: float, weights: int) -> int:
    """The number of zeros of a layer at a sparsity, to the nearest integer."""
    return math.floor(sparsity * weights + 0.5)


def border(latent: Tensor, sparsity: float, near: float = 0.0) -> float:
    """Q_s: a magnitude with round(s·n) weights below it, halfway between its two neighbors.

    0 for no zeros and infinity for only zeros, as in Propositions 1 and 2. Its value in the last step (`near`) saves
    most of the work and does not change the result.
    """
    zeros = zeros_for_sparsity(sparsity, latent.numel())
    if zeros <= 0:
        return 0.0
    if zeros >= latent.numel():
        return math.inf
    # In memory order, for any layout: a quantile does not depend on it, and nothing is copied.
    magnitudes = latent.detach().abs().cpu().numpy().ravel(order="K")
    some, place = _around(magnitudes, zeros, near)
    # A selection, not torch.quantile, which is limited to 16 M values; numpy's finds both neighbors at once.
    below, above = np.partition(some, (place - 1, place))[place - 1 : place + 1]
    return (float(below) + float(above)) / 2.0


def _around(magnitudes: NDArray[np.float32], rank: int, near: float) -> tuple[NDArray[np.float32], int]:
    """The magnitudes close to the last quantile, and the rank among them; all of them where it has moved away."""
    for nearby in _NEARBY if 0.0 < near < math.inf else ():
        below = magnitudes < (1.0 - nearby) * near
        close = (magnitudes <= (1.0 + nearby) * near) != below
        place = rank - int(np.count_nonzero(below))
        if 0 < place < np.count_nonzero(close):
            return magnitudes[np.flatnonzero(close)], place  # by index: faster than by mask where few are selected
    return magnitudes, rank


def alpha_for_sparsity(latent: Tensor, sparsity: float, near: float = 0.0) -> float:
    """α(s) = 2 tanh²(Q_s) for one layer; `near`: Q_s in the last step."""
    return alpha_of_threshold(border(latent, sparsity, near))
