"""The networks of the paper and a small one for 8×8 digits, by name; and loaders of any other network.

Every weight layer of the built-in networks except the last is followed by a BatchNorm and has no bias: weights in
{-1, 0, +1} have no scale, the normalisation supplies one.

A name with a colon is another network: `torchvision:NAME`, `timm:NAME`, `file.py:function`, `package:function`.
"""

from collections.abc import Callable

from torch import nn

from sca_search.errors import ModelError, unknown_name
from sca_search.models.alexnet import alexnet
from sca_search.models.blocks import Shape, require_maps
from sca_search.models.lenet import lenet, lenet_medium, lenet_small
from sca_search.models.resnet import resnet18, resnet20
from sca_search.models.user import Maker, maker_of, user_maker
from sca_search.models.vgg import vgg_s, vgg_variate
from sca_search.models.zoo import timm_maker, torchvision_maker

__all__ = ["MODELS", "Builder", "Maker", "Shape", "build_model", "find_maker", "maker_of"]

Builder = Callable[[int, Shape, float], nn.Module]
"""(number of classes, input shape, dropout rate) -> network"""

MODELS: dict[str, Builder] = {
    "lenet-small": lenet_small,
    "lenet-medium": lenet_medium,
    "lenet": lenet,
    "vgg-s": vgg_s,
    "vgg-variate": vgg_variate,
    "resnet20": resnet20,
    "resnet18": resnet18,
    "alexnet": alexnet,
}

_ZOOS = {"torchvision": torchvision_maker, "timm": timm_maker}


def find_maker(name: str, *, num_classes: int, input_shape: Shape, dropout: float = 0.0) -> Maker:
    """The function that makes the named network for inputs of this shape; ModelError if there is no such network."""
    source, colon, rest = name.partition(":")
    if not colon:
        return lambda: build_model(name, num_classes=num_classes, input_shape=input_shape, dropout=dropout)
    if dropout:
        raise ModelError(f"model {name}: model.dropout is a setting of the built-in networks, got {dropout}")
    if source in _ZOOS:
        return _ZOOS[source](rest, num_classes, input_shape)
    return user_maker(name, num_classes, input_shape)


def build_model(name: str, *, num_classes: int, input_shape: Shape, dropout: float = 0.0) -> nn.Module:
    """The named network for inputs of (channels, height, width), newly initialised, in training mode."""
    if name not in MODELS:
        sentence = unknown_name("model", name, MODELS)
        raise ModelError(f"{sentence}; others can be given as file.py:function, torchvision:NAME or timm:NAME")
    require_maps(name, input_shape)
    if num_classes < 1:
        raise ModelError(f"model {name}: the number of outputs must be at least 1, got {num_classes}")
    if input_shape[0] < 1:
        raise ModelError(f"model {name}: the input must have at least 1 channel, got {input_shape[0]}")
    if not 0 <= dropout < 1:
        raise ModelError(f"model {name}: dropout must be at least 0 and below 1, got {dropout}")
    channels, height, width = input_shape
    return MODELS[name](num_classes, (channels, height, width), dropout)
