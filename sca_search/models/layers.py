"""Which layers become ternary: weight layers in order of execution, each with the reason for the choice."""

import fnmatch
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from sca_search.config.references import USER_ERRORS, describe_error
from sca_search.errors import ModelError

_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
WEIGHT_LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *_TRANSPOSED, nn.Linear)
NORMALISATIONS = (
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
    scale_is_free: bool  # a normalisation follows, so the weights may be rescaled
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

    One forward pass with hooks: a normalisation whose input is the very tensor that a layer returned follows that
    layer. ModelError if the network cannot process such an input, or does not return one row of `outputs` numbers.
    """
    names = {module: name for name, module in model.named_modules()}
    runs: Counter[nn.Module] = Counter()  # in the order of first execution
    producer: dict[tuple[int, int], nn.Module] = {}  # by identity and version: an in-place ReLU counts as a new tensor
    alive: list[Tensor] = []  # references to outputs, else a new tensor could get the id of a deleted one
    normalised: set[nn.Module] = set()
    active: list[tuple[nn.Module, Any]] = []  # modules that are running, with their inputs

    def begin(module: nn.Module, inputs: tuple[Any, ...]) -> None:
        active.append((module, inputs))

    def note(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        active.pop()
        if isinstance(module, NORMALISATIONS) and inputs:
            source = producer.get((id(inputs[0]), inputs[0]._version))
            if source is not None:
                normalised.add(source)
        if isinstance(module, WEIGHT_LAYERS):
            alive.append(output)
            producer[id(output), output._version] = module
            runs[module] += 1

    # Before all other hooks: an error in one of the network's hooks belongs to its module.
    hooks = [module.register_forward_pre_hook(begin, prepend=True) for module in names]
    hooks += [module.register_forward_hook(note) for module in names]
    try:
        with torch.no_grad(), _in_evaluation(model):
            output = model(torch.zeros(2, *input_shape))
    except USER_ERRORS as error:
        place = _place(active, names)
        sentence = f"the network cannot process an input of shape {tuple(input_shape)}{place}: {describe_error(error)}"
        raise ModelError(sentence) from error
    finally:
        for hook in hooks:
            hook.remove()
    if outputs is not None:
        require_rows(output, outputs)
    idle = [module for module in names if isinstance(module, WEIGHT_LAYERS) and module not in runs]
    bound = _bound_layers(model, runs)
    return [_describe(module, names[module], bound, module in normalised) for module in runs] + [
        _describe(module, names[module], bound, scale_is_free=False, executed=False) for module in idle
    ]


def defined_layers(model: nn.Module) -> list[WeightLayer]:
    """The weight layers in the order of their definition, for a network without an example input: whether a
    normalisation follows a layer is unknown then."""
    bound = _bound_layers(model, Counter())
    return [
        _describe(module, name, bound, scale_is_free=False)
        for name, module in model.named_modules()
        if isinstance(module, WEIGHT_LAYERS)
    ]


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


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


def require_rows(output: Any, outputs: int, when: str = "") -> None:
    """ModelError unless a network returns a row of numbers for each of two inputs."""
    rule = f"the network must return a row of {outputs} numbers per input, shape (2, {outputs}) for two"
    if not isinstance(output, Tensor):
        raise ModelError(f"{rule}; got a {type(output).__name__}{when}")
    if tuple(output.shape) != (2, outputs):
        raise ModelError(f"{rule}; got the shape {tuple(output.shape)}{when}")


def _bound_layers(model: nn.Module, runs: Counter[nn.Module]) -> dict[nn.Module, str]:
    """The layers that must stay dense, each with the reason."""
    owners: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        owners.setdefault(id(parameter), []).append(name)
    reasons: dict[nn.Module, str] = {}
    for name, module in model.named_modules():
        if not isinstance(module, WEIGHT_LAYERS):
            continue
        weight = module._parameters.get("weight")
        others = [other for other in owners.get(id(weight), []) if other not in {f"{name}.weight", "weight"}]
        if parametrize.is_parametrized(module, "weight") or weight is None:
            reasons[module] = "its weight is computed from other parameters"
        elif others:
            reasons[module] = f"its weight is shared with {others[0]}"
        elif not weight.requires_grad:
            reasons[module] = "its weight is frozen"
        elif runs[module] > 1:
            reasons[module] = f"is called {runs[module]} times per pass"
    return reasons


def _describe(
    module: nn.Module, name: str, bound: dict[nn.Module, str], scale_is_free: bool, executed: bool = True
) -> WeightLayer:
    assert isinstance(module.weight, Tensor)
    groups = int(module.groups) if isinstance(module, _TRANSPOSED) else 0
    return WeightLayer(name, tuple(module.weight.shape), scale_is_free, executed, groups, bound.get(module, ""))


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
    _check_patterns_match([*skip, *only], [layer.name for layer in layers])
    _check_patterns_possible(only, layers)
    choices = [_choose(layer, conventional, skip, only) for layer in layers]
    if not any(choice.ternary for choice in choices):
        reasons = "; ".join(f"{choice.layer.name}: {choice.why}" for choice in choices) or "it has no weight layer"
        raise ModelError(f"the network has no layer to make ternary ({reasons})")
    return choices


def _check_patterns_match(patterns: Sequence[str], names: Sequence[str]) -> None:
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise ModelError(f"the layer pattern {pattern!r} matches no weight layer: there are {', '.join(names)}")


def _check_patterns_possible(only: Sequence[str], layers: Sequence[WeightLayer]) -> None:
    """ModelError for a pattern of which every layer must stay dense."""
    for pattern in only:
        named = [layer for layer in layers if fnmatch.fnmatchcase(layer.name, pattern)]
        if named and all(layer.obstacle for layer in named):
            raise ModelError(f"the layer {named[0].name!r} cannot become ternary: {named[0].obstacle}")


def _choose(layer: WeightLayer, conventional: dict[str, str], skip: Sequence[str], only: Sequence[str]) -> LayerChoice:
    def matches(patterns: Sequence[str]) -> bool:
        return any(fnmatch.fnmatchcase(layer.name, pattern) for pattern in patterns)

    if layer.obstacle:
        return LayerChoice(layer, False, layer.obstacle)
    if matches(skip):
        return LayerChoice(layer, False, "skipped by name")
    if only and not matches(only):
        return LayerChoice(layer, False, "not among the layers named")
    if layer.name in conventional:
        return LayerChoice(layer, False, f"{conventional[layer.name]} weight layer")
    if layer.scale_is_free:
        return LayerChoice(layer, True, "normalisation follows: Θ rescaled")
    return LayerChoice(layer, True, "no normalisation follows: a learned output scale")
