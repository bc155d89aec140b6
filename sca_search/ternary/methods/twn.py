"""Ternary Weight Networks: a threshold from the mean magnitude, and the scale that then fits the weights best.

    Δ = 0.7 · E|θ|;  W = a · sign θ where |θ| > Δ, else 0;  a = E(|θ| : |θ| > Δ);  ∂W/∂θ = 1

Li, Zhang & Liu, Ternary Weight Networks, 2016.
"""

from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, trits_beyond

_THRESHOLD = 0.7


class NearestTernary(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        magnitude = latent.abs()
        trits = trits_beyond(latent, _THRESHOLD * magnitude.mean())
        nonzero = trits.abs()
        return ScaledTrits(trits, (magnitude * nonzero).sum() / nonzero.sum().clamp(min=1.0))


class Twn(Quantized):
    quantizer = NearestTernary
