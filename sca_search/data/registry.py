"""Data sets by name.

digits, mnist, cifar10, cifar100        embedded, or archives
tiny-imagenet, imagenet                 folders of image files, where they are found
folder:PATH, npz:PATH, hf-disk:PATH     files
package.module:function, file.py:function    what a user's function gives
"""

from collections.abc import Callable
from pathlib import Path

from sca_search.config.names import DATA
from sca_search.config.references import is_reference
from sca_search.config.study import DataSpec
from sca_search.data.archives import ARCHIVES, load_archive
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.digits import load_digits
from sca_search.data.function import load_function
from sca_search.data.hf_disk import load_hf_disk
from sca_search.data.image_folder import load_folder
from sca_search.data.imagenet import IMAGENETS, load_imagenet
from sca_search.data.npz import load_npz
from sca_search.errors import DataError, LimitError, unknown_name
from sca_search.system.memory import oom_as_limit_error

_FILES: dict[str, Callable[[str, Path, DataRequest], DataSet]] = {
    "folder": load_folder,
    "npz": load_npz,
    "hf-disk": load_hf_disk,
}

IMAGE_FILES = tuple(kind.name for kind in IMAGENETS)

DATA_NAMES = (
    *(f"{name}PATH" if name.endswith(":") else name for name in DATA),
    "module:function",
    "file.py:function",
)


def check_data_name(name: str) -> None:
    """Refuse a name that nobody knows, without looking at any file."""
    prefix, colon, path = name.partition(":")
    if not colon:
        if name not in DATA_NAMES:
            raise DataError(unknown_name("data set", name, DATA_NAMES))
    elif prefix not in _FILES:
        if not is_reference(name):
            raise DataError(unknown_name("kind of data set", prefix, [*_FILES, "module:function", "file.py:function"]))
    elif not path:
        raise DataError(f"data set {name!r}: a path must follow the colon, got none")


def load_study_data(data: DataSpec, seed: int, *, check_test: bool = True) -> DataSet:
    """The data set that a study names."""
    request = DataRequest(
        seed,
        data.dir,
        data.image_size,
        data.train_limit,
        data.normalise,
        data.columns,
        data.augment,
        data.skip_unreadable,
        check_test,
    )
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

    `data_dir` holds mnist and cifar, or receives them, and has the folders of tiny-imagenet and imagenet; the cache by
    default. `image_size` resizes every image to a square, by default to the images' own size, to 64 for folders and to
    224 for imagenet. `train_limit` keeps that
    many stratified training images. Without `normalise`, inputs and targets stay as they are.
    """
    return _loaded(name, DataRequest(seed, data_dir, image_size, train_limit, normalise))


def _loaded(name: str, request: DataRequest) -> DataSet:
    check_data_name(name)
    for option, value in (("image size", request.image_size), ("train limit", request.train_limit)):
        if value is not None and value < 1:
            raise DataError(f"data set {name!r}: {option} must be at least 1, got {value}")
    try:
        with oom_as_limit_error():
            return _load(name, request)
    except LimitError as error:
        raise DataError(f"data set {name!r}: must fit into this machine's memory, it {error}") from error
    except OSError as error:
        raise DataError(f"data set {name!r}: must be readable, got: {error}") from None


def _load(name: str, request: DataRequest) -> DataSet:
    prefix, colon, path = name.partition(":")
    if request.columns and prefix != "hf-disk":
        raise DataError(f"data set {name!r}: columns are named of hf-disk:PATH only, got {', '.join(request.columns)}")
    if request.skip_unreadable and name not in IMAGE_FILES and prefix != "folder":
        raise DataError(f"data set {name!r}: unreadable files are left out of {', '.join(IMAGE_FILES)} and folder:PATH")
    if prefix in _FILES:
        return _FILES[prefix](name, Path(path).expanduser(), request)
    if colon:
        return load_function(name, request)
    for archive in ARCHIVES:
        if archive.name == name:
            return load_archive(archive, request)
    for kind in IMAGENETS:
        if kind.name == name:
            return load_imagenet(kind, request)
    return load_digits(request)
