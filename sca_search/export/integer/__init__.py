"""Models with integer activations, defined exactly: scales, requantization, and a reference to compare C with."""

from sca_search.export.integer.model import IntegerModel, integer_model

__all__ = ["IntegerModel", "integer_model"]
