"""Exports trained networks: network -> records -> packed, C, ONNX and torch files; verification; latency."""

from typing import TYPE_CHECKING

from sca_search.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from sca_search.export.folder import ExportOptions, export_network
    from sca_search.export.graph.network import Network

__all__ = ["ExportOptions", "Network", "export_network"]

# Imported on first access: they need torch, which records, packed files and the C export do not.
__getattr__ = lazy_names(__name__, {"ExportOptions": "folder", "Network": "graph.network", "export_network": "folder"})
