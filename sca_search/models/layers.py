"""Which layers become ternary: weight layers in order of execution, each with the reason for the choice."""

import copy
import fnmatch
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sca_search.config.references import USER_ERRORS, describe_error
from sca_search.errors import ModelError

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHT_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED, nn.Linear)
NORMALIZATIONS = (
    nn.modules.batchnorm._BatchNorm,
    nn.modules.instancenorm._InstanceNorm,
    nn.GroupNorm,
    nn.LayerNorm,
    nn.RMSNorm,
)


@dataclass(frozen=True)
class WeightLayer:
    """A convolution or fully connected layer of a network."""

    name: str
    shape: tuple[int, ...]  # of its weight: output channels, input channels, kernel
    scale_is_free: bool  # a normalization follows, so the weights may be rescaled
    executed: bool = True
    transposed_groups: int = 0  # of a transposed convolution, whose weight has its input channels first
    bound: str = ""  # why the layer must stay dense, if it must

    @property
    def weights(self) -> int:
        return math.prod(self.shape)

    @property
    def outputs(self) -> int:
        """Output channels."""
        return self.shape[1] * self.transposed_groups if self.transposed_groups else self.shape[0]

    @property
    def obstacle(self) -> str:
        """Why the layer can never become ternary; empty if it can."""
        return self.bound if self.executed else "is never called as a module"


@dataclass(frozen=True)
class LayerChoice:
    """A weight layer, whether it becomes ternary, and why."""

    layer: WeightLayer
    ternary: bool
    why: str


