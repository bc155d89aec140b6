"""Tiny ImageNet and ImageNet in the folders that they come in, whole and not; files that cannot be read."""

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sca_search.config.study import DataSpec
from sca_search.data import LazySplit, Split, load_data, load_study_data
from sca_search.data.dataset import DataRequest
from sca_search.data.imagenet import load_imagenet
from sca_search.errors import DataError
from tests.support.real_layouts import WNIDS, jpeg, write_imagenet, write_mnist, write_tiny_imagenet


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    return write_tiny_imagenet(tmp_path)


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    return write_imagenet(tmp_path)


def load(name: str, folder: Path, **settings: object):  # type: ignore[no-untyped-def]
    return load_study_data(DataSpec(name=name, dir=folder, **settings), 0)


def test_tiny_imagenet_is_read_in_its_own_layout(tiny: Path) -> None:
    data = load("tiny-imagenet", tiny.parent)
    assert (data.name, data.input_shape) == ("tiny-imagenet", (3, 64, 64))
    assert data.classes == ("goldfish", "crane (n02)", "crane (n03)")  # by id; both cranes are told apart
    assert (len(data.train), len(data.val)) == (27, 3)  # a tenth of the training images
    assert data.val.labels.tolist() == [0, 1, 2]
    test = data.read_test()
    assert test.labels.tolist() == [2, 0, 1, 2, 0, 1]  # as the annotations say
    with Image.open(tiny / "val" / "images" / "val_1.JPEG") as image:
        pixels = np.asarray(image, dtype=np.float32).transpose(2, 0, 1) / 255
    shown = test.images[1] * torch.tensor(data.input.std).view(3, 1, 1) + torch.tensor(data.input.mean).view(3, 1, 1)
    np.testing.assert_allclose(shown.numpy(), pixels, atol=1e-5)


def test_tiny_imagenet_itself_may_be_the_data_folder_and_words_may_be_missing(tiny: Path) -> None:
    (tiny / "words.txt").unlink()
    assert load("tiny-imagenet", tiny).classes == ("n01", "n02", "n03")


def test_tiny_imagenet_too_large_for_memory_is_read_when_due(tiny: Path) -> None:
    kind = "tiny-imagenet"
    request = DataRequest(seed=0, data_dir=tiny.parent, image_size=16, train_limit=12, augment="crop-flip")
    held = load_imagenet(kind, request)
    lazy = load_imagenet(kind, replace(request, memory_bytes=1000)).augmented_by("crop-flip")
    assert isinstance(lazy.train, LazySplit)
    assert isinstance(lazy.val, LazySplit)
    assert lazy.train.labels.tolist() == held.train.labels.tolist()
    assert torch.bincount(lazy.train.labels).tolist() == [4, 4, 4]
    # Moved and mirrored alike, whether they are in memory or come from files.
    for mine, theirs in zip(
        lazy.training.batches(5, seed=1), held.augmented_by("crop-flip").training.batches(5, seed=1), strict=True
    ):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)


def test_imagenet_is_read_from_folders_of_classes(imagenet: Path) -> None:
    (imagenet / "LOC_synset_mapping.txt").write_text("n01 tench, Tinca tinca\nn02 goldfish, Carassius auratus\n")
    data = load("imagenet", imagenet.parent, augment="scale-aspect")
    assert (data.input_shape, data.classes) == ((3, 224, 224), ("tench", "goldfish"))
    assert (len(data.train), len(data.val)) == (18, 2)
    assert data.read_test().labels.tolist() == [0, 0, 0, 1, 1, 1]
    images, _ = next(iter(data.training.batches(4, seed=0)))
    assert images.shape == (4, 3, 224, 224)


def test_imagenet_looks_at_224_of_256_pixels_whatever_is_done_in_training(imagenet: Path) -> None:
    data = load("imagenet", imagenet, image_size=28)
    test = data.read_test()
    assert isinstance(test, Split)
    with Image.open(imagenet / "val" / "n01" / "ILSVRC2012_val_n010.JPEG") as image:
        # 40 x 50 to 32 x 40 by the shorter side, of which 28 x 28 in the middle.
        expected = np.asarray(image.resize((32, 40), Image.Resampling.BILINEAR))[6:34, 2:30].transpose(2, 0, 1) / 255
    shown = test.images[0] * torch.tensor(data.input.std).view(3, 1, 1) + torch.tensor(data.input.mean).view(3, 1, 1)
    np.testing.assert_allclose(shown.numpy(), expected, atol=1.5 / 255)


# What is not whole


