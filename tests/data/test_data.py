"""Splits, batches, carving, names, and the data sets that lie in archives."""

import importlib
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_digits

from sca_search.data import DATA_NAMES, DataSet, Split, check_data_name, load_data
from sca_search.data.archives import Copy, load_archive
from sca_search.data.arrays import Arrays, fit_size
from sca_search.data.dataset import DataRequest, channel_statistics
from sca_search.data.download import fetch_files
from sca_search.data.targets import carve, limit_rows, require_every_class, stratified_order
from sca_search.errors import DataError, StorageError
from sca_search.system.machine import cache_folder
from sca_search.system.torchvision import patch_torchvision
from tests.support.real_layouts import write_cifar_batches, write_mnist, write_mnist_part


def numbered(count: int) -> Split:
    """Image i is one pixel of value i, with label i."""
    return Split(torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1), torch.arange(count))


def labels_of(split: Split, size: int, seed: int | None = None) -> list[list[int]]:
    return [labels.tolist() for _, labels in split.batches(size, seed=seed)]


# Batches


def test_batches_without_seed_keep_order_and_the_last_partial_one() -> None:
    batches = numbered(5).batches(2)
    assert len(batches) == 3
    assert [labels.tolist() for _, labels in batches] == [[0, 1], [2, 3], [4]]
    assert [images.flatten().tolist() for images, _ in batches] == [[0, 1], [2, 3], [4]]


def test_batches_shuffled_leave_out_a_last_one_of_one_image() -> None:
    assert [len(labels) for labels in labels_of(numbered(5), 2, seed=0)] == [2, 2]
    assert [len(labels) for labels in labels_of(numbered(6), 4, seed=0)] == [4, 2]
    assert len(numbered(5).batches(2, seed=0)) == 2
    # Asked for one by one, none is a leftover.
    assert len(labels_of(numbered(3), 1, seed=0)) == 3


@given(count=st.integers(1, 60), size=st.integers(1, 20), seed=st.integers(0, 99))
def test_batches_deliver_every_image_once_an_epoch(count: int, size: int, seed: int) -> None:
    batches = numbered(count).batches(size, seed=seed)
    dropped = 1 if size > 1 and count % size == 1 else 0
    for _ in range(2):
        epoch = list(batches)
        seen = [label for _, labels in epoch for label in labels.tolist()]
        assert len(set(seen)) == len(seen) == count - dropped
        assert seen == [pixel for images, _ in epoch for pixel in images.flatten().tolist()]


