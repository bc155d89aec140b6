"""sca-search: ternary neural networks at a target sparsity.

import sca_search as sca

result = sca.search(model, data, target_sparsity=0.5)       # a study: result.front, .chosen, .dashboard
result.chosen.export("out/", formats=["c", "onnx"])

sca.ternarize(model); sca.regularizer(model); sca.bake(model); sca.sparsity(model)      # your own training loop
sca.Control(model, steps)                                   # its schedules
sca.TernaryCallback(target_sparsity=0.5)                    # your own LightningModule and Trainer

sca.export_baked(model, "out/", inputs)                     # a baked network as packed, C, ONNX and torch files
sca.load("model.safetensors")                               # an exported model as a torch module
sca.compile("out/c/")                                       # its C source as a function of numpy arrays
"""

import sys

# `python -m` searches the working folder first: a run folder of somebody else must not replace installed modules.
if sys.argv[:1] == ["-m"] and not sys.flags.safe_path:
    del sys.path[0]

from typing import TYPE_CHECKING

from sca_search.system.lazy_names import lazy_names
from sca_search.system.machine import __version__

if TYPE_CHECKING:
    from sca_search.api.callback import TernaryCallback
    from sca_search.api.loop import Control, bake, export_baked, regularizer, sparsity, ternarize, ternary_layers
    from sca_search.api.study import Result, TrialModel, search
    from sca_search.export.c.library import compile_model as compile
    from sca_search.export.open import load

__all__ = [
    "Control",
    "Result",
    "TernaryCallback",
    "TrialModel",
    "__version__",
    "bake",
    "compile",
    "export_baked",
    "load",
    "regularizer",
    "search",
    "sparsity",
    "ternarize",
    "ternary_layers",
]

# Imported on first access: nearly all need torch, which `--help` and `compile` must not import.
_PLACES = {
    "api.callback": ("TernaryCallback",),
    "api.loop": ("Control", "bake", "export_baked", "regularizer", "sparsity", "ternarize", "ternary_layers"),
    "api.study": ("TrialModel", "Result", "search"),
    "export.open": ("load",),
}
__getattr__ = lazy_names(
    __name__,
    {name: place for place, names in _PLACES.items() for name in names} | {"compile": "export.c.library:compile_model"},
)


def __dir__() -> list[str]:
    return sorted(__all__)