@pytest.mark.parametrize(
    ("name", "source"),
    [("tiny-imagenet", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"), ("imagenet", "image-net.org/download")],
)
def test_imagenets_are_not_downloaded_and_it_is_said_where_they_are(tmp_path: Path, name: str, source: str) -> None:
    with pytest.raises(DataError) as caught:
        load(name, tmp_path)
    sentence = str(caught.value)
    assert sentence.startswith(f"{tmp_path}: no copy of {name} there (looked for ")
    assert source in sentence
    assert "--data-dir DIR" in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize("part", ["wnids.txt", "val/val_annotations.txt"])
def test_tiny_imagenet_without_a_part_names_it(tiny: Path, part: str) -> None:
    (tiny / part).unlink()
    with pytest.raises(
        DataError, match=f"{tiny}: the copy of tiny-imagenet must be complete, {part} is missing; unpack"
    ):
        load("tiny-imagenet", tiny.parent)


def without_class(root: Path) -> str:
    (root / "train" / "n02").rename(root / "n02")
    return f"{root}: the copy of tiny-imagenet must be complete, train/n02 is missing"


def without_image(root: Path) -> str:
    (root / "train" / "n02" / "images" / "n02_7.JPEG").unlink()
    return (
        f"{root}: the copy of tiny-imagenet must be complete, train/n02/images/n02_7.JPEG is missing, which "
        "n02_boxes.txt names"
    )


def with_another_class(root: Path) -> str:
    jpeg(root / "train" / "n77" / "images" / "n77_0.JPEG", 0)
    return f"{root / 'train'}: class folders must be those of training, got 'n77' besides"


def without_val_image(root: Path) -> str:
    (root / "val" / "images" / "val_4.JPEG").unlink()
    table = root / "val" / "val_annotations.txt"
    return f"{table}: every file that it names must be in {root / 'val' / 'images'}, val_4.JPEG (line 5) is not"


def with_unknown_class(root: Path) -> str:
    table = root / "val" / "val_annotations.txt"
    table.write_text("val_0.JPEG\tn05\t0\t0\t1\t1\n")
    return f"{table}: line 1 must name a file and a class of wnids.txt, got 'val_0.JPEG\\tn05\\t0\\t0\\t1\\t1'"


def with_cut_line(root: Path) -> str:
    table = root / "val" / "val_annotations.txt"
    table.write_text(table.read_text() + "val_0.J")
    return f"{table}: line 7 must name a file and a class of wnids.txt, got 'val_0.J'"


def with_annotations_cut_between_lines(root: Path) -> str:
    table = root / "val" / "val_annotations.txt"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:3]))
    (root / "val" / "images" / "Thumbs.db").write_text("no image")
    return f"{table}: must name every image of {root / 'val' / 'images'}, val_3.JPEG is missing"


def with_empty_annotations(root: Path) -> str:
    (root / "val" / "val_annotations.txt").write_text("\n")
    return f"{root / 'val' / 'val_annotations.txt'}: must name at least 1 image, it is empty"


def with_one_class(root: Path) -> str:
    (root / "wnids.txt").write_text("n01\n")
    return f"{root / 'wnids.txt'}: must name at least 2 classes, got 1"


def with_no_text(root: Path) -> str:
    (root / "wnids.txt").write_bytes(b"\xff\xfe\x00")
    return f"{root / 'wnids.txt'}: must be UTF-8 text, it is not"


def with_too_few(root: Path) -> str:
    for number in range(1, 10):
        (root / "train" / "n02" / "images" / f"n02_{number}.JPEG").unlink()
        (root / "train" / "n03" / "images" / f"n03_{number}.JPEG").unlink()
    for wnid in WNIDS:
        (root / "train" / wnid / f"{wnid}_boxes.txt").unlink()
    (root / "train" / "n01").rename(root / "n01")
    (root / "wnids.txt").write_text("n02\nn03\n")
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t0\t1\t1\n")
    for number in range(1, 6):
        (root / "val" / "images" / f"val_{number}.JPEG").unlink()
    return f"{root}: every class must keep an example for training after validation and test examples are set apart"


@pytest.mark.parametrize(
    "broken",
    [
        without_class,
        without_image,
        with_another_class,
        without_val_image,
        with_unknown_class,
        with_cut_line,
        with_annotations_cut_between_lines,
        with_empty_annotations,
        with_one_class,
        with_no_text,
        with_too_few,
    ],
)
def test_tiny_imagenet_that_is_not_in_order_is_rejected(tiny: Path, broken: Callable[[Path], str]) -> None:
    expected = broken(tiny)
    with pytest.raises(DataError) as caught:
        load("tiny-imagenet", tiny.parent)
    assert str(caught.value).startswith(expected)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("part", "wnid", "told"), [("train", "n00", "'n00' is missing"), ("val", "n05", "got 'n05' besides")]
)
def test_imagenet_with_other_classes_in_val_names_the_first(imagenet: Path, part: str, wnid: str, told: str) -> None:
    jpeg(imagenet / part / wnid / "one.JPEG", 0)
    jpeg(imagenet / part / "n99" / "one.JPEG", 0)
    with pytest.raises(DataError) as caught:
        load("imagenet", imagenet.parent)
    assert str(caught.value) == f"{imagenet / 'val'}: class folders must be those of training, {told}"


