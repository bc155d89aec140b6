"""Scales of ternary layers, since trits have none.

A ternary layer without a normalization after it has a learned scale, `output_scale`: it computes s · W x + b. Since
W(s x) = s · W x, the input is multiplied and the bias is unchanged. s is 1 in the dense network, and an export folds it
into the layer's record.

Other methods than SCA have trits that stand for other numbers than ±1, per output channel. Where +1 and -1 stand for
the same magnitude, the layer multiplies its outputs by it (`level_scale`). Where the magnitudes differ, +1 and -1 are
two layers whose outputs are added (`SplitTernary`), with as many non-zeros in total. Exports support both.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

OUTPUT_SCALE = "output_scale"
_LEVEL_SCALE = "level_scale"
_POSITIVE, _NEGATIVE = "positive", "negative"


def put_output_scales(model: nn.Module, layers: Iterable[str]) -> nn.Module:
    """Add an output scale of 1 to the named layers, in place."""
    for name in layers:
        layer = model.get_submodule(name)
        weight = cast(nn.Parameter, layer.weight)
        scale = nn.Parameter(torch.ones((), dtype=weight.dtype, device=weight.device))
        layer.register_parameter(OUTPUT_SCALE, scale)
        # The unit of the optimizer's steps: a step of 0.01 is small for a scale of 1 and huge for one of 0.02.
        layer.output_unit = 1.0  # type: ignore[assignment]
        layer.register_forward_pre_hook(_scale_input, with_kwargs=True)
    return model


def _scale_input(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (args[0] * layer.output_scale, *args[1:]), kwargs
    return args, kwargs | {"input": kwargs["input"] * layer.output_scale}


def scaled_layers(names: Iterable[str]) -> list[str]:
    """The layers with an output scale, from the names in a state."""
    return [name.rpartition(".")[0] for name in names if name.split(".")[-1] == OUTPUT_SCALE]


@torch.no_grad()
def absorb_scale(layer: nn.Module, factor: float) -> None:
    """Multiply a layer's output scale, if it has one, by a factor that its weights lose."""
    if has_output_scale(layer):
        scale = cast(nn.Parameter, layer.output_scale)
        scale.mul_(factor)
        layer.output_unit = scale.item()  # type: ignore[assignment]


def has_output_scale(layer: nn.Module) -> bool:
    return OUTPUT_SCALE in layer._parameters


def output_scales(model: nn.Module) -> list[tuple[nn.Parameter, float]]:
    """The output scales of a network, each with the unit of its optimizer's steps."""
    layers = [module for module in model.modules() if has_output_scale(module)]
    return [(cast(nn.Parameter, layer.output_scale), abs(cast(float, layer.output_unit))) for layer in layers]


@dataclass(frozen=True, eq=False)
class ScaledTrits:
    """A layer's final weights."""

    trits: Tensor
    positive: Tensor | None = None  # the magnitude of +1, per output channel or a scalar; None: 1
    negative: Tensor | None = None  # the magnitude of -1; None: as `positive`


class SplitTernary(nn.Module):
    """A layer whose +1 and -1 have different magnitudes."""

    def __init__(self, positive: nn.Module, negative: nn.Module) -> None:
        super().__init__()
        self.positive = positive
        self.negative = negative

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.positive(inputs) + self.negative(inputs)
        return outputs


@torch.no_grad()
def set_trits(model: nn.Module, weights: Mapping[str, ScaledTrits]) -> nn.Module:
    """Set the final weights of plain layers and freeze them, in place."""
    for name, of_layer in weights.items():
        if of_layer.negative is not None:
            pair = _split(model, name)
            _put(pair.positive, of_layer.trits.clamp(min=0.0), of_layer.positive)
            _put(pair.negative, of_layer.trits.clamp(max=0.0), of_layer.negative)
        else:
            _put(model.get_submodule(name), of_layer.trits, of_layer.positive)
    return model


def _put(layer: nn.Module, trits: Tensor, magnitude: Tensor | None) -> None:
    cast(nn.Parameter, layer.weight).copy_(trits).requires_grad_(False)
    if magnitude is None:
        return
    # A layer whose weights are all 0 has a scale of 0, by which its bias cannot be divided.
    scale = torch.where(magnitude == 0.0, 1.0, magnitude)
    _add_level_scale(layer).copy_(scale)
    if layer.bias is not None:
        cast(nn.Parameter, layer.bias).div_(scale)


def _split(model: nn.Module, name: str) -> SplitTernary:
    """Replace a layer by two; the first has the bias."""
    positive = model.get_submodule(name)
    negative = copy.deepcopy(positive)
    negative.bias = None  # type: ignore[assignment]
    parent, _, own = name.rpartition(".")
    pair = SplitTernary(positive, negative)
    setattr(model.get_submodule(parent), own, pair)
    return pair


def _add_level_scale(layer: nn.Module) -> Tensor:
    outputs = layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels
    layer.register_buffer(_LEVEL_SCALE, torch.ones(cast(int, outputs)))
    layer.register_forward_hook(_scale_output)
    return cast(Tensor, layer.level_scale)


def _scale_output(layer: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    ones = [1] * (cast(Tensor, layer.weight).ndim - 2)  # channels precede rows and columns
    return output * cast(Tensor, layer.level_scale).view(-1, *ones)


def shaped_like_state(model: nn.Module, state: Iterable[str]) -> nn.Module:
    """Give a new network the split layers and level scales that the names of a state imply, in place."""
    names = set(state)
    end = f".{_POSITIVE}.weight"
    for base in sorted(name.removesuffix(end) for name in names if name.endswith(end)):
        is_pair = {f"{base}.{_NEGATIVE}.weight", f"{base}.{_POSITIVE}.{_LEVEL_SCALE}"} <= names
        if is_pair and not isinstance(model.get_submodule(base), SplitTernary):
            _split(model, base)
    for name in sorted(names):
        base, _, last = name.rpartition(".")
        if last == _LEVEL_SCALE:
            _add_level_scale(model.get_submodule(base))
    return model


def baked_layers(model: nn.Module, layers: Iterable[str]) -> tuple[str, ...]:
    """The layers of a baked network that contain trits: the two of a split layer instead of the layer."""
    split = (f".{_POSITIVE}", f".{_NEGATIVE}")
    return tuple(
        f"{name}{end}"
        for name in layers
        for end in (split if isinstance(model.get_submodule(name), SplitTernary) else ("",))
    )


def merged_trits(trits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Trits per layer, with those of split layers added."""
    merged: dict[str, Tensor] = {}
    for name, own in trits.items():
        base, _, last = name.rpartition(".")
        other = {_POSITIVE: _NEGATIVE, _NEGATIVE: _POSITIVE}.get(last)
        if other is None or f"{base}.{other}" not in trits:
            merged[name] = own
        else:
            merged[base] = merged.get(base, torch.zeros_like(own)) + own
    return merged
