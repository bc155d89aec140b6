"""AlexNet for ImageNet: torchvision's layout, with normalisation.

The original has none, and ternary weights have no scale: so a BatchNorm follows each of the five convolutions
and the two hidden linear layers, which then need no bias.
"""

from torch import nn

from sca_search.models.blocks import Shape, conv, dropped, hidden, join, require_pixels


def alexnet(num_classes: int, input_shape: Shape, dropout: float) -> nn.Module:
    """Five convolutions, average pooling to 6×6, three linear layers; dropout before the two hidden ones.

    56,971,264 weights between the first and the last layer, for any image size.
    """
    # 63 pixels become 15, 7, 3 and 1 through the strided convolution and three poolings of 3 at stride 2
    require_pixels("alexnet", input_shape, 63)
    return join(
        conv(1, input_shape[0], 64, 11, stride=4, padding=2)
        | {"pool1": nn.MaxPool2d(3, stride=2)}
        | conv(2, 64, 192, 5)
        | {"pool2": nn.MaxPool2d(3, stride=2)}
        | conv(3, 192, 384, 3)
        | conv(4, 384, 256, 3)
        | conv(5, 256, 256, 3)
        | {"pool3": nn.MaxPool2d(3, stride=2), "average": nn.AdaptiveAvgPool2d(6), "flatten": nn.Flatten()}
        | dropped(1, dropout)
        | hidden(1, 6, 256 * 6 * 6, 4096)
        | dropped(2, dropout)
        | hidden(2, 7, 4096, 4096)
        | {"fc3": nn.Linear(4096, num_classes)}
    )
