"""The start of the weights that the paper's recipes name: Xavier (Glorot), uniform."""

from torch import nn


def initialise_xavier(network: nn.Module) -> nn.Module:
    """Draw every convolution and linear layer anew: U(-b, b), b = √(6 / (fan in + fan out)); biases are 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return network