def test_batches_of_one_seed_repeat_and_epochs_differ() -> None:
    first, second = numbered(50).batches(8, seed=3), numbered(50).batches(8, seed=3)
    epochs = [[labels.tolist() for _, labels in first] for _ in range(3)]
    assert epochs == [[labels.tolist() for _, labels in second] for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != labels_of(numbered(50), 8, seed=4)


def test_batches_set_epoch_resumes_with_the_order_of_that_epoch() -> None:
    whole, resumed = numbered(50).batches(8, seed=3), numbered(50).batches(8, seed=3)
    epochs = [[labels.tolist() for _, labels in whole] for _ in range(4)]
    resumed.set_epoch(2)
    assert [[labels.tolist() for _, labels in resumed] for _ in range(2)] == epochs[2:]


def test_batches_do_not_count_an_iterator_that_nothing_is_taken_from() -> None:
    batches = numbered(50).batches(8, seed=3)
    iter(batches)
    assert [labels.tolist() for _, labels in batches] == labels_of(numbered(50), 8, seed=3)


def test_batches_leave_the_global_generators_alone() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    labels_of(numbered(20), 4, seed=1)
    assert torch.equal(before, torch.get_rng_state())


def test_batches_of_no_image_are_rejected() -> None:
    with pytest.raises(ValueError, match="batch size must be at least 1, got 0"):
        numbered(3).batches(0)


# Carving

labels_lists = st.lists(st.integers(0, 4), min_size=1, max_size=120).map(np.array)


@given(labels=labels_lists, share=st.floats(0, 1), seed=st.integers(0, 99))
def test_carve_is_disjoint_complete_and_stratified(labels: np.ndarray, share: float, seed: int) -> None:
    count = round(share * len(labels))
    taken, others = carve(labels, count, seed)
    assert len(taken) == count
    assert sorted([*taken, *others]) == list(range(len(labels)))
    sizes, part = np.bincount(labels), np.bincount(labels[taken], minlength=labels.max() + 1)
    # Each class may be half a row off, and their sum, the count, shifts all of them together.
    allowed = 0.5 + sizes * np.count_nonzero(sizes) / (2 * len(labels))
    assert (np.abs(part - sizes * count / len(labels)) <= allowed + 1e-9).all()


def test_stratified_order_of_two_even_classes_alternates() -> None:
    labels = np.array([0] * 6 + [1] * 6)
    pairs = labels[stratified_order(labels, 0)].reshape(6, 2)
    assert (np.sort(pairs, axis=1) == [0, 1]).all()


def test_carve_leaves_the_only_row_of_a_rare_class() -> None:
    labels = np.array([0] * 50 + [1] + [2] * 50 + [3])
    for seed in range(20):
        _, others = carve(labels, 30, seed)
        assert {50, 101} <= set(others.tolist())


def test_limit_rows_of_a_smaller_limit_are_a_subset() -> None:
    labels = np.arange(90) % 3
    few, more = limit_rows(labels, 9, 7), limit_rows(labels, 30, 7)
    assert set(few.tolist()) < set(more.tolist())
    assert np.bincount(labels[few]).tolist() == [3, 3, 3]
    assert limit_rows(labels, 900, 7).tolist() == limit_rows(labels, None, 7).tolist() == list(range(90))


def test_require_every_class_names_the_class_that_is_gone() -> None:
    with pytest.raises(DataError, match=r"set/a: every class must keep an example .* class 'dog' has too few"):
        require_every_class("set/a", np.array([0, 2]), ("cat", "dog", "owl"))


# Arrays and statistics


def test_split_of_arrays_scales_bytes_and_puts_channels_first() -> None:
    images = np.random.default_rng(0).integers(0, 256, (7, 4, 5, 3), dtype=np.uint8)
    split = Arrays("set", images, np.arange(7)).split(None, np.array([6, 2]))
    assert split.image_shape == (3, 4, 5)
    assert split.labels.tolist() == [6, 2]
    np.testing.assert_allclose(split.images.numpy(), images[[6, 2]].transpose(0, 3, 1, 2) / 255, rtol=1e-6)


def test_fit_size_halves_the_shorter_side_and_cuts_the_center() -> None:
    # 2 x 8 to 1 x 1: columns 0..7 become 4 means of 2 x 2 blocks, of which the middle two are candidates.
    wide = torch.tensor([[0.0, 0, 1, 1, 2, 2, 3, 3]]).repeat(2, 1).view(1, 1, 2, 8)
    assert fit_size(wide, 2).tolist() == [[[[1, 2], [1, 2]]]]
    assert fit_size(torch.full((1, 2, 5, 9), 0.25), 3).shape == (1, 2, 3, 3)


def test_channel_statistics_agree_with_numpy_over_parts_of_different_length() -> None:
    images = np.random.default_rng(0).normal(100, [[[0.5]], [[7.0]]], (11, 2, 3, 4))
    mean, std = channel_statistics(torch.split(torch.from_numpy(images), 4))
    np.testing.assert_allclose(mean, images.mean((0, 2, 3)), rtol=1e-12)
    np.testing.assert_allclose(std, images.std((0, 2, 3)), rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 0.1, -3e4])
def test_channel_statistics_of_a_constant_channel_have_spread_one(value: float) -> None:
    _, std = channel_statistics([torch.full((5, 1, 3, 3), value)])
    assert std == (1.0,)


# Digits


def rows_in(split: Split, data: DataSet) -> list[int]:
    """Which of scikit-learn's digits a split holds, told by their pixels."""
    known = {image.astype(np.int64).tobytes(): row for row, image in enumerate(load_digits().images)}
    pixels = split.images[:, 0].numpy() * data.input.std[0] + data.input.mean[0]
    return [known[np.rint(image * 16).astype(np.int64).tobytes()] for image in pixels]


def test_digits_divide_all_images_between_three_splits() -> None:
    data = load_data("digits", seed=1)
    parts = [rows_in(split, data) for split in (data.train, data.val, data.read_test())]
    assert [len(part) for part in parts] == [1077, 270, 450]
    assert sorted(row for part in parts for row in part) == list(range(1797))
    assert data.train.labels.tolist() == load_digits().target[parts[0]].tolist()
    assert (data.num_classes, data.input_shape, data.classes[9]) == (10, (1, 8, 8), "9")


def test_digits_are_normalized_by_the_training_split() -> None:
    data = load_data("digits", seed=1)
    pixels = load_digits().images[rows_in(data.train, data)] / 16
    assert data.input.mean == pytest.approx((pixels.mean(),))
    assert data.input.std == pytest.approx((pixels.std(),))
    np.testing.assert_allclose(data.train.images[:, 0].numpy(), (pixels - pixels.mean()) / pixels.std(), atol=1e-6)


