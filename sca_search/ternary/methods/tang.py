"""Tang's regularizer, as the paper extends it to three values, with the straight-through estimator.

    R = Σ (1 - θ²) θ²;  W = round(clip(θ, -1, 1));  ∂W/∂θ = 1

Tang, Hua & Wang, How to Train a Compact Binary Neural Network with High Accuracy?, 2017 (R = Σ 1 - θ² there).
"""

from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer
from sca_search.ternary.parametrize import nearest_trits


class RegularizedTrits(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(nearest_trits(latent))

    def regularizer(self, latent: Tensor) -> Tensor:
        square = latent.clamp(-1.0, 1.0).square()  # beyond ±1 R is unbounded below
        return ((1.0 - square) * square).sum()


class Tang(Quantized):
    quantizer = RegularizedTrits
    has_regularizer = True
