"""A learned scale for a ternary layer that no normalisation follows: trits have no scale of their own.

The layer then gives s · W x + b. Since W(s x) = s · W x, the input is what is multiplied: the bias stays what it was.
s is a parameter of the layer, `output_scale`, of one number: 1 in the dense network, and an export folds it into the
layer's record.
"""

from collections.abc import Iterable
from typing import Any, cast

import torch
from torch import nn

NAME = "output_scale"


def put_output_scales(model: nn.Module, layers: Iterable[str]) -> nn.Module:
    """Gives the named layers a scale of 1, in place."""
    for name in layers:
        layer = model.get_submodule(name)
        weight = cast(nn.Parameter, layer.weight)
        layer.register_parameter(NAME, nn.Parameter(torch.ones((), dtype=weight.dtype, device=weight.device)))
        # What the optimizer's steps are measured by: a step of 0.01 is small for a scale of 1 and huge for one of 0.02.
        layer.output_unit = 1.0  # type: ignore[assignment]
        layer.register_forward_pre_hook(_scaled, with_kwargs=True)
    return model


def _scaled(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (args[0] * layer.output_scale, *args[1:]), kwargs
    return args, kwargs | {"input": kwargs["input"] * layer.output_scale}


def scaled_layers(names: Iterable[str]) -> list[str]:
    """The layers with a scale, from the names in a state."""
    return [name.removesuffix(NAME).removesuffix(".") for name in names if name.split(".")[-1] == NAME]


@torch.no_grad()
def take_over(layer: nn.Module, factor: float) -> None:
    """Lets a layer's scale, if it has one, take over a factor that its weights lose."""
    if has_output_scale(layer):
        scale = cast(nn.Parameter, layer.output_scale)
        scale.mul_(factor)
        layer.output_unit = scale.item()  # type: ignore[assignment]


def has_output_scale(layer: nn.Module) -> bool:
    return NAME in layer._parameters


def output_scales(model: nn.Module) -> list[tuple[nn.Parameter, float]]:
    """The scales of a network, each with what its optimizer's steps are measured by."""
    layers = [module for module in model.modules() if has_output_scale(module)]
    return [(cast(nn.Parameter, layer.output_scale), abs(cast(float, layer.output_unit))) for layer in layers]
