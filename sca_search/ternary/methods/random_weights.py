"""Methods whose weights are random variables during training.

BayesBiNN: signs, their natural parameters moved by the Bayesian learning rule.

    w = tanh((λ + δ)/τ),  δ = ½ log(u / (1 - u)), u uniform: a Gumbel-softmax relaxation of a random sign
    s = N (1 - w²) / (τ (1 - tanh² λ)),  λ ← (1 - ρ) λ - ρ (s · ∂L/∂w - λ₀),  λ₀ = 0
    W = sign λ at the end

N is the number of training examples, L the mean loss of a batch. λ starts at the rescaled dense weights times ten; the
published start, without pretrained weights, is ±10. Meng, Bachmann & Khan, Training Binary Neural Networks using the
Bayesian Learning Rule, 2020.

LR-Net: every weight is a random trit; the layer samples its output by the central limit theorem.

    P(w = 0) = σ(p),  P(w = 1 | w ≠ 0) = σ(q);  E w = (2σ(q) - 1)(1 - σ(p)),  E w² = 1 - σ(p)
    output = N(Σ E(w) x, Σ Var(w) x²) in training; trits are drawn once at the end

At the start, with v the dense weights over their standard deviation:
σ(p) = 0.95 - 0.9 |v| and σ(q) = ½ (1 + v / (1 - σ(p))), both clipped to [0.05, 0.95]. The published decay of p and q
is left out: it is of the order of 1e-11. Shayer, Levi & Fetaya, Learning Discrete Weights Using the Local
Reparameterization Trick, 2018.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sca_search.config.candidate import Candidate, elapsed_fraction
from sca_search.errors import ModelError
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.base import FinalWeights, MethodTask
from sca_search.ternary.methods.quantized import Quantized, Quantizer
from sca_search.ternary.parametrize import signs

# Of BayesBiNN.
_TEMPERATURE = 1e-10
_RATE = 1e-4  # initial ρ; it decays to 0 along a cosine
_START = 10.0
_TINY = 1e-10
# Of LR-Net.
_LEAST, _MOST = 0.05, 0.95
_EPSILON = 1e-8  # a root of 0 has no gradient


class RandomSigns(Quantizer):
    drawn: Tensor | None = None

    def right_inverse(self, weight: Tensor) -> Tensor:
        return _START * super().right_inverse(weight)

    def levels(self, latent: Tensor) -> ScaledTrits:
        return ScaledTrits(signs(latent))

    def soft(self, latent: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return signs(latent)
        even = torch.rand_like(latent).clamp(1e-7, 1.0 - 1e-7)
        noise = 0.5 * (even / (1.0 - even)).log()
        self.drawn = torch.tanh((latent.detach() + noise) / _TEMPERATURE).requires_grad_()
        return self.drawn


class BayesBinn(Quantized):
    quantizer = RandomSigns

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        super().__init__(model, candidate, task)
        self._examples = len(task.data.train)
        self._rate = _RATE

    def self_updated(self) -> Iterable[nn.Parameter]:
        return self.latents().values()

    def update(self, epoch: float) -> None:
        elapsed = torch.tensor(elapsed_fraction(epoch, self.candidate.epochs))
        self._rate = _RATE * float(0.5 * (1.0 + torch.cos(torch.pi * elapsed)))

    @torch.no_grad()
    def after_backward(self) -> None:
        for name, quantizer in self.quantizers.items():
            assert isinstance(quantizer, RandomSigns)
            drawn, natural = quantizer.drawn, self.latents()[name]
            if drawn is None or drawn.grad is None:
                continue
            spread = natural.cosh().pow(-2)  # 1 - tanh² λ, also where tanh λ rounds to 1
            certain = (1.0 - drawn.square() + _TINY) / _TEMPERATURE / (spread + _TINY)
            step = self._examples * certain * drawn.grad + natural
            natural.sub_(self._rate * step)
            quantizer.drawn = None


class RandomTrits(Quantizer):
    def right_inverse(self, weight: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        deviation = weight.std()
        scaled = weight / deviation if float(deviation) > 0 else weight
        zero = (_MOST - (_MOST - _LEAST) * scaled.abs()).clamp(_LEAST, _MOST)
        positive = (0.5 * (1.0 + scaled / (1.0 - zero))).clamp(_LEAST, _MOST)
        return zero.logit(), positive.logit()

    def forward(self, zero: Tensor, positive: Tensor) -> Tensor:  # type: ignore[override]
        return self.levels(zero, positive).trits if self.rounding else mean(zero, positive)

    def levels(self, zero: Tensor, positive: Tensor) -> ScaledTrits:  # type: ignore[override]
        """Drawn again at each call, as in the paper."""
        is_zero = torch.rand_like(zero) < zero.detach().sigmoid()
        is_positive = torch.rand_like(zero) < positive.detach().sigmoid()
        return ScaledTrits(torch.where(is_zero, 0.0, torch.where(is_positive, 1.0, -1.0)))


def mean(zero: Tensor, positive: Tensor) -> Tensor:
    return (2.0 * positive.sigmoid() - 1.0) * (1.0 - zero.sigmoid())


def variance(zero: Tensor, positive: Tensor) -> Tensor:
    return 1.0 - zero.sigmoid() - mean(zero, positive).square()


class LrNet(Quantized):
    quantizer = RandomTrits

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        if task.transposed:
            raise ModelError(f"lr-net cannot train a transposed convolution, got {next(iter(task.transposed))!r}")
        super().__init__(model, candidate, task)
        self._hooks = [model.get_submodule(name).register_forward_hook(self._drawn) for name in task.ternary_layers]

    def _drawn(self, layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        """The layer's output, which is the mean, plus noise with the variance of its weights."""
        latents = layer.parametrizations.weight  # type: ignore[union-attr]
        if not layer.training or latents[0].rounding:  # type: ignore[union-attr,index]
            return output
        squared, weight = inputs[0].square(), variance(latents.original0, latents.original1)  # type: ignore[union-attr,arg-type]
        is_linear = isinstance(layer, nn.Linear)
        squares = F.linear(squared, weight) if is_linear else layer._conv_forward(squared, weight, None)  # type: ignore[operator]
        return output + (squares + _EPSILON).sqrt() * torch.randn_like(output)

    def detach(self, final: FinalWeights) -> None:
        for hook in self._hooks:
            hook.remove()
        super().detach(final)

    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        with torch.no_grad():
            means = [mean(*self._originals[name]) for name in self.task.ternary_layers]
        return means, means

    def sparsity(self) -> float:
        """The expected sparsity: drawing trits would change the random numbers of dropout afterwards."""
        zeros = torch.cat([self._originals[name][0].detach().sigmoid().flatten() for name in self.task.ternary_layers])
        return float(zeros.mean())