def test_digits_have_the_same_test_images_for_every_seed() -> None:
    first, second = load_data("digits", seed=1), load_data("digits", seed=2)
    assert rows_in(first.read_test(), first) == rows_in(second.read_test(), second)
    assert rows_in(first.val, first) != rows_in(second.val, second)
    again = load_data("digits", seed=1)
    assert torch.equal(first.train.images, again.train.images)


def test_digits_with_limit_and_size_keep_validation_and_test() -> None:
    whole, small = load_data("digits", seed=1), load_data("digits", seed=1, train_limit=50, image_size=16)
    assert small.input_shape == (1, 16, 16)
    assert (len(small.train), len(small.val), len(small.read_test())) == (50, 270, 450)
    assert small.val.labels.tolist() == whole.val.labels.tolist()
    assert small.train.labels.bincount().tolist() == [5] * 10
    assert len(load_data("digits", seed=1, train_limit=5000).train) == 1077


# Names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("minst", "unknown data set 'minst': known are .*; did you mean 'mnist'"),
        ("cifar-10", "did you mean 'cifar10'"),
        (
            "foldr:a/b",
            "unknown kind of data set 'foldr': known are file.py:function, folder, hf-disk, .*; did you mean 'folder'",
        ),
        ("npz:", "'npz:': a path must follow the colon, got none"),
    ],
)
def test_check_data_name_rejects_and_offers_the_nearest(name: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        check_data_name(name)
    with pytest.raises(DataError, match=message):
        load_data(name, seed=0)


def test_check_data_name_accepts_every_known_one() -> None:
    for name in (*DATA_NAMES, "folder:not/there", "npz:C:/not/there"):
        check_data_name(name)


@pytest.mark.parametrize("option", ["image_size", "train_limit"])
def test_load_data_rejects_options_below_one(option: str) -> None:
    with pytest.raises(DataError, match=f"'digits': {option.replace('_', ' ')} must be at least 1, got 0"):
        load_data("digits", seed=0, **{option: 0})


# Archives


@pytest.fixture
def mnist_folder(tmp_path: Path) -> Path:
    write_mnist(tmp_path)
    return tmp_path


def test_mnist_is_read_from_a_local_copy(mnist_folder: Path) -> None:
    data = load_data("mnist", data_dir=mnist_folder, seed=0)
    assert (len(data.train), len(data.val), len(data.read_test())) == (90, 10, 30)
    assert data.val.labels.bincount().tolist() == [1] * 10
    assert (data.num_classes, data.input_shape) == (10, (1, 28, 28))
    assert data.train.images.mean().item() == pytest.approx(0, abs=1e-5)


def test_mnist_cut_short_is_rejected_with_its_file(mnist_folder: Path) -> None:
    file = mnist_folder / "MNIST/raw/train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(
        DataError, match="MNIST/raw/train-images-idx3-ubyte: the copy of mnist is incomplete or corrupt"
    ):
        load_data("mnist", data_dir=mnist_folder, seed=0)


def test_mnist_with_test_images_cut_short_is_rejected_before_anything_is_trained(mnist_folder: Path) -> None:
    file = mnist_folder / "MNIST/raw/t10k-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:5000])
    with pytest.raises(DataError, match="MNIST/raw/t10k-images-idx3-ubyte: the copy of mnist is incomplete or corrupt"):
        load_data("mnist", data_dir=mnist_folder, seed=0)


def test_mnist_with_a_label_too_few_is_rejected(mnist_folder: Path) -> None:
    write_mnist_part(mnist_folder, "train", np.zeros((5, 28, 28), np.uint8), np.zeros(4, np.uint8))
    with pytest.raises(DataError, match="5 images, 4 labels"):
        load_data("mnist", data_dir=mnist_folder, seed=0)


@pytest.mark.parametrize(
    ("name", "looked_for"),
    [("mnist", "MNIST/raw/t10k-labels-idx1-ubyte"), ("cifar10", "cifar10.npz"), ("cifar100", "cifar-100-python/meta")],
)
def test_archives_without_network_say_what_was_tried_and_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, looked_for: str
) -> None:
    def no_network(*args: object, **kwargs: object) -> None:
        raise OSError("no route")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    with pytest.raises(DataError, match=r"download failed \(.*no route.*--data-dir DIR.*npz:PATH") as caught:
        load_data(name, data_dir=tmp_path / "new" / "folder", seed=0)
    assert looked_for in str(caught.value)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert socket.getdefaulttimeout() is None


