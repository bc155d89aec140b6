"""Exports trained networks: network -> records -> packed, C, ONNX and torch files; verification; latency."""

from typing import TYPE_CHECKING

from sca_search.system.lazy_names import lazy_names

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

# Imported on first access: most need torch, which records, packed files and the C export do not.
__getattr__ = lazy_names(
    __name__,
    dict.fromkeys(("ExportOptions", "Exported", "export_network"), "folder")
    | {"Network": "graph.network", "compile_model": "c.library", "export_run": "run", "load": "open"}
    | {"verify_folder": "verify_folder"},
)
