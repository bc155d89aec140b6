"""Trained Ternary Quantization: two learned scales a layer, one for +1 and one for -1.

    W = a where θ > Δ, -b where θ < -Δ, else 0
    ∂L/∂a = Σ ∂L/∂W over the +1,  ∂L/∂b = -Σ ∂L/∂W over the -1
    ∂L/∂θ = a, 1 or b times ∂L/∂W where W is a, 0 or -b

Δ leaves the planned share of zeros in each layer, the paper's second choice (its first is Δ = 0.05 · max |θ|, which
chooses no sparsity). The scales start at the mean magnitudes of what they stand for.
Zhu, Han, Mao & Dally, Trained Ternary Quantization, 2016.
"""

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.base import MethodTask
from sca_search.ternary.methods.quantized import Quantized, Quantizer, beyond
from sca_search.ternary.prior import border


class TwoScales(Quantizer):
    planned = 0.0

    def __init__(self, spread: float | None, channel: int | None) -> None:
        super().__init__(spread, channel)
        self.positive = nn.Parameter(torch.ones(()))
        self.negative = nn.Parameter(torch.ones(()))

    def trits(self, latent: Tensor) -> Tensor:
        return beyond(latent, border(latent, self.planned))

    def fit(self, latent: Tensor) -> None:
        """Scales at the mean magnitudes."""
        trits, magnitude = self.trits(latent), latent.abs()
        for scale, chosen in ((self.positive, trits > 0), (self.negative, trits < 0)):
            if bool(chosen.any()):
                scale.data.fill_(float(magnitude[chosen].mean()))

    def soft(self, latent: Tensor) -> Tensor:
        trits = self.trits(latent.detach())
        value = torch.where(trits > 0, self.positive, torch.where(trits < 0, -self.negative, 0.0))
        slope = torch.where(trits > 0, self.positive, torch.where(trits < 0, self.negative, 1.0)).detach()
        surrogate = latent * slope
        return value + surrogate - surrogate.detach()

    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(self.trits(latent), self.positive.detach().clone(), self.negative.detach().clone())


class Ttq(Quantized):
    quantizer = TwoScales

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        super().__init__(model, candidate, task)
        for name, quantizer in self.quantizers().items():
            assert isinstance(quantizer, TwoScales)
            quantizer.planned = candidate.sparsity_of(name)
            quantizer.fit(self.latents()[name].detach())
