"""Methods whose weights are signs, times a scale or not. The gradient by a latent is that of its weight, or a multiple.

BinaryConnect: W = sign θ;  ∂W/∂θ = 1;  θ ← clip(θ, -1, 1) after each step. The deterministic form. Courbariaux, Bengio
& David, BinaryConnect: Training Deep Neural Networks with binary weights during propagations, 2015.

Binary-Weight-Networks: W_f = a_f · sign θ_f,  a_f = mean |θ_f| over the n weights of filter f, the scale that fits them
best;  ∂W/∂θ = 1/n + a_f · 1[|θ| < 1]. Filters of a grouped transposed convolution share one scale. Rastegari, Ordonez,
Redmon & Farhadi, XNOR-Net: ImageNet Classification Using Binary Convolutional Neural Networks, 2016.

DoReFa-Net with weights of one bit: W = E|θ| · sign θ, one scale per layer;  ∂W/∂θ = 1. Activations and gradients are
not quantized, as in the paper's comparison. Zhou, Wu, Ni, Zhou, Wen & Zou, DoReFa-Net: Training Low Bitwidth
Convolutional Neural Networks with Low Bitwidth Gradients, 2016.
"""

import torch
from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantizer, as_weights
from sca_search.ternary.parametrize import signs, straight_through


class BinaryConnect(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(signs(latent))

    def update(self, latent: Tensor, elapsed: float) -> None:  # noqa: ARG002
        """Clips before the next step instead of after the last, which is equivalent."""
        latent.clamp_(-1.0, 1.0)


class Bwn(Quantizer):
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


class Dorefa(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(signs(latent), latent.abs().mean())
