"""The prior: which α gives a layer the sparsity asked for, and the other way round.

If the pull is strong, a weight ends at zero exactly when it starts inside the zero basin |θ| < atanh √(α/2)
(Proposition 3). So sparsity = F(atanh √(α/2)), F being the distribution of |Θ| when the pull begins, and

    α(s) = 2 tanh²(Q_s),   Q_s the s-quantile of |Θ|.

Monotone, a layer at a time, one selection each.
"""

import math

import numpy as np
import torch
from torch import Tensor

from sca_search.ternary import alpha_of_threshold, threshold_of_alpha


def zeros_for_sparsity(sparsity: float, weights: int) -> int:
    """How many of a layer's weights are zero at a sparsity, to the nearest whole weight."""
    return math.floor(sparsity * weights + 0.5)


def border(latent: Tensor, sparsity: float) -> float:
    """Q_s: a magnitude with round(s·n) weights below it, half-way between its two neighbours.

    0 for no zeros at all and infinity for nothing but zeros, as Propositions 1 and 2 have it.
    """
    magnitudes = latent.detach().abs().flatten()
    zeros = zeros_for_sparsity(sparsity, magnitudes.numel())
    if zeros <= 0:
        return 0.0
    if zeros >= magnitudes.numel():
        return math.inf
    # A selection, not torch.quantile, which refuses more than 16 M values; numpy's finds both neighbours at once.
    below, above = np.partition(magnitudes.cpu().numpy(), (zeros - 1, zeros))[zeros - 1 : zeros + 1]
    return (float(below) + float(above)) / 2.0


def alpha_for_sparsity(latent: Tensor, sparsity: float) -> float:
    """α(s) = 2 tanh²(Q_s) for one layer."""
    return alpha_of_threshold(border(latent, sparsity))


def sparsity_for_alpha(latent: Tensor, alpha: float) -> float:
    """F(atanh √(α/2)): the share of a layer's weights inside the zero basin of α."""
    if latent.numel() == 0:
        return 0.0
    inside = latent.detach().abs() < threshold_of_alpha(alpha)
    return float(torch.count_nonzero(inside)) / latent.numel()
