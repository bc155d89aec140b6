"""Exports trained networks: network -> records -> packed, C, ONNX and torch files; verification; latency.

Public names are imported on first use: most need torch, which records, packed files and the C export do not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sca_search.export.c.library import compile_model
    from sca_search.export.folder import Exported, ExportOptions, export_network
    from sca_search.export.graph.network import Network
    from sca_search.export.open import load
    from sca_search.export.run import export_run
    from sca_search.export.verify_folder import verify_folder

__all__ = [
    "ExportOptions",
    "Exported",
    "Network",
    "compile_model",
    "export_network",
    "export_run",
    "load",
    "verify_folder",
]

_MODULES = {
    "ExportOptions": "folder",
    "Exported": "folder",
    "Network": "graph.network",
    "compile_model": "c.library",
    "export_network": "folder",
    "export_run": "run",
    "load": "open",
    "verify_folder": "verify_folder",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
