"""Ternary Weight Networks: a threshold from the weights' mean, and the scale that is then nearest to them.

    Δ = 0.7 · E|θ|;  W = a · sign θ where |θ| > Δ, else 0;  a = E(|θ| : |θ| > Δ);  ∂W/∂θ = 1

Li, Zhang & Liu, Ternary Weight Networks, 2016.
"""

from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer, as_weights, beyond, straight_through

_THRESHOLD = 0.7


class NearestTernary(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        magnitude = latent.abs()
        trits = beyond(latent, _THRESHOLD * magnitude.mean())
        kept = trits.abs()
        return ScaledTrits(trits, (magnitude * kept).sum() / kept.sum().clamp(min=1.0))

    def soft(self, latent: Tensor) -> Tensor:
        return straight_through(as_weights(self.levels(latent.detach())), latent)


class Twn(Quantized):
    quantizer = NearestTernary
