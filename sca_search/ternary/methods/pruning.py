"""Magnitude pruning at the planned sparsity: what zeros alone cost, without ternary values.

    W = θ where |θ| > t, else 0,  t the quantile of |θ| for the current sparsity;  ∂W/∂θ = 1 where |θ| > t, else 0
    the sparsity rises from 0 to the planned one: s(f) = s (1 - (1 - (f - start) / rise)³)

Layers have the same planned sparsities, reallocation and exact number of zeros as SCA, and start and rise of the
schedule are searched as for SCA. Other weights stay float, and are trained in the frozen phase as well.
Zhu & Gupta, To Prune, or Not to Prune: Exploring the Efficacy of Pruning for Model Compression, 2017.
"""

from dataclasses import replace
from functools import partial

from torch import Tensor
from torch.nn import functional as F

from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.base import FinalWeights
from sca_search.ternary.methods.sca import Sca
from sca_search.ternary.parametrize import TernaryWeight, soft_weights


class MaskedWeight(TernaryWeight):
    def soft(self, latent: Tensor) -> Tensor:
        return F.hardshrink(latent, self.threshold / self.gain)

    def forward(self, latent: Tensor) -> Tensor:
        return self.soft(latent)  # there is nothing to round


class Pruning(Sca):
    weight_class = MaskedWeight

    def before_rounding(self) -> dict[str, Tensor]:
        return {name: weight.sign() for name, weight in soft_weights(self.model).items()}

    def final_weights(self) -> FinalWeights:
        final, latents = super().final_weights(), self.latents()
        kept = {name: ScaledTrits(own.trits.abs() * latents[name].detach()) for name, own in final.levels.items()}
        return replace(final, levels=kept)

    def detach(self, final: FinalWeights) -> None:
        """Leave weights that are trained further, except for the zeros."""
        super().detach(final)
        for name in final.levels:
            weight = self.model.get_parameter(f"{name}.weight").requires_grad_()
            weight.register_hook(partial(_where_nonzero, weight))  # type: ignore[no-untyped-call]

    def weights(self) -> tuple[list[Tensor], list[Tensor]]:
        return [latent.detach() for latent in self.latents().values()], list(soft_weights(self.model).values())

    def alphas(self) -> dict[str, float]:
        return {}


def _where_nonzero(weight: Tensor, gradient: Tensor) -> Tensor:
    return gradient * (weight.detach() != 0)
