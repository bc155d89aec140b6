"""The method for the user's own training loop, and the export of its result.

    sca.ternarize(model, target_sparsity=0.5)       # then create the optimizer: layers have new parameters
    control = sca.Control(model, steps=epochs * len(loader), optimizer=optimizer)
    for images, labels in loader:                   # the usual loop, with one more line and one more term
        control.step()
        loss = criterion(model(images), labels) + sca.regularizer(model)
    sca.bake(model)                                 # plain weights in {-1, 0, +1} with exactly the target sparsity

In the paper's form α is constant and λ may be constant: without a control, the method is the loss term λ ·
`regularizer`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sca_search.config.candidate import START_SPREAD, Candidate, Form, Ramp
from sca_search.config.load import resolve
from sca_search.data.input_spec import InputSpec
from sca_search.errors import ExportError, ModelError
from sca_search.export.folder import FORMATS, Exported, ExportOptions, export_network, parse_formats
from sca_search.export.graph.network import Images, Network
from sca_search.models.layers import WEIGHT_LAYERS, choose_layers, defined_layers, weight_layers
from sca_search.models.prepare import open_attention
from sca_search.models.scales import put_output_scales
from sca_search.study.space import Space
from sca_search.ternary import parametrize
from sca_search.ternary.exact import Floor, exact_trits
from sca_search.ternary.methods.sca import LayerSchedules
from sca_search.ternary.prior import border, zeros_for_sparsity

# Learning rate of Θ relative to its size in a study's first trial; Adam moves a parameter by about this much per step.
_RELATIVE_STEP = 0.02 / START_SPREAD


def ternarize(
    model: nn.Module,
    target_sparsity: float = 0.5,
    *,
    form: Form = "decoupled",
    skip: Sequence[str] = (),
    only: Sequence[str] = (),
    keep_first: bool = True,
    keep_last: bool = True,
    example: Tensor | None = None,
) -> nn.Module:
    """Replace weights by latents Θ, in place; after training, `bake` leaves exactly `target_sparsity` of them at zero.

    The first and the last layer stay dense by default: by order of execution on `example`, a batch of inputs, or else
    by the order in which the modules are defined. `skip` and `only` are patterns of layer names. Layers without a known
    following normalization get a learned output scale; nn.MultiheadAttention is replaced by an equivalent module of
    linear layers.
    """
    if not 0.0 <= target_sparsity < 1.0:
        raise ModelError(f"ternarize: target_sparsity must be at least 0 and below 1, got {target_sparsity}")
    if parametrize.ternary_weights(model):
        raise ModelError("ternarize: the network is ternarized already")
    model = open_attention(model)
    layers = defined_layers(model) if example is None else weight_layers(model, tuple(example.shape[1:]))
    choices = choose_layers(layers, keep_first=keep_first, keep_last=keep_last, skip=skip, only=only)
    chosen = [choice.layer for choice in choices if choice.ternary]
    put_output_scales(model, [layer.name for layer in chosen if not layer.scale_is_free])
    parametrize.parametrize_layers(model, dict.fromkeys((layer.name for layer in chosen), START_SPREAD), form)
    thetas = parametrize.latents(model)
    for name, weight in parametrize.ternary_weights(model).items():
        weight.planned_sparsity = target_sparsity
        weight.set_threshold(border(thetas[name], target_sparsity))
        weight.wdr_strength = 1.0  # until a control changes it, the regularizer is R itself
    return model


def regularizer(model: nn.Module) -> Tensor:
    """Σ λ R over the ternary layers, R = Σ (α − W²) W², in the paper's form; λ is 1 without a control.

    0 in other forms: the decoupled form applies R in the forward pass.
    """
    weights, thetas = parametrize.ternary_weights(model), parametrize.latents(model)
    if not weights:
        raise ModelError("regularizer: the network has no ternary layer; call ternarize first")
    terms = [
        weight.wdr_strength * parametrize.wdr(weight.soft(thetas[name]), weight.alpha)
        for name, weight in weights.items()
        if weight.wdr_strength and not weight.fixed and weight.form in parametrize.LOSS_TERM_FORMS
    ]
    return torch.stack(terms).sum() if terms else next(iter(thetas.values())).new_zeros(())


def ternary_layers(model: nn.Module) -> tuple[str, ...]:
    """The names of the ternary layers, of a ternarized or baked network."""
    return tuple(parametrize.ternary_weights(model) or _baked(model))


def sparsity(model: nn.Module) -> float:
    """The fraction of zeros: of a ternarized network if it were rounded now, or of a baked one."""
    trits = parametrize.nearest_trits_of(model) if parametrize.ternary_weights(model) else _baked(model)
    count = parametrize.total(parametrize.zero_counts(trits))
    if not count.weights:
        raise ModelError("sparsity: the network has no ternary layer")
    return count.sparsity


def _baked(model: nn.Module) -> dict[str, Tensor]:
    """The weights that are all in {-1, 0, +1}."""
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, WEIGHT_LAYERS)]
    plain = {name: layer.weight.detach() for name, layer in layers}
    return {name: weight for name, weight in plain.items() if ((weight == 0) | (weight.abs() == 1)).all()}


def bake(model: nn.Module) -> nn.Module:
    """Replace the latents by plain, frozen weights in {-1, 0, +1}, in place, with exactly the requested sparsity."""
    if not parametrize.ternary_weights(model):
        raise ModelError("bake: the network has no ternary layer; call ternarize first")
    return parametrize.bake_trits(model, _final_trits(model))


def _mark_fixed(model: nn.Module) -> None:
    for latent in parametrize.latents(model).values():
        latent.requires_grad_(False)
        latent.grad = None  # else an optimizer would move it once more
    for weight in parametrize.ternary_weights(model).values():
        weight.fixed = True


def _final_trits(model: nn.Module) -> dict[str, Tensor]:
    weights = parametrize.ternary_weights(model)
    thetas = {name: latent.detach() for name, latent in parametrize.latents(model).items()}
    if all(weight.fixed for weight in weights.values()):
        return thetas
    count = sum(theta.numel() for theta in thetas.values())
    zeros = math.fsum(thetas[name].numel() * (weight.planned_sparsity or 0.0) for name, weight in weights.items())
    thresholds = {name: weight.forward_threshold / weight.gain for name, weight in weights.items()}
    wanted = zeros_for_sparsity(zeros / count, count)
    return exact_trits(thetas, parametrize.soft_weights(model), thresholds, wanted, Floor()).trits


class Control:
    """Updates α and λ during a training of `steps` steps; the last part trains with frozen trits.

    With `optimizer`, Θ is divided by a factor that the forward pass multiplies it with, so that Adam's steps move Θ by
    the fraction of its size that worked best in studies, for any learning rate. In the paper's form, λ is a factor of
    the loss term and must be given: `wdr_strength`, its value at the end.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: int,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        wdr_strength: float | None = None,
        frozen_fraction: float = 0.2,
    ) -> None:
        weights = parametrize.ternary_weights(model)
        if not weights:
            raise ModelError("Control: the network has no ternary layer; call ternarize first")
        if steps < 1:
            raise ModelError(f"Control: steps must be at least 1, got {steps}")
        if not 0.0 <= frozen_fraction < 1.0:
            raise ModelError(f"Control: frozen_fraction must be at least 0 and below 1, got {frozen_fraction}")
        first = next(iter(weights.values()))
        if (first.form == "paper") != (wdr_strength is not None):
            raise ModelError(f"Control: wdr_strength (λ) must be given for the paper's form only, got {wdr_strength}")
        self.model = model
        self.steps = steps
        self.done = 0
        self.ternary_fraction = 1.0 - frozen_fraction
        candidate = _first_candidate(first.form, first.planned_sparsity or 0.0, wdr_strength)
        if optimizer is not None and first.form == "decoupled":
            scale = relative_scale(optimizer)
            with torch.no_grad():
                for latent in parametrize.latents(model).values():
                    latent.mul_(scale)
            for weight in weights.values():
                weight.gain = 1.0 / scale
        self._schedules = LayerSchedules(model, candidate)

    def step(self) -> None:
        """Call before each training step."""
        self.move_to(self.done / self.steps)
        self.done += 1

    def move_to(self, fraction: float) -> None:
        """Set the schedules to their values after a fraction of the training."""
        if self.is_fixed:
            return
        if fraction >= self.ternary_fraction:
            self._schedules.finish()
            thetas = parametrize.latents(self.model)
            with torch.no_grad():
                for name, trits in _final_trits(self.model).items():  # those that `bake` would give
                    thetas[name].copy_(trits)
            _mark_fixed(self.model)
        else:
            self._schedules.update(fraction / self.ternary_fraction)

    @property
    def is_fixed(self) -> bool:
        """Whether the trits are final."""
        return all(weight.fixed for weight in parametrize.ternary_weights(self.model).values())

    def state(self) -> dict[str, float]:
        """What a checkpoint has to hold besides the network."""
        gain = next(iter(parametrize.ternary_weights(self.model).values())).gain
        return {"gain": gain, "is_fixed": float(self.is_fixed)} | self._schedules.state()

    def resume(self, done: int, state: Mapping[str, float]) -> None:
        """Continue with a network that was loaded from a checkpoint."""
        self.done = done
        for weight in parametrize.ternary_weights(self.model).values():
            weight.gain = state["gain"]
        self._schedules.resume(state, done)
        if state["is_fixed"]:
            _mark_fixed(self.model)


