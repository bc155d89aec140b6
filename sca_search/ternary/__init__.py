"""The method: parametrization, regularizer, prior and exact step; allocation of zeros; competitors. Imported lazily."""

from typing import TYPE_CHECKING

from sca_search.system.lazy_names import lazy_names

if TYPE_CHECKING:
    from sca_search.ternary.allocation import LayerShape, allocate
    from sca_search.ternary.exact import exact_trits
    from sca_search.ternary.methods import Method, method_class
    from sca_search.ternary.parametrize import bake_trits, parametrize_layers
    from sca_search.ternary.prior import alpha_for_sparsity

__all__ = [
    "LayerShape",
    "Method",
    "allocate",
    "alpha_for_sparsity",
    "bake_trits",
    "exact_trits",
    "method_class",
    "parametrize_layers",
]

__getattr__ = lazy_names(
    __name__,
    {
        "LayerShape": "allocation",
        "Method": "methods",
        "allocate": "allocation",
        "alpha_for_sparsity": "prior",
        "bake_trits": "parametrize",
        "exact_trits": "exact",
        "method_class": "methods",
        "parametrize_layers": "parametrize",
    },
)
