"""A network as records: tracing, folding, shapes, and the numpy and torch references. Records need no torch."""

from sca_search.export.graph.records import RECORDS, Graph, Record, TestVectors, WeightRecord
from sca_search.export.graph.reference import evaluate
from sca_search.export.graph.shapes import check_graph

__all__ = ["RECORDS", "Graph", "Record", "TestVectors", "WeightRecord", "check_graph", "evaluate"]
