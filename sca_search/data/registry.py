"""Data sets by name.

digits, mnist, cifar10, cifar100        embedded, or archives
tiny-imagenet, imagenet                 folders of image files
folder:PATH, npz:PATH, hf-disk:PATH     files
package.module:function, file.py:function    the user's function

A new source is one module with a loader, and one entry in config.names.DATA.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from sca_search.config.names import DATA
from sca_search.config.references import expand_home, is_reference
from sca_search.config.study import DataSpec
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.imagenet import IMAGENETS
from sca_search.data.user import load_function
from sca_search.errors import DataError, LimitError, unknown_name
from sca_search.system.machine import oom_as_limit_error

IMAGE_FILES = tuple(IMAGENETS)

_FUNCTIONS = ("module:function", "file.py:function")
DATA_NAMES = (*(f"{name}PATH" if name.endswith(":") else name for name in DATA), *_FUNCTIONS)


def check_data_name(name: str) -> None:
    """DataError for an unknown name, without accessing any file."""
    prefix, colon, path = name.partition(":")
    if not colon:
        if name not in DATA:
            raise DataError(unknown_name("data set", name, DATA_NAMES))
    elif f"{prefix}:" not in DATA:
        if not is_reference(name):
            prefixes = [known.rstrip(":") for known in DATA if known.endswith(":")]
            raise DataError(unknown_name("kind of data set", prefix, [*prefixes, *_FUNCTIONS]))
    elif not path:
        raise DataError(f"data set {name!r}: a path must follow the colon, got none")


def load_study_data(data: DataSpec, seed: int, *, check_test: bool = True) -> DataSet:
    """The data set of a study."""
    settings = data.model_dump(exclude={"name", "dir"})
    found = load_data(data.name, seed=seed, data_dir=data.dir, check_test=check_test, **settings)
    return found.augmented_by(data.augment)


def load_data(name: str, **settings: Any) -> DataSet:
    """The data set of that name (see DATA_NAMES), with the settings of a DataRequest."""
    request = DataRequest(**settings)
    check_data_name(name)
    prefix, colon, path = name.partition(":")
    for option, value in (("image size", request.image_size), ("train limit", request.train_limit)):
        if value is not None and value < 1:
            raise DataError(f"data set {name!r}: {option} must be at least 1, got {value}")
    if request.columns and prefix != "hf-disk":
        raise DataError(f"data set {name!r}: only hf-disk:PATH has named columns, got {', '.join(request.columns)}")
    if request.skip_unreadable and name not in IMAGE_FILES and prefix != "folder":
        raise DataError(
            f"data set {name!r}: unreadable files can be skipped in {', '.join(IMAGE_FILES)} and folder:PATH only"
        )
    try:
        with oom_as_limit_error():
            if colon and f"{prefix}:" not in DATA:
                return load_function(name, request)
            module, _, function = DATA[prefix + colon].partition(".")
            loader: Callable[..., DataSet] = getattr(import_module(f"sca_search.data.{module}"), function)
            # the loader of a prefix also takes the path
            return loader(name, expand_home(path), request) if colon else loader(name, request)
    except LimitError as error:
        raise DataError(f"data set {name!r}: must fit into this machine's memory, it {error}") from error
    except OSError as error:
        raise DataError(f"data set {name!r}: must be readable, got: {error}") from None
