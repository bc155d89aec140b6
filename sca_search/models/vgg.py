"""The paper's two VGG networks: three stages of two 3×3 convolutions and a pooling, then two linear layers."""

from torch import nn

from sca_search.models.blocks import Layers, Shape, conv, dropped, hidden, join, require_pixels


def vgg_s(num_classes: int, input_shape: Shape, dropout: float) -> nn.Module:
    """2×128C3-MP2-2×256C3-MP2-2×512C3-MP2-1024FC, dropout before both linear layers.

    12,959,744 weights between the first and the last layer on 3×32×32.
    """
    require_pixels("vgg-s", input_shape, 8)
    layers = _stages(input_shape[0], (128, 256, 512)) | dropped(1, dropout)
    return _classified(layers, _pooled_size(512, input_shape), 1024, num_classes, dropout)


def vgg_variate(num_classes: int, input_shape: Shape, dropout: float) -> nn.Module:
    """2×48C3-MP2-2×96C3-MP2-2×160C3-MP2-128FC, dropout before the last layer only.

    The paper only says that this network has at least 0.84 M parameters, so the widths are our choice:
    a narrower VGG-S with 841,472 weights between the first and the last layer on 3×32×32.
    Larger images make its first linear layer larger.
    """
    require_pixels("vgg-variate", input_shape, 8)
    layers = _stages(input_shape[0], (48, 96, 160))
    return _classified(layers, _pooled_size(160, input_shape), 128, num_classes, dropout)


def _stages(channels: int, widths: tuple[int, int, int]) -> Layers:
    layers: Layers = {}
    for stage, width in enumerate(widths, start=1):
        layers |= conv(2 * stage - 1, channels, width, 3)
        layers |= conv(2 * stage, width, width, 3)
        layers[f"pool{stage}"] = nn.MaxPool2d(2)
        channels = width
    return layers | {"flatten": nn.Flatten()}


def _classified(layers: Layers, features: int, wide: int, num_classes: int, dropout: float) -> nn.Module:
    head = hidden(1, 7, features, wide) | dropped(2, dropout) | {"fc2": nn.Linear(wide, num_classes)}
    return join(layers | head)


def _pooled_size(channels: int, shape: Shape) -> int:
    """Inputs of the first linear layer after three poolings, each of which drops an odd row or column."""
    return channels * (shape[1] // 8) * (shape[2] // 8)
