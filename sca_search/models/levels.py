"""What a layer's trits stand for, and layers that compute with it in a plain network.

+1 stands for a number of its own, and so does -1, by output channel; both are 1 in a network of {-1, 0, +1}. Where they
are equal, the layer multiplies its outputs by them (`level_scale`). Where they differ, +1 and -1 are two layers whose
outputs are added (`TwoLevels`): together they have as many non-zeros as the one had. An export takes both as they are.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

SCALE = "level_scale"
_POSITIVE, _NEGATIVE = "positive", "negative"


@dataclass(frozen=True, eq=False)
class Levels:
    """A layer's final weights."""

    trits: Tensor
    positive: Tensor | None = None  # what +1 stands for, by output channel or one number; None: 1
    negative: Tensor | None = None  # -1 stands for minus this; None: as `positive`

    @property
    def has_two(self) -> bool:
        return self.negative is not None


class TwoLevels(nn.Module):
    """A layer whose +1 and -1 stand for different numbers."""

    def __init__(self, positive: nn.Module, negative: nn.Module) -> None:
        super().__init__()
        self.positive = positive
        self.negative = negative

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.positive(inputs) + self.negative(inputs)
        return outputs


@torch.no_grad()
def put_levels(model: nn.Module, levels: Mapping[str, Levels]) -> nn.Module:
    """Gives plain layers their final weights, frozen, in place."""
    for name, of_layer in levels.items():
        if of_layer.has_two:
            pair = _split(model, name)
            trits = of_layer.trits
            _put(pair.positive, Levels(trits.clamp(min=0.0), of_layer.positive))
            _put(pair.negative, Levels(trits.clamp(max=0.0), of_layer.negative))
        else:
            _put(model.get_submodule(name), of_layer)
    return model


def _put(layer: nn.Module, levels: Levels) -> None:
    weight = cast(nn.Parameter, layer.weight)
    weight.copy_(levels.trits)
    weight.requires_grad_(False)
    if levels.positive is None:
        return
    _add_scale(layer)
    # A layer that stands for nothing at all has a scale of 0, which its bias cannot be divided by.
    scale = torch.where(levels.positive == 0.0, 1.0, levels.positive)
    cast(Tensor, layer.level_scale).copy_(scale.expand(_outputs(layer)))
    if layer.bias is not None:
        cast(nn.Parameter, layer.bias).div_(scale)


def _split(model: nn.Module, name: str) -> TwoLevels:
    """Puts two layers instead of one; the bias stays with the first."""
    positive = model.get_submodule(name)
    negative = copy.deepcopy(positive)
    negative.bias = None  # type: ignore[assignment]
    parent, _, own = name.rpartition(".")
    pair = TwoLevels(positive, negative)
    setattr(model.get_submodule(parent), own, pair)
    return pair


def _add_scale(layer: nn.Module) -> None:
    layer.register_buffer(SCALE, torch.ones(_outputs(layer)))
    layer.register_forward_hook(_scaled)


def _outputs(layer: nn.Module) -> int:
    return int(layer.out_features if isinstance(layer, nn.Linear) else layer.out_channels)  # type: ignore[arg-type]


def _scaled(layer: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
    ones = [1] * (cast(Tensor, layer.weight).ndim - 2)  # channels of a map come before its rows and columns
    return output * cast(Tensor, layer.level_scale).view(-1, *ones)


def shaped_as(model: nn.Module, state: Iterable[str]) -> nn.Module:
    """A network that was just made, with the layers that a state's names tell of, in place."""
    names = set(state)
    for name in _pairs(names):
        if isinstance(model.get_submodule(name), TwoLevels):
            continue
        _split(model, name)
    for name in sorted(names):
        base, _, last = name.rpartition(".")
        if last == SCALE:
            _add_scale(model.get_submodule(base))
    return model


def _pairs(names: Iterable[str]) -> list[str]:
    known = set(names)
    ends = f".{_POSITIVE}.weight"
    bases = [name.removesuffix(ends) for name in known if name.endswith(ends)]
    return sorted(base for base in bases if {f"{base}.{_NEGATIVE}.weight", f"{base}.{_POSITIVE}.{SCALE}"} <= known)


def baked_layers(model: nn.Module, layers: Iterable[str]) -> tuple[str, ...]:
    """The layers of a baked network that hold trits: a pair's two instead of the layer that they came from."""
    return tuple(
        own
        for name in layers
        for own in (
            (f"{name}.{_POSITIVE}", f"{name}.{_NEGATIVE}")
            if isinstance(model.get_submodule(name), TwoLevels)
            else (name,)
        )
    )


def whole_trits(trits: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Trits a layer, those of a pair put together again."""
    whole: dict[str, Tensor] = {}
    for name, own in trits.items():
        base, _, last = name.rpartition(".")
        other = {_POSITIVE: _NEGATIVE, _NEGATIVE: _POSITIVE}.get(last)
        if other is None or f"{base}.{other}" not in trits:
            whole[name] = own
        else:
            whole[base] = whole.get(base, torch.zeros_like(own)) + own
    return whole
