"""A network of the user's: a function, a class or a module in a file or a package, found and called."""

import contextlib
import copy
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from sca_search.errors import ModelError, nearest_name
from sca_search.models.shape import Shape
from sca_search.wheels import heal_torchvision

Maker = Callable[[], nn.Module]
"""Makes a network, each time anew."""


def own_maker(name: str, num_classes: int, input_shape: Shape) -> Maker:
    """The maker of `file.py:function` or `package.module:function`; ModelError if there is none."""
    place, _, attribute = name.rpartition(":")
    is_file = place.endswith(".py")
    folder = Path(place).resolve().parent if is_file else Path.cwd()
    heal_torchvision()  # which a user's file may well import
    with _importable_from(folder):
        module = _import_file(Path(place)) if is_file else _import_named(place)
    found = maker_of(_found(module, attribute, place), num_classes, input_shape, name)

    def make() -> nn.Module:
        with _importable_from(folder):  # a function may import where it is called
            return found()

    return make


def maker_of(given: Any, num_classes: int, input_shape: Shape, name: str) -> Maker:
    """A maker from a network, which is copied, or from what makes one; `name` is for sentences about it."""
    if isinstance(given, nn.Module):
        return lambda: copy.deepcopy(given).train()
    if not callable(given):
        raise ModelError(f"model {name}: must be a function, a class or a torch module, it is {_kind(given)}")
    arguments, keywords = _arguments(given, num_classes, input_shape, name)

    def make() -> nn.Module:
        try:
            made = given(*arguments, **keywords)
        except Exception as error:  # whatever the user's code raises
            raise ModelError(f"model {name}: failed when it was called: {cause(error)}") from error
        if not isinstance(made, nn.Module):
            raise ModelError(f"model {name}: must return a torch.nn.Module, it returned {_kind(made)}")
        return made.train()

    return make


def cause(error: BaseException) -> str:
    """What went wrong in foreign code, as one line."""
    line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {line[:200]}" if line else type(error).__name__


def _arguments(
    function: Callable[..., Any], num_classes: int, input_shape: Shape, name: str
) -> tuple[list[Any], dict[str, Any]]:
    """Classes and shape by their keywords, or else for the first parameters that must be given, in this order."""
    offered = {"num_classes": num_classes, "input_shape": tuple(input_shape)}
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ModelError(f"model {name}: its parameters cannot be told: {cause(error)}") from error
    by_name = [p for p in signature.parameters.values() if p.name in offered and p.kind is not p.POSITIONAL_ONLY]
    keywords = {p.name: offered[p.name] for p in by_name}
    required = [p for p in signature.parameters.values() if _is_required(p) and p.name not in keywords]
    rest = [value for key, value in offered.items() if key not in keywords]
    if len(required) > len(rest) or any(p.kind is p.KEYWORD_ONLY for p in required):
        raise ModelError(
            f"model {name}: is called with num_classes and input_shape alone, and takes {signature}; "
            "give the other parameters defaults"
        )
    # By name where they have one: a keyword's parameter may stand in front of them.
    named = {p.name: value for p, value in zip(required, rest, strict=False) if p.kind is not p.POSITIONAL_ONLY}
    unnamed = [value for p, value in zip(required, rest, strict=False) if p.kind is p.POSITIONAL_ONLY]
    return unnamed, keywords | named


def _is_required(parameter: inspect.Parameter) -> bool:
    rest = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return parameter.default is parameter.empty and parameter.kind not in rest


def _kind(thing: object) -> str:
    return "nothing" if thing is None else f"a value of the type {type(thing).__name__}"


@contextlib.contextmanager
def _importable_from(folder: Path) -> Iterator[None]:
    """A folder's modules can be imported within."""
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ModelError(f"model {path}: there is no such file")
    # A name of its own: two files may be called alike, and none may stand in for a package's module.
    unique = f"{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(unique, path.resolve())
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[unique] = module  # as an import does: dataclasses, for one, look there
    with _import_errors(str(path)):
        spec.loader.exec_module(module)
    return module


def _import_named(name: str) -> ModuleType:
    with _import_errors(name):
        return importlib.import_module(name)


@contextlib.contextmanager
def _import_errors(what: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:  # a module runs when it is imported, and may do anything
        raise ModelError(f"model {what}: cannot be imported: {cause(error)}") from error


def _found(module: ModuleType, attribute: str, place: str) -> Any:
    if hasattr(module, attribute):
        return getattr(module, attribute)
    own = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
    raise ModelError(f"model {place}: there is no {attribute!r} in it{nearest_name(attribute, own)}")
