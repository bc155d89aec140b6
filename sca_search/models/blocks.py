"""Pieces of a network without branches: an ordered dict of named layers, joined into one nn.Sequential.

Normalisations and activations are numbered by the weight layer they follow, counted over the whole chain:
conv1 bn1 relu1 ... conv6 bn6 relu6, then fc1 bn7 relu7.
"""

from collections import OrderedDict

from torch import nn

from sca_search.models.initialise import initialise_xavier

Layers = dict[str, nn.Module]


def conv(order: int, inputs: int, outputs: int, kernel: int, *, stride: int = 1, padding: int | None = None) -> Layers:
    """A convolution, its BatchNorm and ReLU; the default padding keeps the image's size at stride 1."""
    padding = kernel // 2 if padding is None else padding
    layer = nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=padding, bias=False)
    return {f"conv{order}": layer, f"bn{order}": nn.BatchNorm2d(outputs), f"relu{order}": nn.ReLU()}


def hidden(number: int, order: int, inputs: int, outputs: int) -> Layers:
    """The fully connected layer `fc<number>`, the chain's weight layer `order`, its BatchNorm and ReLU."""
    layer = nn.Linear(inputs, outputs, bias=False)
    return {f"fc{number}": layer, f"bn{order}": nn.BatchNorm1d(outputs), f"relu{order}": nn.ReLU()}


def dropped(number: int, rate: float) -> Layers:
    """A dropout in front of `fc<number>`; nothing at rate 0, so that an export meets no idle layer."""
    return {f"dropout{number}": nn.Dropout(rate)} if rate > 0 else {}


def join(layers: Layers) -> nn.Module:
    """The layers in their order as one network, initialised."""
    return initialise_xavier(nn.Sequential(OrderedDict(layers)))
