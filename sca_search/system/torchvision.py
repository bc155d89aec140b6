"""Makes torchvision importable, which Lightning imports, next to a torch that its wheel was not built for.

A CUDA torchvision next to a CPU torch cannot load its compiled library. Its import then fails with `operator
torchvision::nms does not exist`, because it registers a shape rule for operators that nothing has defined. This package
uses none of these operators, so an empty definition is enough. Calling one still fails: it has no kernel.
"""

import importlib.util
from contextlib import suppress
from pathlib import Path

import torch

_BOX_OPERATORS = ("nms", "qnms")
_BOX_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

# A definition lives as long as its Library object.
_libraries: list[torch.library.Library] = []


def patch_torchvision() -> None:
    """Make `import torchvision` work. Must be called before torchvision or Lightning is imported.

    Does nothing if torchvision is not installed or its operators exist: a second definition of an operator raises.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not _missing_operators():
        return
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not _load_compiled(folders):
        _declare(_missing_operators())


def _missing_operators() -> list[str]:
    return [name for name in _BOX_OPERATORS if not hasattr(torch.ops.torchvision, name)]


def _load_compiled(folders: list[Path]) -> bool:
    """Whether torchvision's compiled library can be loaded. Importing the package to find out would fail."""
    found = [path for folder in folders for path in sorted(folder.glob("_C*"))]
    for path in found:
        with suppress(OSError, RuntimeError):  # RuntimeError: built against another torch, its registrations clash
            if path.suffix in {".so", ".pyd", ".dylib"}:
                torch.ops.load_library(path)  # type: ignore[no-untyped-call]
                return True
    return False


def _declare(names: list[str]) -> None:
    # FRAGMENT, not DEF: only one DEF of a namespace may exist, and it is torchvision's.
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in names:
        library.define(name + _BOX_SCHEMA)  # type: ignore[no-untyped-call]
    _libraries.append(library)
