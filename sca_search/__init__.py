"""sca-search: ternary networks at the sparsity you ask for.

import sca_search as sca

result = sca.search(model, data, target_sparsity=0.5)       # a study: result.front, .chosen, .dashboard
result.chosen.export("out/", formats=["c", "onnx"])

sca.ternarize(model); sca.regularizer(model); sca.bake(model); sca.sparsity(model)      # your own loop
sca.Control(model, steps)                                   # its schedules
sca.TernaryCallback(target_sparsity=0.5)                    # your own LightningModule and Trainer

sca.export_baked(model, "out/", inputs)                     # what was baked, as packed, C, ONNX and torch files
sca.load("model.safetensors")                               # an exported model as a torch module
sca.compile("out/c/")                                       # one as a function of numpy arrays, from its C source
"""

import importlib
from typing import TYPE_CHECKING, Any

from sca_search.system.versions import __version__

if TYPE_CHECKING:
    from sca_search.api.baked_export import export_baked
    from sca_search.api.callback import TernaryCallback
    from sca_search.api.loop import bake, regularizer, sparsity, ternarize, ternary_layers
    from sca_search.api.loop_control import Control
    from sca_search.api.study import Found, Result, search
    from sca_search.export.c.library import compile_model as compile
    from sca_search.export.open import load

__all__ = [
    "Control",
    "Found",
    "Result",
    "TernaryCallback",
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

# Each is imported when it is asked for: nearly all bring torch, which neither `--help` nor `compile` waits for.
_ROOMS = {
    "Control": ("api.loop_control", "Control"),
    "Found": ("api.study", "Found"),
    "Result": ("api.study", "Result"),
    "TernaryCallback": ("api.callback", "TernaryCallback"),
    "bake": ("api.loop", "bake"),
    "compile": ("export.c.library", "compile_model"),
    "export_baked": ("api.baked_export", "export_baked"),
    "load": ("export.open", "load"),
    "regularizer": ("api.loop", "regularizer"),
    "search": ("api.study", "search"),
    "sparsity": ("api.loop", "sparsity"),
    "ternarize": ("api.loop", "ternarize"),
    "ternary_layers": ("api.loop", "ternary_layers"),
}


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module 'sca_search' has no attribute {name!r}")
    room, attribute = _ROOMS[name]
    return getattr(importlib.import_module(f"sca_search.{room}"), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
