"""sca-search: ternary networks at the sparsity you ask for.

`sca_search.load("model.safetensors")` gives an exported model as a torch module, `sca_search.compile(path)` one as a
function of numpy arrays, compiled from its C source.
"""

from typing import TYPE_CHECKING, Any

from sca_search.versions import __version__

if TYPE_CHECKING:
    from sca_search.export.compiled import compile_model as compile
    from sca_search.export.rebuild import load

__all__ = ["__version__", "compile", "load"]


def __getattr__(name: str) -> Any:
    """Each is imported when it is asked for: `load` brings torch, which neither `compile` nor --help waits for."""
    if name == "load":
        from sca_search.export.rebuild import load  # noqa: PLC0415

        return load
    if name == "compile":
        from sca_search.export.compiled import compile_model  # noqa: PLC0415

        return compile_model
    raise AttributeError(f"module 'sca_search' has no attribute {name!r}")
