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

Entropy-Constrained Trained Ternarization: TTQ's scales and gradients, with each weight in the cluster of least cost,
where a rare cluster costs more:

    W = argmin over c in {-b, 0, +a} of (θ - c)² - λ·s·λmax · log₂ P_c
    P_c: the fraction of the layer's weights nearest to c; that of 0 counts as at least ½
    λmax: the smaller, over both signs, of the factors that make the largest weight of that sign a zero
    s = (n / n_max + 0.05) / 1.05 for a layer of n weights, of the largest with n_max

λ is searched; more of it gives more zeros. a and b start at 0.3 times the largest weights of their sign, and stay at or
above 0.675 standard deviations of θ. Marban, Becking, Wiedemann & Samek, Learning Sparse & Ternary Neural Networks with
Entropy-Constrained Trained Ternarization, 2020; P_c, λmax, s and the constants are those of the authors' program.
"""

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.base import MethodTask
from sca_search.ternary.methods.quantized import Quantized, Quantizer
from sca_search.ternary.parametrize import trits_at
from sca_search.ternary.prior import border

_THRESHOLD = 0.7  # of TWN
# Of EC2T.
_START, _LEAST = 0.3, 0.675  # of the scales
_LEAST_SHARE = 0.05  # of the factor of a small layer
_MOST_NONZERO = 0.5  # 1 - P₀


class Twn(Quantizer):
    def levels(self, latent: Tensor) -> ScaledTrits:
        scale, threshold = twn_levels(latent)
        return ScaledTrits(trits_at(latent, threshold), scale)


def twn_levels(latent: Tensor) -> tuple[Tensor, Tensor]:
    """The scale and the threshold of Ternary Weight Networks."""
    magnitude = latent.abs()
    threshold = _THRESHOLD * magnitude.mean()
    nonzero = magnitude > threshold
    return (magnitude * nonzero).sum() / nonzero.sum().clamp(min=1), threshold


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


class EntropyConstrained(Ttq):
    strength = 0.0  # λ·s

    def begin(self, latent: Tensor) -> None:
        self.positive.data.copy_(_START * latent.max())
        self.negative.data.copy_(_START * -latent.min())
        self.update(latent, elapsed=0.0)

    def update(self, latent: Tensor, elapsed: float) -> None:  # noqa: ARG002
        """Keep the scales away from 0, which would leave a layer without one of its signs."""
        for scale in (self.positive, self.negative):
            scale.data.clamp_(min=_LEAST * float(latent.std()))

    def trits(self, latent: Tensor) -> Tensor:
        """+1 costs less than 0 above a threshold, -1 below the negative of another; 0 is the most common."""
        scales = torch.stack([self.positive.detach(), self.negative.detach()])
        above, below = (latent > scales[0] / 2).sum(), (latent < -scales[1] / 2).sum()
        information = _more_information(torch.stack([above, below]) / latent.numel(), latent.numel())
        ends = torch.stack([latent.max(), -latent.min()])
        largest = ((2.0 * ends - scales) * scales / information).min().clamp(min=0.0)  # λmax
        thresholds: Tensor = 0.5 * (scales + self.strength * largest * information / scales)
        return (latent > thresholds[0]).to(latent.dtype) - (latent < -thresholds[1]).to(latent.dtype)


def _more_information(fractions: Tensor, weights: int) -> Tensor:
    """log₂ P₀/P of +1 and -1, by the fractions nearest to them; one without a weight counts as one with a single."""
    nonzero = fractions.clamp(min=1.0 / weights)
    nonzero = nonzero * (_MOST_NONZERO / nonzero.sum()).clamp(max=1.0)
    ratios: Tensor = (1.0 - nonzero.sum()) / nonzero
    return ratios.log2().clamp(min=1e-6)


class Ec2t(Quantized):
    quantizer = EntropyConstrained

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        super().__init__(model, candidate, task)
        self.strength = candidate.strength.at(0.0, candidate.epochs)
        sizes = {name: self._originals[name][0].numel() for name in self.quantizers}
        for name, quantizer in self.quantizers.items():
            assert isinstance(quantizer, EntropyConstrained)
            share = sizes[name] / max(sizes.values())
            quantizer.strength = self.strength * (share + _LEAST_SHARE) / (1.0 + _LEAST_SHARE)
