"""Residual networks: ResNet-20 for CIFAR, written here, and ResNet-18 for ImageNet, torchvision's.

The paper's recipes train both without dropout, which they do not support.
"""

from collections import OrderedDict

from torch import Tensor, nn

from sca_search.errors import ModelError
from sca_search.models.blocks import Shape, initialise_xavier, require_pixels
from sca_search.system.torchvision import patch_torchvision


class Block(nn.Module):
    """Two 3×3 convolutions and a shortcut, which is a 1×1 projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity() if inputs == outputs else _projection(inputs, outputs, stride)
        self.relu2 = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        branch = self.relu1(self.bn1(self.conv1(images)))
        branch = self.bn2(self.conv2(branch))
        out: Tensor = self.relu2(branch + self.shortcut(images))
        return out


class ResNet20(nn.Module):
    """A 3×3 convolution, three stages of three blocks (16, 32, 64 channels), average pooling, a linear layer."""

    def __init__(self, num_classes: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.relu1 = nn.ReLU()
        self.stage1 = nn.Sequential(Block(16, 16, 1), Block(16, 16, 1), Block(16, 16, 1))
        self.stage2 = nn.Sequential(Block(16, 32, 2), Block(32, 32, 1), Block(32, 32, 1))
        self.stage3 = nn.Sequential(Block(32, 64, 2), Block(64, 64, 1), Block(64, 64, 1))
        self.average = nn.AdaptiveAvgPool2d(1)
        self.flatten = nn.Flatten()
        self.fc = nn.Linear(64, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        features = self.relu1(self.bn1(self.conv1(images)))
        features = self.stage3(self.stage2(self.stage1(features)))
        logits: Tensor = self.fc(self.flatten(self.average(features)))
        return logits


def resnet20(num_classes: int, input_shape: Shape, dropout: float) -> nn.Module:
    """ResNet-20; 269,824 weights between the first and the last layer, 2,560 of them in the projections."""
    _require_no_dropout("resnet20", dropout)
    # two strides of 2 that round up: from 3 pixels on, each has more than one pixel to reduce
    require_pixels("resnet20", input_shape, 3)
    return initialise_xavier(ResNet20(num_classes, input_shape[0]))


def resnet18(num_classes: int, input_shape: Shape, dropout: float) -> nn.Module:
    """torchvision's ResNet-18 with its own initialisation; 11,157,504 weights between first and last layer."""
    _require_no_dropout("resnet18", dropout)
    if input_shape[0] != 3:
        raise ModelError(f"model resnet18: the input must have 3 channels, got {input_shape[0]}")
    # five strides of 2 that round up, as above
    require_pixels("resnet18", input_shape, 17)
    patch_torchvision()
    from torchvision import models  # noqa: PLC0415 - it takes seconds to import, and no other network needs it

    network: nn.Module = models.resnet18(weights=None, num_classes=num_classes)
    return network


def _projection(inputs: int, outputs: int, stride: int) -> nn.Module:
    layer = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return nn.Sequential(OrderedDict(conv=layer, bn=nn.BatchNorm2d(outputs)))


def _require_no_dropout(model: str, dropout: float) -> None:
    if dropout > 0:
        raise ModelError(f"model {model}: dropout must be 0, the network has none, got {dropout}")
