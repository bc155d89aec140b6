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

from sca_search.ternary import alpha_of_threshold, threshold_of_alpha

# A quantile of a layer moves by far less than this in a step of training; a few weights in a hundred lie so near to it.
_NEARBY = 0.05


def zeros_for_sparsity(sparsity: float, weights: int) -> int:
    """How many of a layer's weights are zero at a sparsity, to the nearest whole weight."""
    return math.floor(sparsity * weights + 0.5)


def border(latent: Tensor, sparsity: float, near: float = 0.0) -> float:
    """Q_s: a magnitude with round(s·n) weights below it, half-way between its two neighbours.

    0 for no zeros at all and infinity for nothing but zeros, as Propositions 1 and 2 have it. Where it was a step ago
    (`near`) spares most of the work and does not change the answer.
    """
    magnitudes = latent.detach().abs().flatten()
    zeros = zeros_for_sparsity(sparsity, magnitudes.numel())
    if zeros <= 0:
        return 0.0
    if zeros >= magnitudes.numel():
        return math.inf
    below, above = _neighbours(magnitudes.cpu().numpy(), zeros, near)
    return (below + above) / 2.0


def _neighbours(magnitudes: NDArray[np.float32], rank: int, near: float) -> tuple[float, float]:
    """The last magnitude below a rank, and the first from it on."""
    low, high = (1.0 - _NEARBY) * near, (1.0 + _NEARBY) * near
    if 0.0 < near < math.inf:
        around = magnitudes[(magnitudes >= low) & (magnitudes <= high)]
        place = rank - int(np.count_nonzero(magnitudes < low))
        if 0 < place < len(around):
            magnitudes, rank = around, place
    # A selection, not torch.quantile, which refuses more than 16 M values; numpy's finds both neighbours at once.
    below, above = np.partition(magnitudes, (rank - 1, rank))[rank - 1 : rank + 1]
    return float(below), float(above)


def alpha_for_sparsity(latent: Tensor, sparsity: float, near: float = 0.0) -> float:
    """α(s) = 2 tanh²(Q_s) for one layer; `near`: Q_s a step ago."""
    return alpha_of_threshold(border(latent, sparsity, near))


def sparsity_for_alpha(latent: Tensor, alpha: float) -> float:
    """F(atanh √(α/2)): the share of a layer's weights inside the zero basin of α."""
    if latent.numel() == 0:
        return 0.0
    inside = latent.detach().abs() < threshold_of_alpha(alpha)
    return float(torch.count_nonzero(inside)) / latent.numel()
