"""DoReFa-Net with weights of one bit: signs, and one scale per layer.

    W = E|θ| · sign θ;  ∂W/∂θ = 1

Zhou, Wu, Ni, Zhou, Wen & Zou, DoReFa-Net: Training Low Bitwidth Convolutional Neural Networks with Low Bitwidth
Gradients, 2016. Activations and gradients are not quantized, as in the paper's comparison.
"""

from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer
from sca_search.ternary.parametrize import signs


class LayerSigns(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(signs(latent), latent.abs().mean())


class Dorefa(Quantized):
    quantizer = LayerSigns
