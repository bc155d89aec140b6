"""The method: latents Θ, the soft weight W, the regularizer (WDR), rounding and counting zeros.

| here            | the paper                                                                          |
| --------------- | ---------------------------------------------------------------------------------- |
| `latent`        | Θ, the parameter that is trained                                                   |
| soft weight     | W = tanh(Θ), eq. 2 and 3                                                           |
| `alpha`         | α, the shape controller: its zero basin is tanh²θ < α/2 (Propositions 1 to 3)       |
| `threshold`     | t = atanh √(α/2), the border of that basin in Θ                                    |
| `wdr_strength`  | λ, the factor of the regularizer in the loss, eq. 5                                |
| `wdr`           | R = Σ (α − W²) · W², eq. 4: a sum, not a mean, so λ shrinks as networks grow        |
| `trits`         | round(W) ∈ {-1, 0, +1}, eq. 6 and 7                                                |

In the paper's form R is a term of the loss. Adam divides its gradient by the same denominator as the task's, so that λ
has no stable meaning. The decoupled form (the default) applies R to the weights instead: before each forward pass,
w = tanh Θ follows the gradient flow of R, dw/dτ = −∂R/∂w, for a time λ, and stops at ±1. In closed form, with
y₀ = tanh²θ and u = 4αλ:

    1/W² = 1/y₀ + (e^u − 1)/T · (T − y₀)/y₀,   T = α/2 = tanh²t;   W = ±1 where 1/W² ≤ 1

λ = 0 gives W = tanh Θ; λ → ∞ gives the trits that are split at |θ| = t. The gradient of W with respect to Θ is an
estimate, of one of three kinds:

    straight-through    1: both the flow and tanh are ignored
    tanh                1 − tanh²θ: the flow is ignored
    flow                the exact derivative, but of a flow of at most u = `GRADIENT_FLOW`, divided by e^u, and at
                        most 1

The exact derivative, e^u (W/tanh θ)³ (1 − tanh²θ), grows with e^u at the border and vanishes elsewhere.

The straight-through form is a baseline: the forward pass rounds at t, and the gradient ignores it. It is the limit of
the decoupled form for λ → ∞ with the straight-through gradient.

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

from sca_search.config.candidate import Form, Gradient
from sca_search.models.scales import ScaledTrits, absorb_scale, set_trits

# The forms in which R is a term of the loss; weights are rounded at |W| = ½.
LOSS_TERM_FORMS = frozenset({"paper", "no-tanh"})
# |W| is below 1 in the paper: larger weights start here, where the gradient of tanh is still a five-hundredth.
_LARGEST = 0.999
# From this t on, tanh²θ in single precision is too coarse at the border.
_SATURATED = 4.0
# The largest u = 4αλ is this plus 2t, since 1 − tanh²t is 4e^(−2t) for large t: beyond it every weight is ternary in
# single precision. And the largest for any t, so that e^u does not overflow.
_MAX_FLOW, _MAX_TIME = 60.0, 600.0
# The flow time u after which the `flow` gradient is taken: later, it is 0 for nearly all weights.
GRADIENT_FLOW = 1.0


class Flow:
    """W = tanh Θ after the gradient flow of R, for one layer's α, t and λ; as tanh Θ and the ratio of W to it."""

    def __init__(self, latent: Tensor, alpha: float, threshold: float, strength: float) -> None:
        basin = 0.5 * alpha  # T
        self.time = min(4.0 * alpha * strength, _MAX_FLOW + 2.0 * threshold, _MAX_TIME)  # u
        growth = math.expm1(self.time) / basin if self.time and basin else 8.0 * strength  # half the least α is 0
        if threshold < _SATURATED:  # few passes over the weights: they are computed at every step
            decay = math.exp(-0.5 * self.time)
            self.tanh = torch.tanh(latent)
            decayed = self.tanh * decay
            square = decayed.mul_(decayed)
            left = torch.add(latent.new_ones(()), square, alpha=-growth)
            self.ratio = torch.maximum(left, square).rsqrt_().mul_(decay)
        else:
            # With x = e^(−2|θ|) and q = e^(−2t), T − tanh²θ is a product of x − q and 1 − qx, without a difference of
            # numbers that agree to the last bit. Both x and q are multiplied by e^u, so that they do not underflow.
            magnitude, border = latent.abs(), math.exp(-2.0 * threshold)
            rest = -torch.expm1(-2.0 * magnitude)  # 1 − x
            total = 2.0 - rest
            grown, limit = torch.exp(0.5 * self.time - magnitude), math.exp(0.5 * self.time - threshold)
            product = (grown - limit) * (grown + limit) * (1.0 - border * (1.0 - rest))
            product *= -4.0 * math.expm1(-self.time) / (basin * (1.0 + border) ** 2)
            product += max(basin - 1.0, 0.0) * growth * total.square()  # T may exceed 1
            self.tanh = (rest / total).copysign_(latent)
            self.ratio = torch.maximum(product + total.square(), rest.square()).rsqrt_() * total

    def weight(self) -> Tensor:
        """W."""
        return self.tanh * self.ratio

    def slope(self) -> Tensor:
        """∂W/∂θ divided by e^u: (W / tanh θ)³ (1 − tanh²θ), and 0 where W stopped at ±1."""
        slope = self.ratio.square().mul_(self.ratio).mul_(1.0 - self.tanh.square())
        return slope.mul_(self.weight().abs_() < 1.0 - 1e-6)


