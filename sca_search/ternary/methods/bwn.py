"""Binary-Weight-Networks: signs, and for each filter the scale that is nearest to its weights.

    W_f = a_f · sign θ_f,  a_f = mean |θ_f| over the n weights of filter f;  ∂W/∂θ = 1/n + a_f · 1[|θ| < 1]

Rastegari, Ordonez, Redmon & Farhadi, XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks,
2016. Filters of a grouped transposed convolution share one scale.
"""

import torch
from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights, signs, straight_through


class FilterSigns(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        axes = [axis for axis in range(latent.ndim) if axis != self.channel]
        return ScaledTrits(signs(latent), latent.abs().mean(axes))

    def soft(self, latent: Tensor) -> Tensor:
        held = latent.detach()
        levels = self.levels(held)
        assert levels.positive is not None
        of_filter = latent.numel() // levels.positive.numel()
        scale = as_weights(ScaledTrits(torch.ones_like(held), levels.positive), self.channel)
        slope = 1.0 / of_filter + scale * (held.abs() < 1.0)
        return straight_through(as_weights(levels, self.channel), latent * slope)


class Bwn(Quantized):
    quantizer = FilterSigns
