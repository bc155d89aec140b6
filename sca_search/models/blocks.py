"""Building blocks of the built-in networks: input shapes, named layers without branches, and their initialisation.

Normalisations and activations are numbered by the weight layer they follow, counted over the whole chain:
conv1 bn1 relu1 ... conv6 bn6 relu6, then fc1 bn7 relu7.
"""

from collections import OrderedDict

from torch import nn

from sca_search.errors import ModelError

Shape = tuple[int, ...]
"""(channels, height, width) for images; (channels, length), (channels, depth, height, width), (features,)"""
Layers = dict[str, nn.Module]


def require_maps(model: str, shape: Shape) -> None:
    """ModelError for an input that is not an image."""
    if len(shape) != 3:
        raise ModelError(
            f"model {model}: takes images (channels, height, width), the data's shape is {tuple(shape)}; "
            "other networks can be given as file.py:function"
        )


def require_pixels(model: str, shape: Shape, least: int) -> None:
    """ModelError for an image that would shrink to nothing in the network."""
    _, height, width = shape
    if min(height, width) < least:
        raise ModelError(
            f"model {model}: the input must be at least {least}x{least} pixels (height x width), got {height}x{width}"
        )


def conv(order: int, inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int | None = None) -> Layers:
    """A convolution, its BatchNorm and ReLU; the default padding preserves the image's size at stride 1."""
    padding = kernel // 2 if padding is None else padding
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
    return {f"conv{order}": layer, f"bn{order}": nn.BatchNorm2d(outputs), f"relu{order}": nn.ReLU()}


def hidden(number: int, order: int, inputs: int, outputs: int) -> Layers:
    """The fully connected layer `fc<number>`, the chain's weight layer `order`, its BatchNorm and ReLU."""
    layer = nn.Linear(inputs, outputs, bias=False)
    return {f"fc{number}": layer, f"bn{order}": nn.BatchNorm1d(outputs), f"relu{order}": nn.ReLU()}


def dropped(number: int, rate: float) -> Layers:
    """A dropout before `fc<number>`; none at rate 0, so that an export has no unused layer."""
    return {f"dropout{number}": nn.Dropout(rate)} if rate > 0 else {}


def join(layers: Layers) -> nn.Module:
    """The layers in their order as one network, initialised."""
    return initialise_xavier(nn.Sequential(OrderedDict(layers)))


def initialise_xavier(network: nn.Module) -> nn.Module:
    """Xavier (Glorot) uniform as in the paper, U(-b, b), b = √(6 / (fan in + fan out)); biases are 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network
