"""Binary-Weight-Networks: signs, and per filter the scale that fits its weights best.

    W_f = a_f · sign θ_f,  a_f = mean |θ_f| over the n weights of filter f;  ∂W/∂θ = 1/n + a_f · 1[|θ| < 1]

Rastegari, Ordonez, Redmon & Farhadi, XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks,
2016. Filters of a grouped transposed convolution share one scale.
"""

import torch
from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights, straight_through
from sca_search.ternary.parametrize import signs


class FilterSigns(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        axes = [axis for axis in range(latent.ndim) if axis != self.channel]
        return ScaledTrits(signs(latent), latent.abs().mean(axes))

    def soft(self, latent: Tensor) -> Tensor:
        detached = latent.detach()
        levels = self.levels(detached)
        assert levels.positive is not None
        per_filter = latent.numel() // levels.positive.numel()
        scale = as_weights(ScaledTrits(torch.ones_like(detached), levels.positive), self.channel)
        slope = 1.0 / per_filter + scale * (detached.abs() < 1.0)
        return straight_through(as_weights(levels, self.channel), latent * slope)


class Bwn(Quantized):
    quantizer = FilterSigns
