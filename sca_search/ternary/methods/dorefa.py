"""DoReFa-Net with weights of one bit: signs, and one scale a layer.

    W = E|θ| · sign θ;  ∂W/∂θ = 1

Zhou, Wu, Ni, Zhou, Wen & Zou, DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth
Gradients, 2016. Activations and gradients stay as they are, as in the paper's comparison.
"""

from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights, signs, straight_through


class LayerSigns(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(signs(latent), latent.abs().mean())

    def soft(self, latent: Tensor) -> Tensor:
        return straight_through(as_weights(self.levels(latent.detach())), latent)


class Dorefa(Quantized):
    quantizer = LayerSigns
