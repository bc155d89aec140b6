"""LeNet for MNIST as in the paper, 32C5-MP2-64C5-MP2-512FC, and two smaller ones.

The paper lists no normalisation; here a BatchNorm follows each hidden layer, as in TWN. The padding
preserves the image's size, so only the two poolings reduce it.
"""

from torch import nn

from sca_search.models.blocks import Shape, conv, dropped, hidden, join, require_pixels


def lenet(num_classes: int, input_shape: Shape, dropout: float) -> nn.Module:
    """The paper's network; 1,656,832 weights between the first and the last layer on 1×28×28."""
    require_pixels("lenet", input_shape, 4)
    return _lenet((32, 64, 512), num_classes, input_shape, dropout)


def lenet_medium(num_classes: int, input_shape: Shape, dropout: float) -> nn.Module:
    """16C5-MP2-32C5-MP2-128FC: an eighth of the paper's weights, for studies on a subset of MNIST."""
    require_pixels("lenet-medium", input_shape, 4)
    return _lenet((16, 32, 128), num_classes, input_shape, dropout)


def lenet_small(num_classes: int, input_shape: Shape, dropout: float) -> nn.Module:
    """16C5-MP2-32C5-MP2-64FC: trains in seconds on a CPU; 20,992 weights between first and last on 1×8×8."""
    require_pixels("lenet-small", input_shape, 4)
    return _lenet((16, 32, 64), num_classes, input_shape, dropout)


def _lenet(widths: tuple[int, int, int], num_classes: int, shape: Shape, dropout: float) -> nn.Module:
    channels, height, width = shape
    first, second, wide = widths
    return join(
        conv(1, channels, first, 5)
        | {"pool1": nn.MaxPool2d(2)}
        | conv(2, first, second, 5)
        | {"pool2": nn.MaxPool2d(2), "flatten": nn.Flatten()}
        | hidden(1, 3, second * (height // 4) * (width // 4), wide)
        | dropped(2, dropout)
        | {"fc2": nn.Linear(wide, num_classes)}
    )
