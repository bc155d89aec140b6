"""The method: latents Θ, the soft weight W, the regularizer, rounding and counting zeros.

| here            | the paper                                                                          |
| --------------- | ---------------------------------------------------------------------------------- |
| `latent`        | Θ, the parameter that is trained                                                   |
| soft weight     | W = tanh(Θ), eq. 2 and 3                                                           |
| `alpha`         | α, the shape controller: its zero basin is tanh²θ < α/2 (Propositions 1 to 3)       |
| `wdr_strength`  | λ, the factor of the regularizer in the loss, eq. 5                                |
| `wdr`           | R = Σ (α − W²) · W², eq. 4: a sum, not a mean, so λ shrinks as networks grow        |
| `trits`         | round(W) ∈ {-1, 0, +1}, eq. 6 and 7                                                |

In the sharpened form (ours), the forward pass approaches the rounded network:

    W = ½ [tanh(β(θ − t)) + tanh(β(θ + t))],   t = atanh √(α/2)

t is the border of the zero basin that α sets in the paper; with β = 1 and t = 0 this *is* W = tanh θ. A sharp W has a
gradient only at the border, so the gradient may use a lower sharpness than the forward pass: it is then an estimate and
no longer the gradient of W.

The straight-through form is a baseline for comparison: the forward pass rounds at t, and the gradient ignores it. It is
the limit of the sharpened form with β = ∞ in the forward and 0 in the backward pass.

The form without tanh is the paper's ablation: W = Θ. The regularizer then has no lower bound, and drives weights away
from all three trits. Rounding gives the nearest trit.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrize

from sca_search.config.candidate import Form
from sca_search.models.scales import ScaledTrits, absorb_scale, set_trits

# |W| is below 1 in the paper: larger weights start here, where the gradient of tanh is still a five-hundredth.
_LARGEST = 0.999


def soft_weight(latent: Tensor, sharpness: float = 1.0, threshold: float = 0.0) -> Tensor:
    """W = ½ [tanh(β(θ − t)) + tanh(β(θ + t))]; with t = 0 that is tanh(βθ), one tanh instead of two.

    With the logistic σ, ½ tanh x = σ(2x) − ½ = ½ − σ(−2x): torch computes σ six times as fast as tanh.
    """
    if threshold == 0.0:
        return torch.tanh(latent if sharpness == 1.0 else latent * sharpness)
    shift = 2.0 * sharpness * threshold
    scaled = latent * (2.0 * sharpness)
    return torch.sigmoid(scaled - shift) - torch.sigmoid(-scaled - shift)


class Widened(torch.autograd.Function):
    """W at one sharpness with the gradient of another, lower one, which reaches weights farther from the border.

    Computes each sharpness in its own pass, in place: a third less time than both in the forward pass.
    """

    @staticmethod
    def forward(ctx: Any, latent: Tensor, sharpness: float, gradient_sharpness: float, threshold: float) -> Tensor:
        ctx.save_for_backward(latent)
        ctx.wide = gradient_sharpness, threshold
        upper, lower = _logistics(latent, sharpness, threshold)
        return upper.sub_(lower)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        """∂W/∂θ = 2β [σ₊(1 − σ₊) + σ₋(1 − σ₋)]."""
        (latent,) = ctx.saved_tensors
        sharpness, threshold = ctx.wide
        upper, lower = _logistics(latent, sharpness, threshold)
        slope = torch.ops.aten.sigmoid_backward(gradient, upper)
        slope.add_(torch.ops.aten.sigmoid_backward(gradient, lower)).mul_(2.0 * sharpness)
        return slope, None, None, None


def _logistics(latent: Tensor, sharpness: float, threshold: float) -> tuple[Tensor, Tensor]:
    """σ₊ = σ(2β(θ − t)) and σ₋ = σ(−2β(θ + t)), whose difference is W; in place, so not differentiable."""
    shift = 2.0 * sharpness * threshold
    scaled = latent * (2.0 * sharpness)
    upper = (scaled - shift).sigmoid_()
    return upper, scaled.neg_().sub_(shift).sigmoid_()


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """`value` in the forward pass, the gradient of `surrogate` in the backward pass."""
    return surrogate + (value - surrogate).detach()


def trits_at(latent: Tensor, threshold: Tensor | float) -> Tensor:
    """The sign where |Θ| exceeds a threshold, else 0; `torch.where` would take ten times as long."""
    return F.hardshrink(latent, float(threshold)).sign_()


def threshold_of_alpha(alpha: float) -> float:
    """t = atanh √(α/2): the border of the zero basin in Θ. Infinite from α = 2 on (Proposition 2)."""
    return math.inf if alpha >= 2.0 else math.atanh(math.sqrt(alpha / 2.0))


def alpha_of_threshold(threshold: float) -> float:
    """α = 2 tanh²(t), the inverse of `threshold_of_alpha`."""
    return 2.0 * math.tanh(threshold) ** 2


def wdr(soft: Tensor, alpha: float) -> Tensor:
    """R = Σ (α − W²) · W² over one layer (eq. 4)."""
    square = soft * soft
    return (square * (alpha - square)).sum()


def signs(latent: Tensor) -> Tensor:
    """-1 or +1, never 0: 0 becomes +1."""
    return torch.where(latent < 0, -1.0, 1.0)


def nearest_trits(soft: Tensor) -> Tensor:
    """round(W), eq. 6 and 7; only W without tanh can exceed ±1."""
    return soft.round().clamp(-1, 1)


def latent_of_dense(weight: Tensor, spread: float | None) -> Tensor:
    """Θ for a trained dense weight: rescaled to a root mean square of `spread`, so that |Θ| covers both basins.

    The scale is free: a normalization follows, or the layer's output scale absorbs it. Without a spread tanh Θ is the
    weight itself, as far as possible.
    """
    if spread is None:
        return weight.clamp(-_LARGEST, _LARGEST).atanh()
    root_mean_square = weight.square().mean().sqrt()
    return weight * (spread / root_mean_square) if root_mean_square > 0 else weight.clone()


@torch.no_grad()  # registering calls the parametrization once; with gradients it would store that soft weight
def put_parametrization(layer: nn.Module, parametrization: nn.Module) -> list[nn.Parameter]:
    """Add a parametrization with a `spread` to a layer's weight, in place; its latents.

    An output scale is multiplied by the factor from Θ to the dense weight, unless that is all zeros or not rescaled.
    """
    root_mean_square = float(cast(Tensor, layer.weight).square().mean().sqrt())
    if parametrization.spread is not None and root_mean_square > 0:
        absorb_scale(layer, root_mean_square / cast(float, parametrization.spread))
    parametrize.register_parametrization(layer, "weight", parametrization)
    return list(layer.parametrizations.weight.parameters(recurse=False))  # type: ignore[union-attr]


class TernaryWeight(nn.Module):
    """The parametrization of one layer's weight, for `torch.nn.utils.parametrize`.

    The soft weight of the last training pass is stored for the regularizer, so that its tanh is computed once per step.
    """

    def __init__(self, form: Form = "paper", spread: float | None = 1.0) -> None:
        super().__init__()
        self.form: Form = form
        self.spread = spread
        self.alpha = 0.0
        self.wdr_strength = 0.0
        self.sharpness = 1.0
        self.gradient_sharpness = math.inf  # maximum β of the gradient
        self.rounding = False
        # For the user's own training loop: the layer's sparsity at the end, and whether Θ contains the final trits.
        self.planned_sparsity: float | None = None
        self.fixed = False
        self._soft: Tensor | None = None

    @property
    def threshold(self) -> float:
        """t of the forward pass: the border of α's basin, or 0 in the paper's form."""
        return 0.0 if self.form in {"paper", "no-tanh"} else threshold_of_alpha(self.alpha)

    def soft(self, latent: Tensor) -> Tensor:
        """W as this layer currently computes it from Θ."""
        if self.fixed:
            return latent.detach()
        if self.form == "straight-through":
            return straight_through(trits_at(latent.detach(), self.threshold), latent)
        if self.form == "no-tanh":
            return latent
        if self.gradient_sharpness >= self.sharpness or not torch.is_grad_enabled():
            return soft_weight(latent, self.sharpness, self.threshold)
        soft: Tensor = Widened.apply(latent, self.sharpness, self.gradient_sharpness, self.threshold)  # type: ignore[no-untyped-call]
        return soft

    def forward(self, latent: Tensor) -> Tensor:
        soft = self.soft(latent)
        if self.rounding:
            return nearest_trits(soft)
        if torch.is_grad_enabled() and not self.fixed:
            self._soft = soft
        return soft

    def right_inverse(self, weight: Tensor) -> Tensor:
        if self.form == "no-tanh" and self.spread is None:
            return weight.clone()
        return latent_of_dense(weight, self.spread)

    def pop_soft_weight(self) -> Tensor:
        """W of the last training pass; it is returned once."""
        if self._soft is None:
            raise RuntimeError("the regularizer requires a forward pass with gradients before it")
        soft, self._soft = self._soft, None
        return soft

    def wdr(self) -> Tensor:
        """This layer's R, from the soft weight of the last forward pass."""
        return wdr(self.pop_soft_weight(), self.alpha_of_soft())

    def alpha_of_soft(self) -> float:
        """The α that puts R's maximum at the rounding threshold of this form.

        In the paper's form that is α itself. In the sharpened form the border θ = t is at W = ½ tanh(2βt), and
        R's maximum is at W = √(α/2): hence 2 W(t)².
        """
        if self.form in {"paper", "no-tanh"}:
            return self.alpha
        return 0.5 * math.tanh(2.0 * self.sharpness * self.threshold) ** 2


