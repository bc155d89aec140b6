"""sca-search: ternary networks at the sparsity you ask for.

`sca_search.load("model.safetensors")` gives an exported model as a torch module.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sca_search.export.rebuild import load

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """`load` is imported when it is asked for: it brings torch, which a command's --help does not wait for."""
    if name == "load":
        from sca_search.export.rebuild import load  # noqa: PLC0415

        return load
    raise AttributeError(f"module 'sca_search' has no attribute {name!r}")
