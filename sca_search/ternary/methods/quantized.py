"""Methods whose layers compute with a few-valued function of latent weights, put on as a parametrization."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sca_search.config.candidate import Candidate
from sca_search.models.scales import ScaledTrits, absorb_scale, put_trits
from sca_search.ternary.methods.base import Ending, Method, MethodTask, gradient_ratio, hard_loss
from sca_search.ternary.methods.sca import spreads_of
from sca_search.ternary.parametrize import latent_of_dense, lost_scale


class Quantizer(nn.Module):
    """One layer's function of its latent weights."""

    def __init__(self, spread: float | None, channel: int | None) -> None:
        super().__init__()
        self.spread = spread
        self.channel = channel  # which axis of the weight counts its outputs; None where none does
        self.rounding = False

    def right_inverse(self, weight: Tensor) -> Tensor:
        """The latent weights that a dense weight becomes."""
        return latent_of_dense(weight, self.spread)

    def begin(self, latent: Tensor) -> None:
        """Told once of the latent weights at the start."""

    def forward(self, latent: Tensor) -> Tensor:
        if self.rounding:
            return as_weights(self.levels(latent.detach()), self.channel)
        return self.soft(latent)

    def soft(self, latent: Tensor) -> Tensor:
        """The weights that the layer trains with."""
        raise NotImplementedError

    def levels(self, latent: Tensor) -> ScaledTrits:
        """The weights if training ended now."""
        raise NotImplementedError

    def pull(self, latent: Tensor) -> Tensor:
        """The layer's term of the loss, of strength 1."""
        return latent.new_zeros(())


class Quantized(Method):
    """A quantizer on every layer."""

    quantizer: ClassVar[type[Quantizer]]
    has_pull: ClassVar[bool] = False

    def __init__(self, model: nn.Module, candidate: Candidate, task: MethodTask) -> None:
        super().__init__(model, candidate, task)
        for name, spread in spreads_of(model, candidate, task).items():
            layer = model.get_submodule(name)
            quantizer = self.quantizer(spread, self._channel(name))
            with torch.no_grad():
                absorb_scale(layer, lost_scale(cast(Tensor, layer.weight), spread))
                parametrize.register_parametrization(layer, "weight", quantizer)
                quantizer.begin(self._originals(name)[0])
        if self.has_pull:
            self.unit = self._strength_unit()

    def _channel(self, name: str) -> int | None:
        groups = self.task.transposed.get(name, 0)
        return {0: 0, 1: 1}.get(groups)

    def quantizers(self) -> dict[str, Quantizer]:
        modules = {name: self.model.get_submodule(name) for name in self.task.ternary_layers}
        return {name: module.parametrizations.weight[0] for name, module in modules.items()}  # type: ignore[union-attr,index,misc]

    def _originals(self, name: str) -> list[nn.Parameter]:
        """A layer's latent weights; a quantizer may have several of them."""
        held = self.model.get_submodule(name).parametrizations.weight  # type: ignore[union-attr]
        return [parameter for own, parameter in held.named_parameters(recurse=False) if own.startswith("original")]  # type: ignore[union-attr]

    def latents(self) -> dict[str, nn.Parameter]:
        return {
            name if number == 0 else f"{name}/{number}": original
            for name in self.task.ternary_layers
            for number, original in enumerate(self._originals(name))
        }

    def _strength_unit(self) -> float:
        loss = hard_loss(self.model.train(), *self.first_batch(), self.task.loss)
        return gradient_ratio(loss, self._pull(), list(self.latents().values()))

    def _pull(self) -> Tensor:
        pulls = [quantizer.pull(*self._originals(name)) for name, quantizer in self.quantizers().items()]
        return torch.stack(pulls).sum()

    def update(self, epoch: float) -> None:
        if self.has_pull:
            self.strength = self.unit * self.candidate.strength.at(epoch, self.candidate.epochs)

    def penalty(self) -> Tensor | float:
        return self.strength * self._pull() if self.has_pull and self.strength else 0.0

    @contextmanager
    def rounded(self) -> Iterator[None]:
        quantizers = list(self.quantizers().values())
        for quantizer in quantizers:
            quantizer.rounding = True
        try:
            yield
        finally:
            for quantizer in quantizers:
                quantizer.rounding = False

    @torch.no_grad()
    def ending(self) -> Ending:
        return Ending({name: quantizer.levels(*self._originals(name)) for name, quantizer in self.quantizers().items()})

    def detach(self, ending: Ending) -> None:
        for name in ending.levels:
            # With gradients on, else torch leaves a plain tensor where a parameter was.
            parametrize.remove_parametrizations(self.model.get_submodule(name), "weight", leave_parametrized=True)
        put_trits(self.model, ending.levels)


def straight_through(value: Tensor, surrogate: Tensor) -> Tensor:
    """`value` in the forward pass, the surrogate's gradient in the backward pass."""
    return surrogate + (value - surrogate).detach()


def signs(latent: Tensor) -> Tensor:
    """-1 or +1, never 0."""
    return torch.where(latent < 0, -1.0, 1.0)


def beyond(latent: Tensor, threshold: Tensor | float) -> Tensor:
    """The sign where a weight lies beyond the threshold, else 0."""
    return torch.where(latent.abs() > threshold, signs(latent), 0.0)


def as_weights(levels: ScaledTrits, channel: int | None = 0) -> Tensor:
    """The numbers that a layer's trits stand for."""
    if levels.positive is None:
        return levels.trits
    positive = _along(levels.positive, levels.trits, channel)
    negative = positive if levels.negative is None else _along(levels.negative, levels.trits, channel)
    return torch.where(levels.trits < 0, -negative, positive) * levels.trits.abs()


def _along(scale: Tensor, trits: Tensor, channel: int | None) -> Tensor:
    if scale.ndim == 0 or channel is None:
        return scale
    shape = [1] * trits.ndim
    shape[channel] = -1
    return scale.view(shape)
