"""The networks of the paper and a small one for 8×8 digits, by name; and loaders of any other network.

A name with a colon is another network: `torchvision:NAME`, `timm:NAME`, `file.py:function`, `package:function`.
"""

from collections.abc import Callable
from functools import partial

from torch import nn

from sca_search.errors import ModelError, unknown_name
from sca_search.models.builtin import Shape, alexnet, lenet, require_maps, resnet18, resnet20, vgg
from sca_search.models.user import Maker, maker_of, user_maker
from sca_search.models.zoo import timm_maker, torchvision_maker

__all__ = ["MODELS", "Builder", "Maker", "Shape", "build_model", "find_maker", "maker_of"]

Builder = Callable[[int, Shape, float], nn.Module]
"""(number of classes, input shape, dropout rate) -> network"""

# With the weights between the first and the last layer, for inputs as in the paper.
MODELS: dict[str, Builder] = {
    # 16C5-MP2-32C5-MP2-64FC: trains in seconds on a CPU; 20,992 on 1×8×8
    "lenet-small": partial(lenet, (16, 32, 64)),
    # 16C5-MP2-32C5-MP2-128FC: an eighth of the paper's weights, for studies on a subset of MNIST
    "lenet-medium": partial(lenet, (16, 32, 128)),
    # The paper's 32C5-MP2-64C5-MP2-512FC; 1,656,832 on 1×28×28
    "lenet": partial(lenet, (32, 64, 512)),
    # 2×128C3-MP2-2×256C3-MP2-2×512C3-MP2-1024FC; 12,959,744 on 3×32×32
    "vgg-s": partial(vgg, (128, 256, 512), 1024, True),
    # 2×48C3-MP2-2×96C3-MP2-2×160C3-MP2-128FC. The paper only says that this network has at least 0.84 M parameters, so
    # the widths are our choice: a narrower VGG-S with 841,472 on 3×32×32; larger images enlarge its first linear layer
    "vgg-variate": partial(vgg, (48, 96, 160), 128, False),
    "resnet20": resnet20,  # 269,824, 2,560 of them in the projections
    "resnet18": resnet18,  # 11,157,504
    "alexnet": alexnet,  # 56,971,264 for any image size
}

# The paper's recipes train these without dropout, which they do not support.
_WITHOUT_DROPOUT = {"resnet20", "resnet18"}

# Two poolings; three; two strides of 2 that round up: from 3 pixels on, each has more than one pixel to reduce; five of
# these; and 63 pixels become 15, 7, 3 and 1 through the strided convolution and three poolings of 3 at stride 2.
_LEAST_PIXELS = {"lenet": 4, "vgg": 8, "resnet20": 3, "resnet18": 17, "alexnet": 63}

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
    channels, height, width = input_shape
    least = _LEAST_PIXELS[name.partition("-")[0]]
    rules = {
        f"the number of outputs must be at least 1, got {num_classes}": num_classes >= 1,
        f"the input must have at least 1 channel, got {channels}": channels >= 1,
        f"dropout must be at least 0 and below 1, got {dropout}": 0 <= dropout < 1,
        f"dropout must be 0, the network has none, got {dropout}": dropout == 0 or name not in _WITHOUT_DROPOUT,
        f"the input must have 3 channels, got {channels}": channels == 3 or name != "resnet18",
        f"the input must be at least {least}x{least} pixels (height x width), got {height}x{width}": (
            min(height, width) >= least
        ),
    }
    for rule, holds in rules.items():
        if not holds:
            raise ModelError(f"model {name}: {rule}")
    return MODELS[name](num_classes, (channels, height, width), dropout)