def test_a_part_of_a_data_set_is_told(imagenet: Path, tiny: Path) -> None:
    """They may have been copied so, or have been downloaded half."""
    told = "{}: {} of {}'s {} images in train, {} of {} in val"
    assert load("imagenet", imagenet).notes == (told.format(imagenet, 20, "imagenet", "1,281,167", 6, "50,000"),)
    assert load("tiny-imagenet", tiny).notes == (told.format(tiny, 30, "tiny-imagenet", "100,000", 6, "10,000"),)


def test_imagenet_with_a_flat_val_or_none_is_rejected(imagenet: Path) -> None:
    (imagenet / "val").rename(imagenet / "old")
    with pytest.raises(DataError, match="the copy of imagenet must be complete, val is missing"):
        load("imagenet", imagenet.parent)
    jpeg(imagenet / "val" / "ILSVRC2012_val_00000001.JPEG", 0)
    with pytest.raises(DataError, match="val: must have a folder for each class of training, there is none"):
        load("imagenet", imagenet.parent)


def test_mnist_with_a_part_missing_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    write_mnist(tmp_path)
    (tmp_path / "MNIST/raw/t10k-labels-idx1-ubyte").unlink()
    expected = (
        r"the copy of mnist must be complete, MNIST/raw/t10k-labels-idx1-ubyte is missing, and the download failed"
    )
    with pytest.raises(DataError, match=expected):
        load_data("mnist", data_dir=tmp_path, seed=0)


@pytest.mark.parametrize(
    ("name", "file"), [("cifar10", "cifar-10-python.tar.gz"), ("mnist", "MNIST/raw/train-images-idx3-ubyte.gz")]
)
def test_an_archive_that_is_another_is_rejected_with_its_md5(tmp_path: Path, name: str, file: str) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text("abc")  # of which RFC 1321 gives the MD5
    with pytest.raises(DataError) as caught:
        load_data(name, data_dir=tmp_path, seed=0)
    sentence = str(caught.value)
    assert sentence.startswith(f"{tmp_path / file}: the archive of {name} must have the MD5 ")
    assert sentence.endswith("this one has 900150983cd24fb0d6963f7d28e17f72; delete it to download it again")


# Files that cannot be read


def cut(path: Path) -> Path:
    """Half of a file: its header can be read, its pixels cannot."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def test_unreadable_images_are_rejected_by_name_and_left_out_only_if_asked(tiny: Path) -> None:
    broken = [
        cut(tiny / "train" / "n01" / "images" / "n01_0.JPEG"),
        tiny / "train" / "n02" / "images" / "n02_5.JPEG",
        cut(tiny / "val" / "images" / "val_2.JPEG"),
    ]
    broken[1].write_text("no image")
    with pytest.raises(DataError, match=r"JPEG: every image must be readable, this one is not .*; --skip-unreadable"):
        load("tiny-imagenet", tiny.parent)
    data = load("tiny-imagenet", tiny.parent, skip_unreadable=True)
    assert data.notes[1:] == (f"3 unreadable images are left out, the first {broken[0]}",)
    assert (len(data.train) + len(data.val), len(data.read_test())) == (28, 5)
    counts = torch.bincount(torch.cat([data.train.labels, data.val.labels]))
    assert counts.tolist() == [9, 9, 10]


def test_one_unreadable_image_of_a_folder_is_said(imagenet: Path) -> None:
    broken = cut(imagenet / "train" / "n01" / "n01_4.JPEG")
    data = load(f"folder:{imagenet / 'train'}", imagenet, skip_unreadable=True, image_size=8)
    assert data.notes == (f"1 unreadable image is left out, {broken}",)
    whole = load(f"folder:{imagenet / 'val'}", imagenet, skip_unreadable=True, image_size=8)
    assert whole.notes == ()


def test_a_class_without_a_readable_image_is_rejected(imagenet: Path) -> None:
    for number in range(3):
        cut(imagenet / "val" / "n02" / f"ILSVRC2012_val_n02{number}.JPEG")
    with pytest.raises(DataError) as caught:
        load("imagenet", imagenet.parent, skip_unreadable=True)
    assert str(caught.value) == (
        f"{imagenet / 'val'}: every class must keep an image where unreadable ones are left out, 'n02' has none"
    )


def test_what_has_no_image_files_leaves_none_out() -> None:
    with pytest.raises(DataError) as caught:
        load_study_data(DataSpec(skip_unreadable=True), 0)
    assert str(caught.value) == (
        "data set 'digits': unreadable files can be skipped in tiny-imagenet, imagenet and folder:PATH only"
    )
