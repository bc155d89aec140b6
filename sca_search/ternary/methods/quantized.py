"""Methods whose weights are a quantized function of latents, as a parametrization."""

from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor, nn

from sca_search.config.candidate import Candidate, elapsed_fraction
from sca_search.models.scales import ScaledTrits
from sca_search.ternary.methods.base import FinalWeights, Method, MethodTask
from sca_search.ternary.methods.sca import spreads_of
from sca_search.ternary.parametrize import latent_of_dense, put_parametrization, rounding, straight_through


class Quantizer(nn.Module):
    """One layer's function of its latents."""

    has_regularizer: ClassVar[bool] = False
    planned_sparsity = 0.0  # of the layer, for methods that can choose it

    def __init__(self, spread: float | None, channel: int | None) -> None:
        super().__init__()
        self.spread = spread
        self.channel = channel  # the output axis of the weight; None where there is none
        self.rounding = False

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The latents of a dense weight."""
        return latent_of_dense(weight, self.spread)

    def begin(self, latent: Tensor) -> None:
        """Called once with the initial latents."""

    def forward(self, latent: Tensor) -> Tensor:
        if self.rounding:
            return as_weights(self.levels(latent.detach()), self.channel)
        return self.soft(latent)

    def soft(self, latent: Tensor) -> Tensor:
        """The weights during training: by default the current levels, with 1 as the estimate of ∂W/∂θ."""
        return straight_through(as_weights(self.levels(latent.detach()), self.channel), latent)

    def levels(self, latent: Tensor) -> ScaledTrits:
        """The weights if training ended now."""
        raise NotImplementedError

    def update(self, latent: Tensor, elapsed: float) -> None:
        """Before each step, with the fraction of training that has elapsed."""

    def regularizer(self, latent: Tensor) -> Tensor:
        """The layer's term of the loss, for a strength of 1."""
        return latent.new_zeros(())


class Quantized(Method):
    """A quantizer on every layer."""

    quantizer: ClassVar[type[Quantizer]]

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        super().__init__(model, candidate, task)
        self.quantizers: dict[str, Quantizer] = {}
        self._originals: dict[str, list[nn.Parameter]] = {}  # a layer's latents; a quantizer may have several
        for name, spread in spreads_of(model, candidate, task).items():
            layer = model.get_submodule(name)
            # None: the outputs of a grouped transposed convolution have no axis of their own.
            quantizer = self.quantizer(spread, {0: 0, 1: 1}.get(task.transposed.get(name, 0)))
            quantizer.planned_sparsity = candidate.sparsity_of(name)
            with torch.no_grad():
                originals = put_parametrization(layer, quantizer)
                quantizer.begin(originals[0])
            self.quantizers[name], self._originals[name] = quantizer, originals
        if self.quantizer.has_regularizer:
            self.unit = self.strength_unit(self._regularizer)

    def latents(self) -> dict[str, nn.Parameter]:
        return {
            name if number == 0 else f"{name}/{number}": original
            for name, originals in self._originals.items()
            for number, original in enumerate(originals)
        }

    def _regularizer(self) -> Tensor:
        terms = [quantizer.regularizer(*self._originals[name]) for name, quantizer in self.quantizers.items()]
        return torch.stack(terms).sum()

    @torch.no_grad()
    def update(self, epoch: float) -> None:
        if self.quantizer.has_regularizer:
            self.strength = self.unit * self.candidate.strength.at(epoch, self.candidate.epochs)
        elapsed = elapsed_fraction(epoch, self.candidate.epochs)
        for name, quantizer in self.quantizers.items():
            quantizer.update(self._originals[name][0], elapsed)

    def penalty(self) -> Tensor | float:
        return self.strength * self._regularizer() if self.quantizer.has_regularizer and self.strength else 0.0

    def rounded(self) -> AbstractContextManager[None]:
        return rounding(self.quantizers.values())

    @torch.no_grad()
    def final_weights(self) -> FinalWeights:
        levels = {name: quantizer.levels(*self._originals[name]) for name, quantizer in self.quantizers.items()}
        return FinalWeights(levels)


def as_weights(levels: ScaledTrits, channel: int | None = 0) -> Tensor:
    """Trits times their scales."""
    if levels.positive is None:
        return levels.trits
    positive = _along(levels.positive, levels.trits, channel)
    negative = positive if levels.negative is None else _along(levels.negative, levels.trits, channel)
    return torch.where(levels.trits < 0, -negative, positive) * levels.trits.abs()


def _along(scale: Tensor, trits: Tensor, channel: int | None) -> Tensor:
    if scale.ndim == 0 or channel is None:
        return scale
    return scale.view([-1 if axis == channel else 1 for axis in range(trits.ndim)])