class DecoupledWeight(torch.autograd.Function):
    """W of the decoupled form, with an estimate of its gradient."""

    @staticmethod
    def forward(ctx: Any, latent: Tensor, layer: "TernaryWeight") -> Tensor:
        ctx.save_for_backward(latent)
        ctx.layer = layer
        return layer.flow(latent).weight()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (latent,) = ctx.saved_tensors
        ctx.layer.last_gradient = gradient.detach()
        slope = ctx.layer.gradient_slope(latent)
        return (gradient if slope is None else gradient * slope), None


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

    The soft weight of the last training pass is stored for the regularizer of the paper's form, so that its tanh is
    computed once per step.
    """

    def __init__(self, form: Form = "paper", spread: float | None = 1.0) -> None:
        super().__init__()
        self.form: Form = form
        self.spread = spread
        self.alpha = 0.0
        self.threshold = 0.0  # t; stored, because α = 2 tanh²t cannot be inverted for large t
        self.wdr_strength = 0.0
        self.gradient: Gradient = "straight-through"
        self.gain = 1.0  # θ = gain · Θ; for optimizers whose steps are small
        self.rounding = False
        # For the user's own training loop: the layer's sparsity at the end, and whether Θ contains the final trits.
        self.planned_sparsity: float | None = None
        self.fixed = False
        self.last_gradient: Tensor | None = None  # of the loss with respect to W, in the last step
        self._soft: Tensor | None = None

    def set_threshold(self, threshold: float) -> None:
        """Set t, and α with it."""
        self.threshold, self.alpha = threshold, alpha_of_threshold(threshold)

    def set_alpha(self, alpha: float) -> None:
        """Set α, which may exceed 2, and t with it."""
        self.alpha, self.threshold = alpha, threshold_of_alpha(alpha)

    @property
    def forward_threshold(self) -> float:
        """The border of rounding in Θ: t, or 0 in the paper's form, which rounds at |W| = ½."""
        return 0.0 if self.form in LOSS_TERM_FORMS else self.threshold

    def flow(self, latent: Tensor, time: float = math.inf) -> Flow:
        """The flow of this layer's weights for λ, but at most for u = `time`."""
        strength = min(self.wdr_strength, time / (4.0 * self.alpha)) if self.alpha else self.wdr_strength
        theta = latent.detach() * self.gain if self.gain != 1.0 else latent.detach()
        return Flow(theta, self.alpha, self.threshold, strength)

    def gradient_slope(self, latent: Tensor) -> Tensor | None:
        """The estimate of ∂W/∂θ of the decoupled form; None: 1."""
        if self.gradient == "straight-through":
            return None
        if self.gradient == "tanh":
            return 1.0 - torch.tanh(latent * self.gain).square_()
        return self.flow(latent, GRADIENT_FLOW).slope().clamp_(max=1.0)

    def soft(self, latent: Tensor) -> Tensor:
        """W as this layer currently computes it from Θ."""
        if self.fixed:
            return latent.detach()
        if self.form == "straight-through":
            return straight_through(trits_at(latent.detach(), self.threshold / self.gain), latent)
        if self.form == "decoupled":
            soft: Tensor = DecoupledWeight.apply(latent, self)  # type: ignore[no-untyped-call]
            return soft
        return latent if self.form == "no-tanh" else torch.tanh(latent)

    def forward(self, latent: Tensor) -> Tensor:
        soft = self.soft(latent)
        if self.rounding:
            return nearest_trits(soft)
        if torch.is_grad_enabled() and not self.fixed and self.form in LOSS_TERM_FORMS:
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
        return wdr(self.pop_soft_weight(), self.alpha)


@dataclass(frozen=True)
class GradientAgreement:
    """How far a network in the decoupled form is from a ternary one, and how its gradient was estimated.

    Late in training few weights are soft, and every estimate resembles straight-through.
    """

    soft_fraction: float  # of the weights that are more than 0.01 away from a trit
    cosine_exact: float  # of the used gradient of Θ with the exact one
    cosine_straight_through: float  # with the gradient of W itself


@torch.no_grad()
def gradient_agreement(model: nn.Module) -> GradientAgreement | None:
    """Of the last training step; None for other forms and before the first step."""
    thetas, products, soft = latents(model), torch.zeros(5, dtype=torch.float64), []
    for name, weight in ternary_weights(model).items():
        if weight.form != "decoupled" or weight.last_gradient is None:
            return None
        flow, slope = weight.flow(thetas[name]), weight.gradient_slope(thetas[name])
        given = weight.last_gradient.double()
        used = given if slope is None else given * slope
        exact = given * flow.slope() * math.exp(flow.time)
        pairs = ((used, exact), (used, given), (used, used), (exact, exact), (given, given))
        products += torch.stack([(one * other).sum() for one, other in pairs])
        weights = flow.weight()
        soft.append(((weights - weights.round()).abs() > 0.01).flatten())
    if not soft:
        return None
    with_exact, with_given, of_used, of_exact, of_given = products.tolist()
    return GradientAgreement(
        float(torch.cat(soft).float().mean()),
        with_exact / math.sqrt(of_used * of_exact or 1.0),
        with_given / math.sqrt(of_used * of_given or 1.0),
    )


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


def parametrize_layers(
    model: nn.Module,
    spreads: Mapping[str, float | None],
    form: Form = "paper",
    kind: type[TernaryWeight] = TernaryWeight,
) -> None:
    """Add the parametrization to the named layers, in place, with a spread of Θ for each."""
    for name, spread in spreads.items():
        put_parametrization(model.get_submodule(name), kind(form, spread))


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
