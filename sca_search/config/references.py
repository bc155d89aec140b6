"""Import a user's object by reference: `package.module:name`, or `file.py:name`.

A file is imported once, under a unique module name. It can import the modules next to it, and a module of the working
folder needs no installation; installed modules take precedence, and sys.path is not changed. Importing runs the user's
code: a reference in a file is loaded only with the user's consent (`load.require_trust`).
"""

import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from itertools import accumulate
from pathlib import Path
from types import ModuleType

from sca_search.errors import CodeError, InputError, ScaError, SpecError, nearest_name

# Prefix of names that stand for a Python object.
PYTHON_OBJECT = "python:"
_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MAX_SHOWN = 200

# What a call of user code may raise. An exit() in it would otherwise end the command with its exit code, and 0 means
# success.
USER_ERRORS = (Exception, SystemExit)


def expand_home(path: str | os.PathLike[str]) -> Path:
    """The path with `~` expanded; InputError if there is no such home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise InputError(f"{path}: must be a path without ~, because there is no such home folder") from error


def is_reference(text: str) -> bool:
    """Whether a string has the form of a reference: a module or file, a colon, a name."""
    place, colon, name = text.rpartition(":")
    return bool(colon and _NAME.fullmatch(name) and (place.endswith(".py") or _NAME.fullmatch(place)))


def load_object(reference: str, what: str, error: type[InputError] = SpecError) -> object:
    """Import the referenced object; `what` describes its purpose in error messages."""
    if not is_reference(reference):
        raise error(f"{what} must be named as package.module:name or file.py:name, got {reference!r}")
    if reference.startswith(PYTHON_OBJECT):
        raise error(f"{what} {reference!r} is a Python object, which cannot be loaded by name")
    place, _, name = reference.rpartition(":")
    rule = f"{what} must be of your own or of an installed package"
    if not place.endswith(".py") and _is_stdlib(place):
        file = f"{place.replace('.', '/')}.py:{name}"
        raise error(f"{rule}, {place} is of Python itself; a file of that name is {file}")
    found: object = _module(place, what, error)
    for part in name.split("."):
        if not hasattr(found, part):
            raise error(f"{what} {reference!r}: {place} has no {part!r}{nearest_name(part, dir(found))}")
        found = getattr(found, part)
        if _is_stdlib(_module_of(found)):  # as in torch:os.abort
            raise error(f"{rule}, {reference} is of Python itself")
    return found


def file_of(reference: str) -> Path | None:
    """The file that loading a reference would run, found without running any code; None if there is none."""
    place = reference.rpartition(":")[0]
    if place.endswith(".py"):
        return Path(place).expanduser().resolve()
    top, *names = accumulate(place.split("."), "{}.{}".format)
    found = _installed(top) or PathFinder.find_spec(top, [str(Path.cwd())])
    for name in names:
        inside = found.submodule_search_locations if found else None
        found = PathFinder.find_spec(name, inside) if inside else None
    return Path(found.origin) if found and found.has_location and found.origin else None


def _installed(top: str) -> ModuleSpec | None:
    """Where Python finds a top-level module."""
    try:
        return importlib.util.find_spec(top)
    except ValueError:  # __main__ may have none
        return None


def _is_stdlib(module: str) -> bool:
    """The standard library has no networks, but a study from someone else could stop the program with it: os:abort."""
    return module.partition(".")[0] in sys.stdlib_module_names


def _module_of(found: object) -> str:
    """The module of a class or function, or of a module itself; empty for a partial and the like."""
    if isinstance(found, ModuleType):
        return found.__name__
    return str(found.__module__) if inspect.isclass(found) or inspect.isroutine(found) else ""


@contextmanager
def user_code_errors(what: str) -> Iterator[None]:
    """Raise CodeError where the user's code fails during a study.

    Errors whose traceback has only installed code are not the user's; our own errors pass unchanged.
    """
    try:
        yield
    except ScaError:
        raise
    except USER_ERRORS as error:
        if not _user_frames(error):
            raise
        raise CodeError(f"{what} failed with {describe_error(error)}") from error


def describe_error(raised: BaseException) -> str:
    """An error of user code in one line: its type, its message, and the last line of user code in its traceback."""
    message = " ".join(str(raised).split())
    kind = type(raised).__name__
    shown = f"{kind}: {message[:_MAX_SHOWN]}" if message else kind
    frames = _user_frames(raised)
    return f"{shown} ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else shown


def _user_frames(raised: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(raised.__traceback__) if not is_installed(frame.filename)]


def is_installed(filename: str) -> bool:
    """Whether a frame belongs to this package, another installed one or Python itself."""
    path = Path(filename)
    is_ours = path.is_relative_to(Path(__file__).parents[1])
    return is_ours or "site-packages" in path.parts or path.is_relative_to(sys.base_prefix) or filename.startswith("<")


def _module(place: str, what: str, error: type[InputError]) -> ModuleType:
    try:
        if place.endswith(".py"):
            return _from_file(place, what, error)
        if _installed(place.partition(".")[0]) is None:
            _make_importable(Path.cwd())
        return importlib.import_module(place)
    except InputError:
        raise
    except USER_ERRORS as raised:
        missing = raised.name if isinstance(raised, ModuleNotFoundError) else None
        if missing is not None and f"{place}.".startswith(f"{missing}."):
            raise error(f"{what}: there is no module {place!r} to import, here or installed") from raised
        raise error(f"{what}: importing {place} failed with {describe_error(raised)}") from raised


def _from_file(place: str, what: str, error: type[InputError]) -> ModuleType:
    path = expand_home(place).resolve()
    if not path.is_file():
        raise error(f"{what}: there is no file {place}")
    # The same file always has the same module name: its classes must be identical, however often it is loaded.
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    _make_importable(path.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@dataclass(frozen=True)
class _UserFolder:
    """Finds the modules in a folder of the user's code, after all others."""

    folder: str

    def find_spec(self, name: str, path: object = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return PathFinder.find_spec(name, [self.folder], target) if path is None else None


def _make_importable(folder: Path) -> None:
    finder = _UserFolder(str(folder))
    if finder not in sys.meta_path:
        sys.meta_path.append(finder)
