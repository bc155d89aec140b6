"""A user's own object by name: `package.module:name`, or `file.py:name`.

A file is imported once, under a name of its own, and its folder can be imported from, as if Python had been started
with it. Importing runs the user's code: nothing here is meant for files that somebody else sent.
"""

import hashlib
import importlib
import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from sca_search.errors import CodeError, InputError, ScaError, SpecError, nearest_name

_NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_MOST_SHOWN = 200

# What a call of the user's code may raise. An exit() in it would otherwise end the command with its exit code, and 0
# says that all is done.
RAISED = (Exception, SystemExit)


def is_reference(text: str) -> bool:
    """Whether a text has the form of a reference: something importable, a colon, a name."""
    place, colon, name = text.rpartition(":")
    return bool(colon and _NAME.fullmatch(name) and (place.endswith(".py") or _NAME.fullmatch(place)))


def load_object(reference: str, what: str, error: type[InputError] = SpecError) -> object:
    """The object that a reference names; `what` it is for is said where it cannot be had."""
    if not is_reference(reference):
        raise error(f"{what} must be named as package.module:name or file.py:name, got {reference!r}")
    place, _, name = reference.rpartition(":")
    rule = f"{what} must be of your own or of an installed package"
    if not place.endswith(".py") and _is_pythons(place):
        file = f"{place.replace('.', '/')}.py:{name}"
        raise error(f"{rule}, {place} is of Python itself; a file of that name is {file}")
    found: object = _module(place, what, error)
    for part in name.split("."):
        if not hasattr(found, part):
            raise error(f"{what} {reference!r}: {place} has no {part!r}{nearest_name(part, dir(found))}")
        found = getattr(found, part)
        if _is_pythons(_home_of(found)):  # as in torch:os.abort
            raise error(f"{rule}, {reference} is of Python itself")
    return found


def _is_pythons(module: str) -> bool:
    """Nothing there makes data or networks, but a study that was sent could end or stop a program by it: os:abort."""
    return module.partition(".")[0] in sys.stdlib_module_names


def _home_of(found: object) -> str:
    """The module that a module, a class or a function is or comes from; empty for a partial and the like."""
    if isinstance(found, ModuleType):
        return found.__name__
    return str(found.__module__) if inspect.isclass(found) or inspect.isroutine(found) else ""


@contextmanager
def own_code(what: str) -> Iterator[None]:
    """CodeError where code of the user's fails in the middle of a study.

    What fails in installed code alone is not theirs, and errors of ours say by themselves what they are.
    """
    try:
        yield
    except ScaError:
        raise
    except RAISED as error:
        if not _own_frames(error):
            raise
        raise CodeError(f"{what} failed with {cause_of(error)}") from error


def cause_of(raised: BaseException) -> str:
    """An error of the user's code in one line: its kind, what it says, and the last line of theirs that it met."""
    said = " ".join(str(raised).split())
    kind = type(raised).__name__
    shown = f"{kind}: {said[:_MOST_SHOWN]}" if said else kind
    theirs = _own_frames(raised)
    return f"{shown} ({Path(theirs[-1].filename).name}, line {theirs[-1].lineno})" if theirs else shown


def _own_frames(raised: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(raised.__traceback__) if not _is_installed(frame.filename)]


def _is_installed(filename: str) -> bool:
    """Whether a frame is of this package, of another installed one or of Python itself."""
    path = Path(filename)
    is_ours = path.is_relative_to(Path(__file__).parent)
    return is_ours or "site-packages" in path.parts or path.is_relative_to(sys.base_prefix) or filename.startswith("<")


def _module(place: str, what: str, error: type[InputError]) -> ModuleType:
    try:
        return _from_file(place, what, error) if place.endswith(".py") else _from_package(place)
    except InputError:
        raise
    except ModuleNotFoundError as raised:
        if raised.name is not None and (place == raised.name or place.startswith(f"{raised.name}.")):
            raise error(f"{what}: there is no module {place!r} to import, here or installed") from raised
        raise error(f"{what}: importing {place} failed with {cause_of(raised)}") from raised
    except RAISED as raised:
        raise error(f"{what}: importing {place} failed with {cause_of(raised)}") from raised


def _from_package(place: str) -> ModuleType:
    _make_importable(Path.cwd())  # a console script does not look there by itself
    return importlib.import_module(place)


def _from_file(place: str, what: str, error: type[InputError]) -> ModuleType:
    path = Path(place).expanduser().resolve()
    if not path.is_file():
        raise error(f"{what}: there is no file {place}")
    # Under this name the file is found again: a class of it must be one class, however often it is named.
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


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