@dataclass(frozen=True)
class ZeroCount:
    """Zeros among the weights of a layer or of a network."""

    zeros: int
    weights: int

    @property
    def sparsity(self) -> float:
        return self.zeros / self.weights if self.weights else 0.0

    def __add__(self, other: "ZeroCount") -> "ZeroCount":
        return ZeroCount(self.zeros + other.zeros, self.weights + other.weights)


def parametrize_layers(model: nn.Module, spreads: Mapping[str, float | None], form: Form = "paper") -> None:
    """Add the parametrization to the named layers, in place, with a spread of Θ for each."""
    for name, spread in spreads.items():
        put_parametrization(model.get_submodule(name), TernaryWeight(form, spread))


def ternary_weights(model: nn.Module) -> dict[str, TernaryWeight]:
    """The parametrizations of a network, by layer name."""
    return {
        name: module.parametrizations.weight[0]
        for name, module in model.named_modules()
        if parametrize.is_parametrized(module, "weight")
        and isinstance(module.parametrizations.weight[0], TernaryWeight)
    }


def latents(model: nn.Module) -> dict[str, nn.Parameter]:
    """Θ of every ternary layer, by layer name."""
    modules = dict(model.named_modules())
    return {name: modules[name].parametrizations.weight.original for name in ternary_weights(model)}


