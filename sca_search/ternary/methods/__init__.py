"""Quantization methods behind one interface: SCA in its forms, and published competitors.

A method is one class and one line in config.names.METHODS.
"""

from importlib import import_module

from sca_search.config.names import METHODS
from sca_search.ternary.methods.base import FinalWeights, Method
from sca_search.ternary.methods.quantized import Quantized, Quantizer

__all__ = ["FinalWeights", "Method", "method_class"]


def method_class(name: str) -> type[Method]:
    """The method of that name; a quantizer is one on every layer."""
    module, _, class_name = METHODS[name].place.partition(".")
    found: type[Method | Quantizer] = getattr(import_module(f"{__name__}.{module}"), class_name)
    if issubclass(found, Method):
        return found
    return type(class_name, (Quantized,), {"quantizer": found, "__module__": found.__module__})