def weight_layers(model: nn.Module, input_shape: Sequence[int], outputs: int | None = None) -> list[WeightLayer]:
    """The weight layers in order of execution, those that never run last.

    One forward pass with hooks: a normalization whose input is the very tensor that a layer returned follows that
    layer. ModelError if the network cannot process such an input, or does not return one row of `outputs` numbers.
    """
    names = {module: name for name, module in model.named_modules()}
    runs: Counter[nn.Module] = Counter()  # in the order of first execution
    producer: dict[tuple[int, int], nn.Module] = {}  # by identity and version: an in-place ReLU counts as a new tensor
    alive: list[Tensor] = []  # references to outputs, else a new tensor could get the id of a deleted one
    normalized: set[nn.Module] = set()
    active: list[tuple[nn.Module, Any]] = []  # modules that are running, with their inputs

    def begin(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        active.append((module, inputs))

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        active.pop()
        if isinstance(module, NORMALIZATIONS) and inputs:
            source = producer.get((id(inputs[0]), inputs[0]._version))
            if source is not None:
                normalized.add(source)
        if isinstance(module, WEIGHT_LAYERS):
            alive.append(output)
            producer[id(output), output._version] = module
            runs[module] += 1

    with torch.no_grad(), ExitStack() as restored:
        for module in names:
            restored.callback(setattr, module, "training", module.training)
            # Before all other hooks: an error in one of the network's hooks belongs to its module.
            restored.enter_context(module.register_forward_pre_hook(begin, prepend=True))
            restored.enter_context(module.register_forward_hook(note))
        try:
            output = model.eval()(torch.zeros(2, *input_shape))
        except USER_ERRORS as error:
            sentence = f"the network cannot process an input of shape {tuple(input_shape)}{_place(active, names)}"
            raise ModelError(f"{sentence}: {describe_error(error)}") from error
    if outputs is not None:
        require_rows(output, outputs)
    idle = [module for module in names if isinstance(module, WEIGHT_LAYERS) and module not in runs]
    return _described(model, [*runs, *idle], runs, normalized)


def defined_layers(model: nn.Module) -> list[WeightLayer]:
    """The weight layers in the order of their definition, for a network without an example input: whether a
    normalization follows a layer is unknown then."""
    layers = [module for module in model.modules() if isinstance(module, WEIGHT_LAYERS)]
    return _described(model, layers, Counter(layers), set())


def _place(active: list[tuple[nn.Module, Any]], names: dict[nn.Module, str]) -> str:
    """Where a pass failed: the innermost running module, its input and weight."""
    if not active or not names[active[-1][0]]:
        return ""
    module, inputs = active[-1]
    shapes = [tuple(each.shape[1:]) for each in inputs if isinstance(each, Tensor)]
    weight = getattr(module, "weight", None)
    got = f" got an input of shape {shapes[0]}" if shapes else ""
    has = f"{' and' if got else ''} has a weight of shape {tuple(weight.shape)}" if isinstance(weight, Tensor) else ""
    return f" (the layer {names[module]!r}{got}{has})" if got or has else f" (in {names[module]!r})"


def require_rows(output: Any, outputs: int, when: str = "", rows: int = 2) -> None:
    """ModelError unless a network returns a row of numbers for each of one or two inputs."""
    example = f"shape ({rows}, {outputs}) for {'one' if rows == 1 else 'two'}"
    rule = f"the network must return a row of {outputs} numbers per input, {example}"
    if not isinstance(output, Tensor):
        raise ModelError(f"{rule}; got a {type(output).__name__}{when}")
    if tuple(output.shape) != (rows, outputs):
        raise ModelError(f"{rule}; got the shape {tuple(output.shape)}{when}")


def _described(
    model: nn.Module, layers: Sequence[nn.Module], runs: Counter[nn.Module], normalized: set[nn.Module]
) -> list[WeightLayer]:
    names = {module: name for name, module in model.named_modules()}
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    found = []
    for module in layers:
        assert isinstance(module.weight, Tensor)
        own = {f"{names[module]}.weight", "weight"}
        shared = [owner for owner in owners.get(id(module._parameters.get("weight")), []) if owner not in own]
        groups = int(module.groups) if isinstance(module, _TRANSPOSED) else 0
        bound, shape = _bound(module, shared, runs[module]), tuple(module.weight.shape)
        found.append(WeightLayer(names[module], shape, module in normalized, module in runs, groups, bound))
    return found


def _bound(module: nn.Module, shared: Sequence[str], runs: int) -> str:
    """Why a layer must stay dense, if it must; its weight is `shared` with these parameters."""
    weight = module._parameters.get("weight")
    if parametrize.is_parametrized(module, "weight") or weight is None:
        return "its weight is computed from other parameters"
    if shared:
        return f"its weight is shared with {shared[0]}"
    if not weight.requires_grad:
        return "its weight is frozen"
    return f"is called {runs} times per pass" if runs > 1 else ""


def choose_layers(
    layers: Sequence[WeightLayer],
    *,
    keep_first: bool = True,
    keep_last: bool = True,
    skip: Sequence[str] = (),
    only: Sequence[str] = (),
) -> list[LayerChoice]:
    """Whether each layer becomes ternary. `only` overrides the convention that first and last stay dense."""
    running = [layer.name for layer in layers if layer.executed]
    conventional: dict[str, str] = {}
    if not only:
        conventional |= dict.fromkeys(running[-1:], "last") if keep_last else {}
        conventional |= dict.fromkeys(running[:1], "first") if keep_first else {}
    for pattern in [*skip, *only]:
        named = [layer for layer in layers if fnmatch.fnmatchcase(layer.name, pattern)]
        if not named:
            known = ", ".join(layer.name for layer in layers)
            raise ModelError(f"the layer pattern {pattern!r} matches no weight layer: there are {known}")
        if pattern in only and all(layer.obstacle for layer in named):
            raise ModelError(f"the layer {named[0].name!r} cannot become ternary: {named[0].obstacle}")
    choices = [_choose(layer, conventional, skip, only) for layer in layers]
    if not any(choice.ternary for choice in choices):
        reasons = "; ".join(f"{choice.layer.name}: {choice.why}" for choice in choices) or "it has no weight layer"
        raise ModelError(f"the network has no layer to make ternary ({reasons})")
    return choices


def _choose(layer: WeightLayer, conventional: dict[str, str], skip: Sequence[str], only: Sequence[str]) -> LayerChoice:
    skipped, named = (any(fnmatch.fnmatchcase(layer.name, each) for each in patterns) for patterns in (skip, only))
    reasons = {
        layer.obstacle: bool(layer.obstacle),
        "skipped by name": skipped,
        "not among the layers named": bool(only) and not named,
        f"{conventional.get(layer.name)} weight layer": layer.name in conventional,
    }
    for reason, holds in reasons.items():
        if holds:
            return LayerChoice(layer, False, reason)
    if layer.scale_is_free:
        return LayerChoice(layer, True, "normalization follows: Θ rescaled")
    return LayerChoice(layer, True, "no normalization follows: a learned output scale")


def copied(network: nn.Module) -> nn.Module:
    """A copy of the network; ModelError if it holds an object that cannot be copied, such as a lock."""
    try:
        return copy.deepcopy(network)
    except USER_ERRORS as error:
        raise ModelError(f"the network must be copyable by copy.deepcopy, got {describe_error(error)}") from error
