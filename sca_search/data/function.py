"""A data set that a user's function makes: `package.module:function` or `file.py:function`."""

import inspect
from collections.abc import Callable
from typing import Any

from sca_search.config.references import USER_ERRORS, describe_error, load_object
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.user import data_of_objects, seeded
from sca_search.errors import DataError
from sca_search.system.torchvision import patch_torchvision

_TAKES = ("seed", "data_dir")


def load_function(name: str, request: DataRequest) -> DataSet:
    """Calls the function, with `seed` and `data_dir` where it takes them, and reads what it gives."""
    if request.image_size is not None:
        raise DataError(f"data set {name!r}: an image size is for images that we read, here the function decides")
    patch_torchvision()  # which the user's file may import, by itself or with Lightning
    with seeded(request.seed):
        made = _called(name, load_object(name, "the data", DataError), request)
    return data_of_objects(name, made, request)


def _called(name: str, function: object, request: DataRequest) -> object:
    if not callable(function):
        return function  # the object itself, made when its module was imported
    known = {"seed": request.seed, "data_dir": request.data_dir}
    try:
        return function(**{key: known[key] for key in _taken(name, function)})
    except DataError:
        raise
    except USER_ERRORS as error:
        raise DataError(f"data set {name!r}: the function failed with {describe_error(error)}") from error


def _taken(name: str, function: Callable[..., Any]) -> list[str]:
    """Which of what can be given it takes; DataError where it wants something else."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of a few built-in ones nothing is known
        return []
    open_ended = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    wanted = [each.name for each in parameters if each.default is each.empty and each.kind not in open_ended]
    odd = [each for each in wanted if each not in _TAKES]
    if odd:
        raise DataError(
            f"data set {name!r}: the function must be callable with nothing, seed or data_dir, it wants {odd[0]!r}"
        )
    return [each.name for each in parameters if each.name in _TAKES]
