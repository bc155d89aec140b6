"""Methods with a threshold Δ of |θ| below which weights are 0, and scales of the others.

Ternary Weight Networks: Δ = 0.7 · E|θ|;  W = a · sign θ where |θ| > Δ, else 0;  a = E(|θ| : |θ| > Δ), the scale that
fits the weights best;  ∂W/∂θ = 1. Li, Zhang & Liu, Ternary Weight Networks, 2016.

Trained Ternary Quantization: two learned scales per layer, one for +1 and one for -1.

    W = a where θ > Δ, -b where θ < -Δ, else 0
    ∂L/∂a = Σ ∂L/∂W over the +1,  ∂L/∂b = -Σ ∂L/∂W over the -1
    ∂L/∂θ = a, 1 or b times ∂L/∂W where W is a, 0 or -b

Δ gives each layer its planned sparsity, the paper's second variant (with its first, Δ = 0.05 · max |θ|, the sparsity
cannot be chosen). The scales start at the mean magnitudes of the positive and negative weights.
Zhu, Han, Mao & Dally, Trained Ternary Quantization, 2016.

Incremental Network Quantization with two bits: quantizes part of the weights permanently and trains the others.

    a = 2ⁿ,  n = ⌊log₂(4/3 · max |θ|)⌋ of the layer at the start
    W = ±a where |θ| ≥ a/2, else 0, for the portion of the largest weights; θ elsewhere
    portions 0.5, 0.75, 0.875 at the start, after one and two thirds of the training; 1 at its end

Zhou, Yao, Guo, Xu & Chen, Incremental Network Quantization: Towards Lossless CNNs with Low-Precision Weights, 2017. Two
bits leave one power of two. The portions are those of its five-bit ResNet-18; its two-bit networks use more of them.
"""

import math

import torch
from torch import Tensor, nn

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.quantized import Quantizer, as_weights
from sca_search.ternary.parametrize import trits_at
from sca_search.ternary.prior import border

_THRESHOLD = 0.7  # of TWN
_PORTIONS = (0.5, 0.75, 0.875)  # of INQ


class Twn(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        magnitude = latent.abs()
        trits = trits_at(latent, _THRESHOLD * magnitude.mean())
        nonzero = trits.abs()
        return ScaledTrits(trits, (magnitude * nonzero).sum() / nonzero.sum().clamp(min=1.0))


class Ttq(Quantizer):
    def __init__(self, spread: float | None, channel: int | None) -> None:
        super().__init__(spread, channel)
        self.positive = nn.Parameter(torch.ones(()))
        self.negative = nn.Parameter(torch.ones(()))

    def trits(self, latent: Tensor) -> Tensor:
        return trits_at(latent, border(latent, self.planned_sparsity))

    def begin(self, latent: Tensor) -> None:
        """Set the scales to the mean magnitudes."""
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


class Inq(Quantizer):
    scale: Tensor
    fixed: Tensor

    def __init__(self, spread: float | None, channel: int | None) -> None:
        super().__init__(spread, channel)
        self.register_buffer("scale", torch.ones(()))

    def begin(self, latent: Tensor) -> None:
        largest = float(latent.abs().max())
        self.scale.fill_(2.0 ** math.floor(math.log2(4.0 * largest / 3.0)) if largest > 0 else 1.0)
        self.register_buffer("fixed", torch.zeros_like(latent, dtype=torch.bool))

    def levels(self, latent: Tensor) -> ScaledTrits:
        half = torch.nextafter(self.scale / 2, self.scale.new_zeros(()))  # the border itself is not a zero
        return ScaledTrits(trits_at(latent, half), self.scale.clone())

    def soft(self, latent: Tensor) -> Tensor:
        if not hasattr(self, "fixed"):  # while it is being registered
            return latent
        return torch.where(self.fixed, as_weights(self.levels(latent.detach())), latent)

    def update(self, latent: Tensor, elapsed: float) -> None:
        """Fix the largest free weights, up to the current portion of all weights."""
        portion = _PORTIONS[min(int(elapsed * len(_PORTIONS)), len(_PORTIONS) - 1)]
        missing = round(portion * latent.numel()) - int(self.fixed.sum())
        if missing > 0:
            free = torch.where(self.fixed, -1.0, latent.abs()).flatten()
            chosen = torch.zeros_like(free, dtype=torch.bool).index_fill(0, free.topk(missing).indices, True)
            self.fixed.logical_or_(chosen.view(latent.shape))  # for any memory layout