def test_cifar10_is_taken_from_an_npz_in_the_data_folder(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (60, 32, 32, 3), dtype=np.uint8)
    labels = np.arange(60) % 10
    np.savez(tmp_path / "cifar10.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    data = load_data("cifar10", data_dir=tmp_path, seed=0)
    assert (data.name, data.classes[3], data.input_shape) == ("cifar10", "cat", (3, 32, 32))
    assert (len(data.train), len(data.val), len(data.read_test())) == (54, 6, 60)


@pytest.mark.parametrize(("shape", "classes"), [((28, 28), 10), ((28, 28, 3), 10), ((32, 32, 3), 3)])
def test_another_data_set_under_the_name_of_cifar10_is_rejected(
    tmp_path: Path, shape: tuple[int, ...], classes: int
) -> None:
    images, labels = np.zeros((60, *shape), np.uint8), np.arange(60) % classes
    images += np.arange(60, dtype=np.uint8).reshape(-1, *(1 for _ in shape))
    np.savez(tmp_path / "cifar10.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    with pytest.raises(DataError, match=r"cifar10.npz: cifar10 must have color images of 32×32 pixels in 10 classes"):
        load_data("cifar10", data_dir=tmp_path, seed=0)


def torchvisions(name: str) -> Any:
    patch_torchvision()
    return getattr(importlib.import_module("torchvision.datasets"), name)


def fake_cifar(folder: Path, *, train: bool, download: bool) -> SimpleNamespace:
    """Stands for torchvision's reader: a download writes the files, reading gives 40 images."""
    files = Copy("cifar100", folder, fake_cifar).files
    for file in files if download else ():
        (folder / file).parent.mkdir(exist_ok=True)
        (folder / file).write_text("part")
    if download:
        (folder / "cifar-100-python.tar.gz").write_text("archive")
    images = np.zeros((40, 32, 32, 3), np.uint8) + np.arange(40, dtype=np.uint8).reshape(-1, 1, 1, 1)
    return SimpleNamespace(data=images, targets=[0, 1] * 20, classes=["apple", "bear"])


@pytest.mark.parametrize(("name", "kind", "count"), [("cifar10", "CIFAR10", 20), ("cifar100", "CIFAR100", 4)])
def test_pickled_batches_are_read_by_torchvision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, kind: str, count: int
) -> None:
    changed, images = write_cifar_batches(tmp_path, torchvisions(kind))
    monkeypatch.setattr(f"torchvision.datasets.{kind}", changed)
    data = load_archive(name, DataRequest(seed=0, data_dir=tmp_path))
    assert (data.classes, data.input_shape) == (("apple", "bear"), (3, 32, 32))
    assert (len(data.train) + len(data.val), len(data.read_test())) == (count, 4)
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (data.input.mean, data.input.std))
    shown = {tuple((255 * (image * std + mean)).round().byte().flatten().tolist()) for image in data.train.images}
    assert shown <= {tuple(image.flatten().tolist()) for image in images}


@pytest.mark.parametrize("file", ["data_batch_4", "test_batch", "batches.meta"])
def test_a_pickled_batch_that_was_cut_or_changed_is_rejected_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    changed, _ = write_cifar_batches(tmp_path, torchvisions("CIFAR10"))
    monkeypatch.setattr("torchvision.datasets.CIFAR10", changed)
    path = tmp_path / "cifar-10-batches-py" / file
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError) as caught:
        load_archive("cifar10", DataRequest(seed=0, data_dir=tmp_path))
    assert str(caught.value).startswith(f"{path.parent}: the copy of cifar10 is incomplete or corrupt (")
    assert "download=True" not in str(caught.value)


def test_archives_are_downloaded_whole_into_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = torchvisions("CIFAR100")
    for attribute in ("base_folder", "train_list", "test_list", "meta", "filename", "tgz_md5"):
        monkeypatch.setattr(fake_cifar, attribute, getattr(kind, attribute), raising=False)
    monkeypatch.setattr("torchvision.datasets.CIFAR100", fake_cifar)
    data = load_archive("cifar100", DataRequest(seed=0, data_dir=tmp_path / "data"))
    assert (len(data.train), len(data.val), data.classes) == (36, 4, ("apple", "bear"))
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file())
    assert left == [f"data/cifar-100-python/{name}" for name in ("meta", "test", "train")]


def test_fetch_files_gives_the_download_an_archive_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_text("archive")

    def unpack(folder: Path) -> None:
        (folder / "set").write_text((folder / "set.tar.gz").read_text())

    fetch_files(tmp_path, unpack, name="set", files=["set"], packed=["set.tar.gz"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.tar.gz"]
    assert (tmp_path / "set").read_text() == "archive"


def test_fetch_files_interrupted_half_way_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_files(tmp_path / "new", interrupted, name="set", files=["set"], packed=[])
    assert list(tmp_path.iterdir()) == []


def test_fetch_files_into_a_place_that_is_no_folder_is_the_storages_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="no copy of set there, and none can be stored"):
        fetch_files(tmp_path / "file", print, name="set", files=["set"], packed=[])


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sca-search"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "sca-search"
