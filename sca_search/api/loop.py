"""The method for anyone's own training loop.

    sca.ternarize(model, target_sparsity=0.5)       # then make the optimizer: layers have new parameters
    control = sca.Control(model, steps=epochs * len(loader), optimizer=optimizer)
    for images, labels in loader:                   # as ever, with one more line and one more term
        control.step()
        loss = criterion(model(images), labels) + sca.regularizer(model)
    sca.bake(model)                                 # plain weights in {-1, 0, +1}, zeros exactly as asked for

In the paper's form α stands still, and λ may too: without a control, λ · `regularizer` is the whole method.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sca_search.errors import ModelError
from sca_search.models.attention import open_attention
from sca_search.models.layers import WEIGHT_LAYERS, choose_layers, defined_layers, weight_layers
from sca_search.models.scales import put_output_scales
from sca_search.ternary.exact import Floor, exact_trits
from sca_search.ternary.parametrize import (
    Form,
    ZeroCount,
    latents,
    soft_weights,
    ternary_weights,
    total,
    wdr,
    zero_counts,
)
from sca_search.ternary.parametrize import bake as bake_trits
from sca_search.ternary.parametrize import ternarize as parametrize_layers
from sca_search.ternary.prior import alpha_for_sparsity, zeros_for_sparsity

SPREAD = 0.6  # root mean square of Θ: what studies try first


def ternarize(
    model: nn.Module,
    target_sparsity: float = 0.5,
    *,
    form: Form = "sharpened",
    skip: Sequence[str] = (),
    only: Sequence[str] = (),
    keep_first: bool = True,
    keep_last: bool = True,
    example: Tensor | None = None,
) -> nn.Module:
    """Gives the network's layers latent weights Θ, in place; their share of zeros is to be `target_sparsity`.

    First and last layer stay dense unless told otherwise. With an `example`, a batch of inputs, they are found by
    running the network once; without, by the order in which its modules were defined. `skip` and `only` are patterns
    of layer names. Layers that no normalisation is known to follow get a learned output scale; nn.MultiheadAttention is
    replaced by an equal module of linear layers.
    """
    if not 0.0 <= target_sparsity < 1.0:
        raise ModelError(f"ternarize: target_sparsity must be at least 0 and below 1, got {target_sparsity}")
    if ternary_weights(model):
        raise ModelError("ternarize: the network is ternarized already")
    model = open_attention(model)
    layers = defined_layers(model) if example is None else weight_layers(model, tuple(example.shape[1:]))
    choices = choose_layers(layers, keep_first=keep_first, keep_last=keep_last, skip=skip, only=only)
    chosen = [choice.layer for choice in choices if choice.ternary]
    put_output_scales(model, [layer.name for layer in chosen if not layer.scale_is_free])
    parametrize_layers(model, dict.fromkeys((layer.name for layer in chosen), SPREAD), form)
    thetas = latents(model)
    for name, weight in ternary_weights(model).items():
        weight.planned = target_sparsity
        weight.alpha = alpha_for_sparsity(thetas[name], target_sparsity)
        weight.strength = 1.0  # until a control says otherwise, the regularizer is R itself
    return model


def regularizer(model: nn.Module) -> Tensor:
    """Σ λ R over the ternary layers, R = Σ (α − W²) W²; λ is 1 without a control, which gives the paper's R."""
    weights, thetas = ternary_weights(model), latents(model)
    if not weights:
        raise ModelError("regularizer: the network has no ternary layer; call ternarize first")
    pulls = [
        weight.strength * wdr(weight.soft(thetas[name]), weight.alpha_of_soft())
        for name, weight in weights.items()
        if weight.strength and not weight.fixed
    ]
    return torch.stack(pulls).sum() if pulls else next(iter(thetas.values())).new_zeros(())


def ternary_layers(model: nn.Module) -> tuple[str, ...]:
    """The names of the ternary layers: those with latent weights, or of a baked network those with trits alone."""
    latent = tuple(ternary_weights(model))
    return latent or tuple(name for name, weight in _plain_weights(model).items() if _is_ternary(weight))


def sparsity(model: nn.Module) -> float:
    """The share of zeros: of a ternarized network as rounding would leave it now, of a baked one as it is."""
    if ternary_weights(model):
        trits = {name: soft.round() for name, soft in soft_weights(model).items()}
    else:
        plain = _plain_weights(model)
        trits = {name: plain[name] for name in ternary_layers(model)}
    counted: ZeroCount = total(zero_counts(trits))
    if not counted.weights:
        raise ModelError("sparsity: the network has no ternary layer")
    return counted.sparsity


def _plain_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: module.weight.detach() for name, module in model.named_modules() if isinstance(module, WEIGHT_LAYERS)}


def _is_ternary(weight: Tensor) -> bool:
    return bool(((weight == 0) | (weight.abs() == 1)).all())


def bake(model: nn.Module) -> nn.Module:
    """Leaves plain, frozen weights in {-1, 0, +1}, in place, with exactly the zeros that `ternarize` was asked for."""
    if not ternary_weights(model):
        raise ModelError("bake: the network has no ternary layer; call ternarize first")
    return bake_trits(model, _final_trits(model))


def fix(model: nn.Module) -> None:
    """From now on the layers have the trits that `bake` would give; Θ holds them and trains no longer."""
    thetas = latents(model)
    with torch.no_grad():
        for name, trits in _final_trits(model).items():
            thetas[name].copy_(trits)
    mark_fixed(model)


def mark_fixed(model: nn.Module) -> None:
    """Says that Θ holds trits, for a network that was fixed before and has been loaded again."""
    for latent in latents(model).values():
        latent.requires_grad_(False)
        latent.grad = None  # else an optimizer would move it once more
    for weight in ternary_weights(model).values():
        weight.fixed = True


def _final_trits(model: nn.Module) -> dict[str, Tensor]:
    weights = ternary_weights(model)
    thetas = {name: latent.detach() for name, latent in latents(model).items()}
    if all(weight.fixed for weight in weights.values()):
        return thetas
    zeros = zeros_for_sparsity(
        math.fsum(thetas[name].numel() * (weight.planned or 0.0) for name, weight in weights.items())
        / sum(theta.numel() for theta in thetas.values()),
        sum(theta.numel() for theta in thetas.values()),
    )
    thresholds = {name: weight.threshold for name, weight in weights.items()}
    return exact_trits(thetas, soft_weights(model), thresholds, zeros, Floor()).trits
