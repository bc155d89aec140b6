"""Data sets by name.

digits, mnist, cifar10, cifar100        embedded, or archives
tiny-imagenet, imagenet                 folders of image files
folder:PATH, npz:PATH, hf-disk:PATH     files
package.module:function, file.py:function    the user's function

A new source is one module with a loader, and one entry in config.names.DATA.
"""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from sca_search.config.names import DATA
from sca_search.config.references import is_reference
from sca_search.config.study import DataSpec
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.imagenet import IMAGENETS
from sca_search.data.user import load_function
from sca_search.errors import DataError, LimitError, unknown_name
from sca_search.system.memory import oom_as_limit_error

IMAGE_FILES = tuple(IMAGENETS)

_PREFIXES = tuple(name.rstrip(":") for name in DATA if name.endswith(":"))
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
            raise DataError(unknown_name("kind of data set", prefix, [*_PREFIXES, *_FUNCTIONS]))
    elif not path:
        raise DataError(f"data set {name!r}: a path must follow the colon, got none")


def load_study_data(data: DataSpec, seed: int, *, check_test: bool = True) -> DataSet:
    """The data set of a study."""
    settings = data.model_dump(exclude={"name", "dir"})
    request = DataRequest(seed, data.dir, **settings, check_test=check_test)
    return _loaded(data.name, request).augmented_by(data.augment)


def load_data(
    name: str,
    *,
    data_dir: Path | None = None,
    seed: int,
    image_size: int | None = None,
    train_limit: int | None = None,
    normalise: bool = True,
) -> DataSet:
    """The data set of that name (see DATA_NAMES).

    `data_dir` contains the local copies (default: the cache, where mnist and cifar are downloaded to). `image_size`
    resizes every image to a square; default: the images' own size, 64 for folders, 224 for imagenet. `train_limit`
    limits the number of training images, stratified. Without `normalise`, inputs and targets are unchanged.
    """
    return _loaded(name, DataRequest(seed, data_dir, image_size, train_limit, normalise))


def _loaded(name: str, request: DataRequest) -> DataSet:
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
            if f"{prefix}:" in DATA:
                return _loader(f"{prefix}:")(name, Path(path).expanduser(), request)
            return load_function(name, request) if colon else _loader(name)(name, request)
    except LimitError as error:
        raise DataError(f"data set {name!r}: must fit into this machine's memory, it {error}") from error
    except OSError as error:
        raise DataError(f"data set {name!r}: must be readable, got: {error}") from None


def _loader(key: str) -> Callable[..., DataSet]:
    """(name, request) -> data set for a name, (name, path, request) -> data set for a prefix."""
    module, _, function = DATA[key].partition(".")
    loader: Callable[..., DataSet] = getattr(import_module(f"sca_search.data.{module}"), function)
    return loader
