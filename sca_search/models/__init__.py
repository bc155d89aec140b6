"""The networks of the paper and a small one for 8×8 digits, by name.

Plain modules: which of their layers become ternary is decided elsewhere, from the layers' names. What they
share is that every weight layer but the last feeds a BatchNorm and has no bias: weights in {-1, 0, +1} have
no scale of their own, the normalisation gives them one.
"""

from collections.abc import Callable

from torch import nn

from sca_search.errors import ModelError, unknown_name
from sca_search.models.alexnet import alexnet
from sca_search.models.lenet import lenet, lenet_medium, lenet_small
from sca_search.models.resnet import resnet18, resnet20
from sca_search.models.shape import Shape
from sca_search.models.vgg import vgg_s, vgg_variate

__all__ = ["MODELS", "Builder", "Shape", "build_model"]

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


def build_model(name: str, *, num_classes: int, input_shape: tuple[int, ...], dropout: float = 0.0) -> nn.Module:
    """The named network for inputs of (channels, height, width), freshly initialised, in training mode."""
    if name not in MODELS:
        raise ModelError(unknown_name("model", name, MODELS))
    if num_classes < 1:
        raise ModelError(f"model {name}: the number of outputs must be at least 1, got {num_classes}")
    if len(input_shape) != 3:
        raise ModelError(f"model {name}: the input must be (channels, height, width), got {input_shape}")
    if input_shape[0] < 1:
        raise ModelError(f"model {name}: the input must have at least 1 channel, got {input_shape[0]}")
    if not 0 <= dropout < 1:
        raise ModelError(f"model {name}: dropout must be at least 0 and below 1, got {dropout}")
    channels, height, width = input_shape
    return MODELS[name](num_classes, (channels, height, width), dropout)
