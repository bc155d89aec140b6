"""LR-Net: every weight is a random trit; the layer draws its output from what that gives by the central limit theorem.

    P(w = 0) = σ(p),  P(w = 1 | w ≠ 0) = σ(q);  E w = (2σ(q) - 1)(1 - σ(p)),  E w² = 1 - σ(p)
    output = N(Σ E(w) x, Σ Var(w) x²) while it trains; trits drawn once at the end

At the start, with v the dense weights over their standard deviation:
σ(p) = 0.95 - 0.9 |v| and σ(q) = ½ (1 + v / (1 - σ(p))), both kept within [0.05, 0.95]. The published decay of p and q
is left out: it is of the order of 1e-11. Shayer, Levi & Fetaya, Learning Discrete Weights Using the Local
Reparameterization Trick, 2018.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sca_search.config.candidate import Candidate
from sca_search.errors import ModelError
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.base import Ending, MethodTask
from sca_search.ternary.methods.quantized import Quantized, Quantizer

_LEAST, _MOST = 0.05, 0.95
_EPSILON = 1e-8  # a root of 0 has no gradient


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
        """Drawn anew each time, as the method has it."""
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
        """The mean that the layer gave, and around it what its weights' variances give."""
        held = layer.parametrizations.weight  # type: ignore[union-attr]
        if not layer.training or held[0].rounding:  # type: ignore[union-attr,index]
            return output
        squares = _sums(layer, inputs[0].square(), variance(held.original0, held.original1))  # type: ignore[union-attr,arg-type]
        return output + (squares + _EPSILON).sqrt() * torch.randn_like(output)

    def detach(self, ending: Ending) -> None:
        for hook in self._hooks:
            hook.remove()
        super().detach(ending)

    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        with torch.no_grad():
            means = [mean(*self._originals(name)) for name in self.task.ternary_layers]
        return means, means

    def sparsity(self) -> float:
        """Expected: drawing trits to look at them would change what dropout draws afterwards."""
        zeros = torch.cat([self._originals(name)[0].detach().sigmoid().flatten() for name in self.task.ternary_layers])
        return float(zeros.mean())


def _sums(layer: nn.Module, inputs: Tensor, weight: Tensor) -> Tensor:
    """What the layer does with a weight, without its bias."""
    if isinstance(layer, nn.Linear):
        return functional.linear(inputs, weight)
    sums: Tensor = layer._conv_forward(inputs, weight, None)  # type: ignore[operator]
    return sums
