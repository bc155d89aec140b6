"""A folder of image files, one subfolder a class.

Either PATH/train, PATH/test and optionally PATH/val each hold the class folders, or PATH holds them
directly and all three splits are carved from it.
"""

from pathlib import Path

from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.image_files import MEMORY_BYTES, Files, Parts, as_asked, data_of_files
from sca_search.data.image_reader import ImageReader, is_grey
from sca_search.data.stratify import TEST_SEED, carve, carve_val, require_every_class, share_of
from sca_search.errors import DataError

_DEFAULT_SIZE = 64
TEST_SHARE = 0.2
# As ImageNet's networks are trained and tested: parts of any size in training, and 224 of 256 pixels afterwards.
CENTRE = 224 / 256
_SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}

# Files whose headers decide between grey and colour; more would make a large folder slow to open.
_SAMPLE_MODES = 32


def load_folder(name: str, path: Path, request: DataRequest, *, memory_bytes: int = MEMORY_BYTES) -> DataSet:
    """The data set in `path`, in memory where it fits into `memory_bytes`."""
    if not path.is_dir():
        raise DataError(f"{path}: the data folder must exist, there is none")
    parts = _divided(path, request) if _is_divided(path) else _carved(path, request)
    channels = 1 if all(map(is_grey, parts.train.spread(_SAMPLE_MODES))) else 3
    reader = ImageReader(request.image_size or _DEFAULT_SIZE, channels, centre_for(request))
    return data_of_files(name, parts, reader, request, memory_bytes)


def centre_for(request: DataRequest) -> float:
    """How much of an image's shorter side is looked at: less of it where training sees parts, enlarged."""
    return CENTRE if request.augment == "scale-aspect" else 1.0


def _is_divided(path: Path) -> bool:
    """Whether PATH/train is a split; a class may be called "train" too, but then it has no folders in it."""
    train = path / "train"
    if not train.is_dir() or not subfolders(train):
        return False
    if not (path / "test").is_dir():
        raise DataError(f"{path}: a folder with train must have test beside it, there is none")
    return True


def _divided(path: Path, request: DataRequest) -> Parts:
    classes = class_names(path / "train")
    train, test = (list_files(path / part, classes, request) for part in ("train", "test"))
    if (path / "val").is_dir():
        val = list_files(path / "val", classes, request)
        return Parts(train, val, test, classes, train.left_out + val.left_out, test.left_out)
    return with_carved_val(path, train, test, classes, request)


def with_carved_val(path: Path, train: Files, test: Files, classes: tuple[str, ...], request: DataRequest) -> Parts:
    """Three splits of two."""
    val, kept = carve_val(train.labels, request.seed)
    require_every_class(str(path), train.labels[kept], classes)
    return Parts(train.take(kept), train.take(val), test, classes, train.left_out, test.left_out)


def _carved(path: Path, request: DataRequest) -> Parts:
    classes = class_names(path)
    files = list_files(path, classes, request)
    test, others = carve(files.labels, share_of(len(files.paths), TEST_SHARE), TEST_SEED)
    val, train = carve_val(files.labels[others], request.seed)
    require_every_class(str(path), files.labels[others[train]], classes)
    return Parts(files.take(others[train]), files.take(others[val]), files.take(test), classes, files.left_out)


def class_names(path: Path) -> tuple[str, ...]:
    """The folders in a folder, in order."""
    names = tuple(folder.name for folder in subfolders(path))
    if len(names) < 2:
        raise DataError(f"{path}: at least 2 class folders are required, got {len(names)}")
    return names


def list_files(path: Path, classes: tuple[str, ...], request: DataRequest) -> Files:
    """All images under the class folders, in the order of their names."""
    folders, number = subfolders(path), {name: place for place, name in enumerate(classes)}
    found = {folder.name for folder in folders}
    if not found:
        raise DataError(f"{path}: images must lie in a folder for each class of training, there is none")
    differing = sorted(found.symmetric_difference(classes))
    if differing:
        what = "got {!r} besides" if differing[0] in found else "{!r} is missing"
        raise DataError(f"{path}: class folders must be those of training, {what.format(differing[0])}")
    files = [(file, number[folder.name]) for folder in folders for file in images_in(folder)]
    return as_asked(path, Files.of(files), classes, request)


def images_in(folder: Path) -> list[Path]:
    """All images below a folder, in the order of their names."""
    files = [path for path in sorted(folder.rglob("*")) if path.suffix.lower() in _SUFFIXES and path.is_file()]
    if not files:
        raise DataError(
            f"{folder}: a class folder must hold at least 1 image ({', '.join(sorted(_SUFFIXES))}), got none"
        )
    return files


def subfolders(path: Path) -> list[Path]:
    """The folders in a folder, in the order of their names."""
    return sorted(entry for entry in path.iterdir() if entry.is_dir() and not entry.name.startswith("."))
