"""Tiny ImageNet and ImageNet in their published folder layouts. They are never downloaded.

Neither has labels for its test images: the validation images are the test split, and validation is taken from training.
Classes are in the order of their WordNet ids, as in torchvision's pretrained networks.
"""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path

from sca_search.data import image_folder
from sca_search.data.dataset import DataRequest, DataSet
from sca_search.data.image_folder import CENTER, Parts, class_names, list_files
from sca_search.data.image_reader import ImageReader
from sca_search.errors import DataError
from sca_search.system.machine import cache_folder


@dataclass(frozen=True)
class ImageNet:
    """Where a data set is searched for below the data folder, and which files it must have."""

    folders: tuple[str, ...]  # the first that exists is used; else the data folder itself
    needed: tuple[str, ...]
    source: str
    size: int
    images: tuple[int, int]  # of the complete data set, in train and in val


IMAGENETS = {
    "tiny-imagenet": ImageNet(
        ("tiny-imagenet-200", "tiny-imagenet"),
        ("wnids.txt", "train", "val/val_annotations.txt", "val/images"),
        "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        64,
        (100_000, 10_000),
    ),
    "imagenet": ImageNet(
        ("imagenet", "ImageNet", "ILSVRC2012", "imagenet-1k"),
        ("train", "val"),
        "unpack the training and validation images of ILSVRC2012 from https://image-net.org/download (free, after "
        "registration) into train/CLASS and val/CLASS",
        224,
        (1_281_167, 50_000),
    ),
}


def load_imagenet(name: str, request: DataRequest) -> DataSet:
    """The data set from the requested data folder, or from the cache."""
    kind = IMAGENETS[name]
    path = _found(name, kind, request.data_dir or cache_folder())
    is_tiny = name == "tiny-imagenet"
    parts = _parts(path, is_tiny, request)
    center = image_folder.center_for(request) if is_tiny else CENTER
    reader = ImageReader(request.image_size or kind.size, 3, center)  # the few gray images are read as RGB
    data = image_folder.data_of_files(name, parts, reader, request)
    train, val = len(parts.train.paths) + len(parts.val.paths), len(parts.test.paths)
    if train + val + len(parts.train.left_out) + len(parts.test.left_out) >= sum(kind.images):
        return data
    # The copy is incomplete, which may be intended.
    found = "{}: {:,} of {}'s {:,} images in train, {:,} of {:,} in val"
    note = found.format(path, train, name, kind.images[0], val, kind.images[1])
    return replace(data, notes=(note, *data.notes))


def _found(name: str, kind: ImageNet, root: Path) -> Path:
    """The folder of the data set; DataError where a part of it is missing."""
    named = [root / folder for folder in kind.folders if (root / folder).is_dir()]
    path = named[0] if named else root
    missing = [part for part in kind.needed if not (path / part).exists()]
    if not named and len(missing) > 1:  # this folder is not the data set
        raise DataError(
            f"{root}: no copy of {name} there (looked for {', '.join(kind.folders)}), and it is not downloaded; "
            f"{kind.source} and give its folder, or the one around it, with --data-dir DIR"
        )
    if missing:
        raise DataError(f"{path}: the copy of {name} must be complete, {missing[0]} is missing; {kind.source}")
    return path


def _parts(path: Path, is_tiny: bool, request: DataRequest) -> Parts:
    classes = _tiny_classes(path) if is_tiny else class_names(path / "train")
    train = list_files(path / "train", classes, request)
    if is_tiny:
        _check_complete(path, classes, {*train.paths, *train.left_out})
        test = image_folder.readable_files(path / "val", _annotated(path, classes), classes, request)
    else:
        test = list_files(path / "val", classes, request)
    parts = Parts.of(path, train, None, test, classes, request)
    return replace(parts, classes=_in_words(path / ("words.txt" if is_tiny else "LOC_synset_mapping.txt"), classes))


def _tiny_classes(path: Path) -> tuple[str, ...]:
    classes = tuple(sorted(set(_lines(path / "wnids.txt"))))
    if len(classes) < 2:
        raise DataError(f"{path / 'wnids.txt'}: must name at least 2 classes, got {len(classes)}")
    found = {folder.name for folder in image_folder.subfolders(path / "train")}
    missing = [name for name in classes if name not in found]
    if missing:
        raise DataError(f"{path}: the copy of tiny-imagenet must be complete, train/{missing[0]} is missing")
    return classes


def _check_complete(path: Path, classes: tuple[str, ...], found: set[Path]) -> None:
    """DataError for a missing image: each class has a file of bounding boxes with one line per image."""
    for name in classes:
        boxes = path / "train" / name / f"{name}_boxes.txt"
        for line in _lines(boxes) if boxes.is_file() else ():
            file = path / "train" / name / "images" / line.split("\t")[0]
            if file not in found:
                raise DataError(
                    f"{path}: the copy of tiny-imagenet must be complete, {file.relative_to(path)} is missing, which "
                    f"{boxes.name} names"
                )


def _annotated(path: Path, classes: tuple[str, ...]) -> list[tuple[Path, int]]:
    """The validation images, from lines of file, class and a bounding box, which is not needed."""
    table, images = path / "val" / "val_annotations.txt", path / "val" / "images"
    number = {name: index for index, name in enumerate(classes)}
    present = {file.name for file in images.iterdir()}
    found = []
    for count, line in enumerate(_lines(table), start=1):
        file, _, rest = line.partition("\t")
        name = rest.split("\t")[0]
        if name not in number:
            raise DataError(f"{table}: line {count} must name a file and a class of wnids.txt, got {line!r}")
        if file not in present:
            raise DataError(f"{table}: every file that it names must be in {images}, {file} (line {count}) is not")
        found.append((images / file, number[name]))
    if not found:
        raise DataError(f"{table}: must name at least 1 image, it is empty")
    unnamed = sorted(name for name in present - {file.name for file, _ in found} if name.endswith(".JPEG"))
    if unnamed:
        raise DataError(f"{table}: must name every image of {images}, {unnamed[0]} is missing: is the file truncated?")
    return found


def _in_words(table: Path, ids: tuple[str, ...]) -> tuple[str, ...]:
    """The first word for each class, from lines of an id and its words; the id where there is none, and both where two
    classes have the same word, as ImageNet's two cranes."""
    if not table.is_file():
        return ids
    words = dict(line.split(maxsplit=1) for line in _lines(table) if len(line.split(maxsplit=1)) == 2)
    first = [words.get(each, each).split(",")[0].strip() or each for each in ids]
    count = Counter(first)
    return tuple(word if count[word] == 1 else f"{word} ({each})" for word, each in zip(first, ids, strict=True))


def _lines(file: Path) -> list[str]:
    try:
        return [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
    except UnicodeDecodeError:
        raise DataError(f"{file}: must be UTF-8 text, it is not") from None
