"""Which layers become ternary: weight layers in order of execution, each with the reason for its lot."""

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sca_search.errors import ModelError

WEIGHT_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMALISATIONS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
)


@dataclass(frozen=True)
class WeightLayer:
    """A convolution or fully connected layer of a network."""

    name: str
    shape: tuple[int, ...]  # of its weight: output channels, input channels, kernel
    scale_is_free: bool  # a normalisation reads its output, so the weights may be rescaled
    executed: bool = True

    @property
    def weights(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class LayerChoice:
    """A weight layer, whether it becomes ternary, and why."""

    layer: WeightLayer
    ternary: bool
    why: str


def weight_layers(model: nn.Module, input_shape: Sequence[int]) -> list[WeightLayer]:
    """The weight layers in order of execution, those that never run last.

    One forward pass with hooks: a normalisation that is handed the very tensor a layer gave follows that layer.
    """
    names = {module: name for name, module in model.named_modules()}
    order: list[nn.Module] = []
    giver: dict[tuple[int, int], nn.Module] = {}  # by identity and version: an in-place ReLU makes it another tensor
    kept: list[Tensor] = []  # outputs stay alive, else a new tensor could take over a dead one's id
    normalised: set[nn.Module] = set()

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(module, NORMALISATIONS) and inputs:
            source = giver.get((id(inputs[0]), inputs[0]._version))
            if source is not None:
                normalised.add(source)
        if isinstance(module, WEIGHT_LAYERS):
            kept.append(output)
            giver[id(output), output._version] = module
            if module not in order:
                order.append(module)

    hooks = [module.register_forward_hook(note) for module in names]
    modes = {module: module.training for module in names}
    try:
        with torch.no_grad():
            model.eval()(torch.zeros(2, *input_shape))
    except Exception as error:  # whatever a network raises on an input that it cannot take
        raise ModelError(f"the network cannot take an input of shape {tuple(input_shape)}: {error}") from error
    finally:
        for module, mode in modes.items():
            module.training = mode
        for hook in hooks:
            hook.remove()
    idle = [module for module in names if isinstance(module, WEIGHT_LAYERS) and module not in order]
    return [_describe(module, names[module], module in normalised) for module in order] + [
        _describe(module, names[module], scale_is_free=False, executed=False) for module in idle
    ]


def _describe(module: nn.Module, name: str, scale_is_free: bool, executed: bool = True) -> WeightLayer:
    assert isinstance(module.weight, Tensor)
    return WeightLayer(name, tuple(module.weight.shape), scale_is_free, executed)


def choose_layers(
    layers: Sequence[WeightLayer],
    *,
    keep_first: bool = True,
    keep_last: bool = True,
    skip: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[LayerChoice]:
    """Says for each layer whether it becomes ternary. `only` overrules the convention for first and last."""
    running = [layer.name for layer in layers if layer.executed]
    conventional: dict[str, str] = {}
    if not only:
        conventional |= dict.fromkeys(running[-1:], "last") if keep_last else {}
        conventional |= dict.fromkeys(running[:1], "first") if keep_first else {}
    _refuse_idle_patterns([*skip, *only], [layer.name for layer in layers])
    choices = [_choose(layer, conventional, skip, only) for layer in layers]
    if not any(choice.ternary for choice in choices):
        reasons = "; ".join(f"{choice.layer.name}: {choice.why}" for choice in choices) or "it has no weight layer"
        raise ModelError(f"the network has no layer to make ternary ({reasons})")
    return choices


def _refuse_idle_patterns(patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ModelError(f"the layer pattern {pattern!r} matches no weight layer: there are {', '.join(names)}")


def _choose(layer: WeightLayer, conventional: dict[str, str], skip: Sequence[str], only: Sequence[str]) -> LayerChoice:
    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(layer.name, pattern) for pattern in patterns)

    if not layer.executed:
        return LayerChoice(layer, False, "never runs as a module of its own")
    if matches(skip):
        return LayerChoice(layer, False, "skipped by name")
    if only and not matches(only):
        return LayerChoice(layer, False, "not among the layers named")
    if layer.name in conventional:
        return LayerChoice(layer, False, f"{conventional[layer.name]} weight layer")
    if layer.scale_is_free:
        return LayerChoice(layer, True, "normalisation follows: Θ rescaled")
    return LayerChoice(layer, True, "no normalisation follows: Θ left at the dense weights' scale")
