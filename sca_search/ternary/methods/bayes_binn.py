"""BayesBiNN: signs as random variables, their natural parameters moved by the Bayesian learning rule.

    w = tanh((λ + δ)/τ),  δ = ½ log(u / (1 - u)), u uniform: a Gumbel-softmax relaxation of a random sign
    s = N (1 - w²) / (τ (1 - tanh² λ)),  λ ← (1 - ρ) λ - ρ (s · ∂L/∂w - λ₀),  λ₀ = 0
    W = sign λ at the end

N is the number of training examples, L the mean loss of a batch. λ starts at the rescaled dense weights times ten; the
published start, without pretrained weights, is ±10. Meng, Bachmann & Khan, Training Binary Neural Networks using the
Bayesian Learning Rule, 2020.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate
from sca_search.config.schedule import elapsed_fraction
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.base import MethodTask
from sca_search.ternary.methods.quantized import Quantized, Quantizer
from sca_search.ternary.parametrize import signs

_TEMPERATURE = 1e-10
_RATE = 1e-4  # initial ρ; it decays to 0 along a cosine
_START = 10.0
_TINY = 1e-10


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
        for name, quantizer in self.quantizers().items():
            assert isinstance(quantizer, RandomSigns)
            drawn, natural = quantizer.drawn, self.latents()[name]
            if drawn is None or drawn.grad is None:
                continue
            spread = natural.cosh().pow(-2)  # 1 - tanh² λ, also where tanh λ rounds to 1
            certain = (1.0 - drawn.square() + _TINY) / _TEMPERATURE / (spread + _TINY)
            step = self._examples * certain * drawn.grad + natural
            natural.sub_(self._rate * step)
            quantizer.drawn = None
