"""BinaryConnect: the sign of real weights in both passes; real weights are updated and clipped to ±1.

    W = sign θ;  ∂W/∂θ = 1;  θ ← clip(θ, -1, 1) after each step

The deterministic form. Courbariaux, Bengio & David, BinaryConnect: Training Deep Neural Networks with binary weights
during propagations, 2015.
"""

import torch
from torch import Tensor

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantized, Quantizer
from sca_search.ternary.parametrize import signs


class Sign(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(signs(latent))


class BinaryConnect(Quantized):
    """Clips before the next step instead of after the last, which is equivalent."""

    quantizer = Sign

    @torch.no_grad()
    def update(self, epoch: float) -> None:  # noqa: ARG002
        for latent in self.latents().values():
            latent.clamp_(-1.0, 1.0)
