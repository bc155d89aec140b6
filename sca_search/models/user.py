"""The user's network: a function, a class or a module in a file or a package."""

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from sca_search.config.references import USER_ERRORS, describe_error, load_object
from sca_search.errors import ModelError
from sca_search.models.builtin import Shape
from sca_search.models.layers import copied
from sca_search.system.torchvision import patch_torchvision

Maker = Callable[[], nn.Module]
"""Makes a new network at each call."""


def user_maker(name: str, num_classes: int, input_shape: Shape) -> Maker:
    """The maker of `file.py:function` or `package.module:function`; ModelError if there is none."""
    patch_torchvision()  # the user's file may import it
    return maker_of(load_object(name, "model", ModelError), num_classes, input_shape, name)


def maker_of(network: Any, num_classes: int, input_shape: Shape, name: str) -> Maker:
    """A maker from a network, which is copied, or from a function; `name` is for messages."""
    if isinstance(network, nn.Module):
        return lambda: copied(network).train()
    if not callable(network):
        raise ModelError(f"model {name}: must be a function, a class or a torch module, got {_kind(network)}")
    arguments, keywords = _arguments(network, num_classes, input_shape, name)

    def make() -> nn.Module:
        try:
            made = network(*arguments, **keywords)
        except USER_ERRORS as error:
            raise ModelError(f"model {name}: failed when called: {describe_error(error)}") from error
        if not isinstance(made, nn.Module):
            raise ModelError(f"model {name}: must return a torch.nn.Module, got {_kind(made)}")
        return made.train()

    return make


def _arguments(
    function: Callable[..., Any], num_classes: int, input_shape: Shape, name: str
) -> tuple[list[Any], dict[str, Any]]:
    """num_classes and input_shape by keyword, or else for the first required parameters, in this order."""
    offered = {"num_classes": num_classes, "input_shape": tuple(input_shape)}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ModelError(f"model {name}: its parameters cannot be determined: {describe_error(error)}") from error
    by_name = [p for p in signature.parameters.values() if p.name in offered and p.kind is not p.POSITIONAL_ONLY]
    keywords = {p.name: offered[p.name] for p in by_name}
    required = [
        p
        for p in signature.parameters.values()
        if p.default is p.empty and p.kind not in {p.VAR_POSITIONAL, p.VAR_KEYWORD} and p.name not in keywords
    ]
    rest = [value for key, value in offered.items() if key not in keywords]
    if len(required) > len(rest) or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise ModelError(
            f"model {name}: is called with num_classes and input_shape only, its signature is {signature}; "
            "give the other parameters defaults"
        )
    # By name where possible: the parameter of a keyword may precede them.
    named = {p.name: value for p, value in zip(required, rest, strict=False) if p.kind is not p.POSITIONAL_ONLY}
    unnamed = [value for p, value in zip(required, rest, strict=False) if p.kind is p.POSITIONAL_ONLY]
    return unnamed, keywords | named


def _kind(value: object) -> str:
    return "None" if value is None else f"a value of type {type(value).__name__}"
