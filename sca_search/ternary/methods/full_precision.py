"""No quantization: the dense network is trained for as many epochs as the others."""

from torch import nn

from sca_search.ternary.methods.base import FinalWeights, Method


class FullPrecision(Method):
    def latents(self) -> dict[str, nn.Parameter]:
        return {}

    def final_weights(self) -> FinalWeights:
        return FinalWeights({})

    def detach(self, final: FinalWeights) -> None:
        pass
