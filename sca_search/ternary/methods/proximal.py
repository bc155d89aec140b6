"""Piecewise-affine regularized quantization: latents accumulate the steps, and a proximal map gives the weights.

    W = center + clip((θ - center) / ρ, ±a/2) with the center ±a/2 of the interval [-a, 0] or [0, a] that θ is in;
        ±a beyond it
    ρ from 1 (W = θ, clipped) to 0 (the nearest of the three levels)

This is the proximal map of a regularizer that is affine between the levels, in its practical form, where a schedule of
ρ replaces the sum of the step sizes. It is applied to the sum of all steps, each with the gradient at W: ∂W/∂θ = 1.
The levels are those nearest to the layer's latents in the least squares. ρ decreases along a sigmoid over the fraction
f of the training: ρ = (g(f) - g(1)) / (g(0) - g(1)) with g(f) = 1 / (1 + exp(10 (f - ½))).
Jin, Ma, Liu, Gromov, Defazio & Xiao, PARQ: Piecewise-Affine Regularized Quantization, 2025; the sigmoid and its
steepness are those of the authors' library.
"""

import math

import torch
from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantizer
from sca_search.ternary.methods.regularized import nearest_scaled
from sca_search.ternary.parametrize import straight_through

_STEEPNESS = 10.0


class Parq(Quantizer):
    inverse_slope = 1.0  # ρ

    def levels(self, latent: Tensor) -> ScaledTrits:
        return nearest_scaled(latent)

    def soft(self, latent: Tensor) -> Tensor:
        detached = latent.detach()
        scale = nearest_scaled(detached).positive
        assert scale is not None
        return straight_through(proximal_map(detached, scale, self.inverse_slope), latent)

    def update(self, latent: Tensor, elapsed: float) -> None:  # noqa: ARG002
        self.inverse_slope = annealed(elapsed)


def proximal_map(latent: Tensor, scale: Tensor, inverse_slope: float) -> Tensor:
    """W for the levels -a, 0, +a."""
    half = 0.5 * scale
    offset = (latent.abs() - half) / max(inverse_slope, 1e-12)
    return (half + torch.minimum(offset.clamp(min=-half), half)) * latent.sign()


def annealed(elapsed: float) -> float:
    """ρ after a fraction of the training."""
    at, first, last = (1.0 / (1.0 + math.exp(_STEEPNESS * (each - 0.5))) for each in (elapsed, 0.0, 1.0))
    return (at - last) / (first - last)
