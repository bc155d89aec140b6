"""Steers a ternarized network through somebody else's training: the schedules that a study tries first, by steps."""

import torch
from torch import nn

from sca_search.api.loop import SPREAD, fix, mark_fixed
from sca_search.config.candidate import Candidate
from sca_search.config.load import resolve
from sca_search.config.schedule import Constant, Ramp
from sca_search.errors import ModelError
from sca_search.study.space import Space
from sca_search.ternary.control import SparsityControl
from sca_search.ternary.parametrize import Form, latents, ternary_weights

# Adam moves a parameter by about its learning rate a step: Θ's, as a share of its size, in the schedules tried first.
_RELATIVE_STEP = 0.02 / SPREAD


class Control:
    """Moves α, λ and sharpness along a training of `steps` steps, whose last part trains with the trits frozen.

    With the optimizer given, Θ is made smaller and sharpness larger by the same factor, so that Adam's steps move Θ by
    the share of its size that did well in studies, whatever the learning rate; the forward pass stays the same. The
    paper's form has no sharpness and needs a `strength`, its λ at the end.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        strength: float | None = None,
        frozen_share: float = 0.2,
    ) -> None:
        weights = ternary_weights(model)
        if not weights:
            raise ModelError("Control: the network has no ternary layer; call ternarize first")
        if steps < 1:
            raise ModelError(f"Control: steps must be at least 1, got {steps}")
        if not 0.0 <= frozen_share < 1.0:
            raise ModelError(f"Control: frozen_share must be at least 0 and below 1, got {frozen_share}")
        first = next(iter(weights.values()))
        if (first.form == "paper") != (strength is not None):
            raise ModelError(
                f"Control: strength (λ) belongs to the paper's form, and must be given there; got {strength}"
            )
        self.model = model
        self.steps = steps
        self.done = 0
        self.ternary_share = 1.0 - frozen_share
        self.scale = 1.0
        self._candidate = first_guess(first.form, first.planned or 0.0, strength)
        self._steering = SparsityControl(model, self._candidate)
        if optimizer is not None and first.form == "sharpened":
            self.rescale(relative_scale(optimizer))

    def step(self) -> None:
        """Before each step of the training."""
        self.move_to(self.done / self.steps)
        self.done += 1

    def move_to(self, share: float) -> None:
        """To where the schedules are after a share of the training."""
        if self.is_fixed:
            return
        if share >= self.ternary_share:
            self._steering.finish()
            fix(self.model)
        else:
            self._steering.update(share / self.ternary_share)

    @property
    def is_fixed(self) -> bool:
        """Whether the trits are final."""
        return all(weight.fixed for weight in ternary_weights(self.model).values())

    @torch.no_grad()
    def rescale(self, scale: float) -> None:
        """Θ times a factor, sharpness divided by it."""
        for latent in latents(self.model).values():
            latent.mul_(scale)
        self._steer_at(scale)

    def _steer_at(self, scale: float) -> None:
        self.scale = scale
        self._steering = SparsityControl(self.model, _sharper(self._candidate, 1.0 / scale))

    def go_on(self, done: int, scale: float, is_fixed: bool) -> None:
        """As another control left a network that has been loaded again."""
        self.done = done
        self._steer_at(scale)
        if is_fixed:
            mark_fixed(self.model)


def first_guess(form: Form, target_sparsity: float, strength: float | None) -> Candidate:
    """The schedules that a study tries first, along a training whose length is 1."""
    space = Space(resolve(None, {"form": form, "target_sparsity": target_sparsity, "epochs": 1}))
    candidate = space.candidate(space.first_guess(), target_sparsity, seed=0)
    pull = Constant(value=0.0) if strength is None else Ramp(first=0.0, last=strength)
    return candidate.model_copy(update={"strength": pull})


def _sharper(candidate: Candidate, factor: float) -> Candidate:
    ramp, widest = candidate.sharpness, candidate.gradient_sharpness
    if not isinstance(ramp, Ramp):
        return candidate
    sharpness = ramp.model_copy(update={"first": ramp.first * factor, "last": ramp.last * factor})
    return candidate.model_copy(update={"sharpness": sharpness, "gradient_sharpness": widest and widest * factor})


def relative_scale(optimizer: torch.optim.Optimizer) -> float:
    """By how much Θ is made smaller so that a small learning rate moves it as far as it should.

    Only Adam and its kin move parameters by about their learning rate; for others Θ stays as it is.
    """
    groups = optimizer.param_groups
    if not all("betas" in group for group in groups):
        return 1.0
    rate = max(max(group["lr"], group.get("max_lr", 0.0)) for group in groups)
    return min(1.0, float(rate) / (_RELATIVE_STEP * SPREAD))
