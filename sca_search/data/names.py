"""Data sets by name."""

from pathlib import Path

from sca_search.data.archives import ARCHIVES, load_archive
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.digits import load_digits
from sca_search.data.folder import load_folder
from sca_search.data.npz import load_npz
from sca_search.errors import DataError, unknown_name
from sca_search.spec import DataSpec

_PREFIXES = ("folder", "npz")

DATA_NAMES = ("digits", *(archive.name for archive in ARCHIVES), *(f"{prefix}:PATH" for prefix in _PREFIXES))


def check_data_name(name: str) -> None:
    """Refuse a name that nobody knows, without looking at any file."""
    prefix, colon, path = name.partition(":")
    if not colon:
        if name not in DATA_NAMES:
            raise DataError(unknown_name("data set", name, DATA_NAMES))
    elif prefix not in _PREFIXES:
        raise DataError(unknown_name("kind of data set", prefix, _PREFIXES))
    elif not path:
        raise DataError(f"data set {name!r}: a path must follow the colon, got none")


def load_study_data(data: DataSpec, seed: int) -> DataSet:
    """The data set that a study names."""
    return load_data(data.name, data_dir=data.dir, seed=seed, image_size=data.image_size, train_limit=data.train_limit)


def load_data(
    name: str,
    *,
    data_dir: Path | None = None,
    seed: int,
    image_size: int | None = None,
    train_limit: int | None = None,
) -> DataSet:
    """The data set of that name (see DATA_NAMES).

    `data_dir` holds mnist and cifar, or receives them; the cache by default. `image_size` resizes every
    image to a square, by default to the images' own size, and to 64 for folders. `train_limit` keeps that
    many stratified training images.
    """
    check_data_name(name)
    for option, value in (("image size", image_size), ("train limit", train_limit)):
        if value is not None and value < 1:
            raise DataError(f"data set {name!r}: {option} must be at least 1, got {value}")
    request = DataRequest(seed, data_dir, image_size, train_limit)
    try:
        return _load(name, request)
    except OSError as error:
        raise DataError(f"data set {name!r}: must be readable, got: {error}") from None


def _load(name: str, request: DataRequest) -> DataSet:
    prefix, _, path = name.partition(":")
    if prefix == "folder":
        return load_folder(name, Path(path).expanduser(), request)
    if prefix == "npz":
        return load_npz(name, Path(path).expanduser(), request)
    for archive in ARCHIVES:
        if archive.name == name:
            return load_archive(archive, request)
    return load_digits(request)
