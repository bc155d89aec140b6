"""The one file of the networks that imports torchvision."""

from torch import nn

from sca_search.system.torchvision import patch_torchvision

patch_torchvision()
import torchvision  # noqa: E402  (the wheel must be healed before it is imported)


def torchvision_resnet18(num_classes: int) -> nn.Module:
    """ResNet-18 without pretrained weights; nothing is downloaded."""
    network: nn.Module = torchvision.models.resnet18(weights=None, num_classes=num_classes)
    return network