def _first_candidate(form: Form, target_sparsity: float, wdr_strength: float | None) -> Candidate:
    """The schedules of a study's first trial, for a training of length 1."""
    kind = {"method": "straight-through"} if form == "straight-through" else {"form": form}
    space = Space(resolve(None, kind | {"target_sparsity": target_sparsity, "epochs": 1}))
    candidate = space.candidate(space.first_guess(), target_sparsity, seed=0)
    given = {} if wdr_strength is None else {"strength": Ramp(first=0.0, last=wdr_strength)}
    return candidate.model_copy(update=given)


def relative_scale(optimizer: torch.optim.Optimizer) -> float:
    """The factor for Θ with which a small learning rate moves it far enough.

    Only Adam and similar optimizers move parameters by about their learning rate; for others Θ is unchanged.
    """
    groups = optimizer.param_groups
    if not all("betas" in group for group in groups):
        return 1.0
    rate = max(max(group["lr"], group.get("max_lr", 0.0)) for group in groups)
    return min(1.0, float(rate) / (_RELATIVE_STEP * START_SPREAD))


def export_baked(
    model: nn.Module,
    out: str | Path,
    inputs: Tensor,
    formats: Sequence[str] = FORMATS,
    *,
    names: Iterable[str] | None = None,
    replace: bool = False,
    **options: Any,
) -> Exported:
    """Export a network after `bake`, or after a training with the callback, and verify the files.

    `inputs`, a batch for the network, defines the input shape; the files' outputs are compared on it, and the scales of
    integer activations are computed from it. `names` are those of the outputs; `options` are those of the command:
    half, int2, tune, stored, activations, seconds.
    """
    if parametrize.ternary_weights(model):
        raise ExportError("export_baked: the network still has latents; call bake first")
    layers = ternary_layers(model)
    if not layers:
        raise ExportError("export_baked: the network has no ternary layer")
    chosen = ExportOptions(parse_formats(",".join(formats)), replace=replace, **options)
    numbers = inputs.detach().cpu().numpy().astype(np.float32)
    batch = Images(len(numbers), lambda: iter([numbers]))
    was_training = model.training
    try:
        model.cpu().eval()
        classes = tuple(names) if names is not None else tuple(map(str, range(_outputs(model, inputs))))
        network = Network(model, InputSpec(tuple(inputs.shape[1:]), classes), layers, images=batch, training=batch)
        return export_network(Path(out), network, chosen)
    finally:
        model.train(was_training)


def _outputs(model: nn.Module, inputs: Tensor) -> int:
    output = model(inputs[:1].cpu())
    if not isinstance(output, Tensor) or output.ndim != 2:
        got = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise ExportError(f"export_baked: the network must return a row of numbers per input, got {got}")
    return int(output.shape[1])
