"""Lets torchvision, and Lightning behind it, be imported: beside a torch that its wheel was not built for, and without
what nobody here needs.

A CUDA torchvision next to a CPU torch cannot load its compiled library, and its import then dies on
`operator torchvision::nms does not exist`: it registers a shape rule for operators that nobody has
defined. This package uses none of them (it classifies, it finds no boxes), so that an empty definition
is enough. Calling one afterwards still fails, as it should: there is no kernel behind it.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_BOX_OPERATORS = ("nms", "qnms")
_BOX_SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"

# A definition lives only as long as the Library that made it.
_kept: list[torch.library.Library] = []


def heal_torchvision() -> None:
    """Make `import torchvision` work; to be called before torchvision or Lightning is imported.

    Does nothing where torchvision is absent, or where its operators exist already: a second
    definition of an operator raises.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or not _missing_operators():
        return
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    if not _load_compiled(folders):
        _declare(_missing_operators())


class _LoadedLater(ModuleType):
    """Stands for a module until somebody asks it for more than it was given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # the import system's own questions
            raise AttributeError(name)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def without_scipy_signal() -> Iterator[None]:
    """While Lightning is imported: torchmetrics, behind it, loads scipy.signal to see whether it has `hamming`, for the
    sake of a package that computes a metric of speech. It takes 24 MB of every study, with all that it brings."""
    name = "scipy.signal"
    stand_in = _LoadedLater(name)
    stand_in.__dict__["hamming"] = None
    is_first = sys.modules.setdefault(name, stand_in) is stand_in
    try:
        yield
    finally:
        if is_first and sys.modules.get(name) is stand_in:
            del sys.modules[name]


def _missing_operators() -> list[str]:
    return [name for name in _BOX_OPERATORS if not hasattr(torch.ops.torchvision, name)]


def _load_compiled(folders: list[Path]) -> bool:
    """Whether torchvision's own library could be loaded; importing the package to ask would be fatal."""
    found = [path for folder in folders for path in sorted(folder.glob("_C*"))]
    return any(_loads(path) for path in found if path.suffix in {".so", ".pyd", ".dylib"})


def _loads(library: Path) -> bool:
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
    except (OSError, RuntimeError):  # RuntimeError: built against another torch, its registrations clash
        return False
    return True


def _declare(names: list[str]) -> None:
    if not names:
        return
    # FRAGMENT, not DEF: only one DEF of a namespace may exist, and that one belongs to torchvision.
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in names:
        library.define(name + _BOX_SCHEMA)  # type: ignore[no-untyped-call]
    _kept.append(library)
