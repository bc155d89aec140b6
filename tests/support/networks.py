"""Networks of torchvision with random trits, for the tests of the formats."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sca_search.export.graph.records import Floats, Graph
from sca_search.export.graph.trace import trace
from sca_search.system.torchvision import patch_torchvision

MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]

# The one with the most kinds of operations runs on every push, the others once per night.
_ON_PUSH = "mobilenet_v3_small"


def torchvision_cases(*names: str) -> list[Any]:
    """These networks as parameters of a test, each in its tier."""
    return [pytest.param(name, marks=pytest.mark.e2e if name == _ON_PUSH else pytest.mark.nightly) for name in names]


def ternary_torchvision(name: str, size: int = 224, sparsity: float = 0.5) -> tuple[Graph, Floats, Floats]:
    """Records of the network with all but its first and last layer ternary; images, and torch's logits for them."""
    patch_torchvision()
    from torchvision import models  # noqa: PLC0415 - only once it is healed

    torch.manual_seed(0)
    model = models.get_model(name, weights=None)
    layers = [layer for layer, module in model.named_modules() if isinstance(module, nn.Conv2d | nn.Linear)][1:-1]
    images = torch.rand(8, 3, size, size)
    with torch.no_grad():
        for layer in layers:
            weight = model.get_submodule(layer).weight
            weight.copy_(torch.randn_like(weight).sign() * (torch.rand_like(weight) >= sparsity))
        _calibrate(model, _normalized(images))
        graph = trace(model.eval(), (3, size, size), ternary_layers=layers, mean=MEAN, std=STD)
        # In double precision: with float32, torch's own rounding would be part of the difference.
        logits = model.double()(_normalized(images[:2]).double()).float().numpy()
    return graph, images[:2].numpy(), np.ascontiguousarray(logits)


def _normalized(images: torch.Tensor) -> torch.Tensor:
    return (images - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def _calibrate(model: nn.Module, images: torch.Tensor) -> None:
    """BatchNorm statistics of such images: with foreign ones a deep network amplifies rounding beyond measure."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None
    model.train()
    model(images)
