"""Ways to train few-valued weights: SCA in its forms, and what others have published, behind one interface.

One file a method, one line in method_names.py.
"""

from importlib import import_module

from sca_search.config.names import METHODS
from sca_search.ternary.methods.base import Ending, Method

__all__ = ["Ending", "Method", "method_class"]


def method_class(name: str) -> type[Method]:
    """The method of that name."""
    module, _, own = METHODS[name].place.partition(".")
    found: type[Method] = getattr(import_module(f"{__name__}.{module}"), own)
    return found