@contextmanager
def rounding(weights: Iterable[nn.Module]) -> Iterator[None]:
    """Inside the block, these parametrizations round, and the network computes with trits."""
    before = {weight: cast(bool, weight.rounding) for weight in weights}
    for weight in before:
        weight.rounding = True  # type: ignore[assignment]
    try:
        yield
    finally:
        for weight, was_rounding in before.items():
            weight.rounding = was_rounding  # type: ignore[assignment]


@torch.no_grad()
def soft_weights(model: nn.Module) -> dict[str, Tensor]:
    """The current W of every ternary layer."""
    thetas = latents(model)
    return {name: weight.soft(thetas[name]) for name, weight in ternary_weights(model).items()}


def zero_counts(trits: Mapping[str, Tensor]) -> dict[str, ZeroCount]:
    """Zeros per layer."""
    return {name: ZeroCount(int((layer == 0).sum()), layer.numel()) for name, layer in trits.items()}


def total(counts: Mapping[str, ZeroCount]) -> ZeroCount:
    """Zeros of all layers."""
    return sum(counts.values(), ZeroCount(0, 0))


def nearest_trits_of(model: nn.Module) -> dict[str, Tensor]:
    """The trits of every ternary layer if the network were rounded now."""
    return {name: nearest_trits(soft) for name, soft in soft_weights(model).items()}


def bake_trits(model: nn.Module, trits: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Replace the parametrization by plain, frozen weights in {-1, 0, 1}, in place; default: the nearest trits."""
    final = nearest_trits_of(model) if trits is None else trits
    for name in final:
        parametrize.remove_parametrizations(model.get_submodule(name), "weight", leave_parametrized=False)
    return set_trits(model, {name: ScaledTrits(of_layer) for name, of_layer in final.items()})
