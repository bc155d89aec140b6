"""Data sets that a user brings: .npz files and folders of images, good and bad."""

import io
import pickle
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from sca_search.data import LazySplit, load_data
from sca_search.data.dataset import DataRequest
from sca_search.data.image_folder import load_folder
from sca_search.errors import DataError

# .npz


def arrays(**changes: object) -> dict[str, object]:
    """A small data set of 3 classes, 5 x 4 pixels; None takes an array away."""
    generator = np.random.default_rng(0)
    given: dict[str, object] = {}
    for part, count in (("train", 30), ("val", 9), ("test", 12)):
        given[f"{part}_images"] = generator.integers(0, 256, (count, 5, 4), dtype=np.uint8)
        given[f"{part}_labels"] = np.arange(count) % 3
    return {key: value for key, value in (given | changes).items() if value is not None}


def save(path: Path, **changes: object) -> str:
    np.savez(path / "set.npz", **arrays(**changes))
    return f"npz:{path / 'set.npz'}"


def test_npz_gives_its_three_splits_in_order(tmp_path: Path) -> None:
    name, given = save(tmp_path), arrays()
    data = load_data(name, seed=0)
    assert (data.name, data.classes, data.input_shape) == (name, ("0", "1", "2"), (1, 5, 4))
    pixels = given["train_images"] / 255
    assert data.input.mean == pytest.approx((pixels.mean(),))
    assert data.input.std == pytest.approx((pixels.std(),))
    for part, split in (("train", data.train), ("val", data.val), ("test", data.read_test())):
        expected = (given[f"{part}_images"] / 255 - pixels.mean()) / pixels.std()
        np.testing.assert_allclose(split.images[:, 0].numpy(), expected, atol=1e-5)
        assert split.labels.tolist() == given[f"{part}_labels"].tolist()
        assert split.labels.dtype == torch.int64


def test_npz_accepts_float_colors_and_columns_of_labels(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    changes = {f"{part}_images": generator.normal(5, 2, (n, 6, 6, 2)) for part, n in (("train", 30), ("test", 12))}
    labels = {"train_labels": (np.arange(30) % 3).astype(np.uint8)[:, None], "val_images": None, "val_labels": None}
    data = load_data(save(tmp_path, **changes, **labels), seed=0)
    assert data.input_shape == (2, 6, 6)
    assert (len(data.train), len(data.val), len(data.read_test())) == (27, 3, 12)
    assert data.val.labels.bincount().tolist() == [1, 1, 1]
    assert data.input.mean == pytest.approx((5, 5), abs=0.5)  # floats are not scaled


def test_npz_carves_validation_with_the_seed(tmp_path: Path) -> None:
    name = save(tmp_path, val_images=None, val_labels=None)
    first, second, again = (load_data(name, seed=seed) for seed in (0, 1, 0))
    assert not torch.equal(first.val.images, second.val.images)
    assert torch.equal(first.val.images, again.val.images)
    assert torch.equal(first.read_test().labels, second.read_test().labels)


def test_npz_with_limit_and_size(tmp_path: Path) -> None:
    data = load_data(save(tmp_path), seed=0, train_limit=6, image_size=8)
    assert data.train.labels.bincount().tolist() == [2, 2, 2]
    assert data.input_shape == (1, 8, 8)


def test_npz_reads_test_images_only_when_asked(tmp_path: Path) -> None:
    data = load_data(save(tmp_path), seed=0)
    bad = np.full((12, 5, 4), np.nan)
    save(tmp_path, test_images=bad)
    with pytest.raises(DataError, match="test_images must be finite numbers, got NaN or infinity"):
        data.read_test()


IMAGES, LABELS = np.zeros((30, 5, 4), np.uint8), np.arange(30) % 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_labels": None}, "train_labels missing; it has test_images"),
        ({"test_images": None, "test_labels": None}, "test_images, test_labels are required, .*test_images"),
        ({"val_labels": None}, "val_labels missing"),
        ({"train_images": IMAGES.astype(object)}, "train_images must be uint8 or float, got object"),
        ({"train_labels": LABELS.astype(object)}, "train_labels must be integers .* got object"),
        ({"train_images": IMAGES.astype(np.int64)}, "train_images must be uint8 or float, got int64"),
        (
            {"val_labels": LABELS[:9].astype(float)},
            "val_labels must be of the same kind as in training, classes, got reg",
        ),
        ({"train_labels": LABELS[:29]}, "train_labels must have one row for each of 30 examples, got 29"),
        ({"train_labels": LABELS.reshape(15, 2)}, "train_labels must have one row for each of 30 examples, got 15"),
        (
            {"val_labels": np.ones((9, 2), int)},
            "val_labels must be of the same kind as in training, classes, got multi-label",
        ),
        (
            {"train_labels": LABELS.reshape(5, 3, 2)},
            r"train_labels must be integers \(N,\) .* got int64 of shape \(5, 3, 2",
        ),
        ({"train_images": IMAGES[0]}, r"train_images must have shape \(N, H, W\).* got \(5, 4\)"),
        ({"train_labels": LABELS - 1}, "train_labels must not be negative, got -1"),
        ({"val_labels": np.arange(9) - 1}, r"val_labels must be 0..2 as in training, got -1"),
        ({"val_labels": np.arange(9)}, r"val_labels must be 0..2 as in training, got 8"),
        ({"test_labels": np.full(12, 3)}, r"test_labels must be 0..2 as in training, got 3"),
        ({"train_labels": LABELS * 0}, "train_labels must have at least 2 classes, got 1"),
        ({"train_labels": LABELS * 2}, "train_labels must use every class .* got 4 but no 1"),
        ({"train_labels": LABELS * 10**12}, "must use every class .* got 2000000000000 but no 1"),
        ({"train_images": np.full((30, 5, 4), np.nan)}, "train_images must be finite numbers"),
        ({"train_images": np.full((30, 5, 4), 1e300)}, "train_images must be finite numbers"),
        ({"val_images": np.full((9, 5, 4), np.inf)}, "val_images must be finite numbers"),
        ({"test_images": IMAGES[:0], "test_labels": LABELS[:0]}, "test_images must not be empty"),
        ({"train_images": IMAGES[:0], "train_labels": LABELS[:0]}, "train_images must not be empty"),
        ({"test_images": np.zeros((12, 5, 5), np.uint8)}, r"test_images must have images of shape \(5, 4\)"),
        ({"test_images": np.zeros((12, 5, 4, 3), np.uint8)}, r"as in training, got \(5, 4, 3\)"),
    ],
)
def test_npz_malformed_gives_a_one_line_error(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    name = save(tmp_path, **changes)
    with pytest.raises(DataError, match=message) as caught:
        load_data(name, seed=0)
    assert str(caught.value).startswith(f"{tmp_path / 'set.npz'}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(6,), (2, 9), (3, 4, 5), (1, 2, 3, 4)])
def test_npz_inputs_are_taken_channels_first_whatever_their_rank(tmp_path: Path, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    arrays = {f"{part}_inputs": random.normal(size=(20, *shape)) for part in ("train", "val", "test")}
    arrays |= {f"{part}_targets": random.normal(size=20) for part in ("train", "val", "test")}
    np.savez(tmp_path / "set.npz", **arrays, output_names=np.array(["age"]))
    data = load_data(f"npz:{tmp_path / 'set.npz'}", seed=0, normalize=False)
    assert (data.kind, data.classes, data.input_shape) == ("regression", ("age",), shape)
    assert data.train.images.numpy() == pytest.approx(arrays["train_inputs"], rel=1e-6)
    assert data.read_test().labels.numpy() == pytest.approx(arrays["test_targets"][:, None], rel=1e-6)


def write_bomb(path: Path, key: str) -> None:
    """An archive of a few kilobytes; its list and the header of one array name 8 TiB of zeros."""
    header = io.BytesIO()
    np.lib.format.write_array_header_2_0(header, {"descr": "|u1", "fortran_order": False, "shape": (2**31, 64, 64)})
    np.savez_compressed(path, **arrays(**{key: None}))
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{key}.npy", header.getvalue() + bytes(100_000))
        archive.getinfo(f"{key}.npy").file_size = len(header.getvalue()) + 2**43


@pytest.mark.parametrize("key", ["train_images", "test_images"])
def test_npz_that_does_not_fit_into_memory_is_rejected_before_it_is_decompressed(tmp_path: Path, key: str) -> None:
    write_bomb(tmp_path / "set.npz", key)
    assert (tmp_path / "set.npz").stat().st_size < 10_000
    with pytest.raises(
        DataError, match=r"set\.npz: its arrays must fit into the available memory, [\d,]+ bytes, got 8,"
    ):
        load_data(f"npz:{tmp_path / 'set.npz'}", seed=0)


def test_npz_with_many_labels_keeps_the_rare_ones_in_validation(tmp_path: Path) -> None:
    labels = np.zeros((100, 3), np.uint8)
    labels[:, 0], labels[::5, 2] = 1, 1
    images = np.zeros((100, 5, 4), np.uint8)
    np.savez(tmp_path / "set.npz", train_images=images, train_labels=labels, test_images=images, test_labels=labels)
    data = load_data(f"npz:{tmp_path / 'set.npz'}", seed=0)
    assert (data.kind, data.num_classes) == ("multi-label", 3)
    assert data.val.labels.sum(0).tolist() == [10.0, 0.0, 2.0]


def _signals(**changes: object) -> dict[str, object]:
    known = {"train": 20, "test": 6}
    arrays: dict[str, object] = {f"{part}_inputs": np.zeros((count, 2, 9)) for part, count in known.items()}
    return arrays | {f"{part}_targets": np.arange(count) % 2 for part, count in known.items()} | changes


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train_inputs": np.zeros(20)}, r"train_inputs must have shape \(N, C\) or \(N, C, …\), .* got \(20,\)"),
        ({"test_inputs": np.zeros((6, 2, 8))}, r"test_inputs must have inputs of shape \(2, 9\) as in training"),
        (
            {"test_targets": np.zeros((6, 2))},
            "test_targets must be of the same kind as in training, classes, got regression",
        ),
        (
            {"train_targets": np.full((20, 2), 3)},
            "train_targets must be 0 or 1 where an example has several labels, got 3",
        ),
        ({"output_names": np.array(["a"])}, r"output_names must be 2 strings, got <U1 of shape \(1,\)"),
    ],
)
def test_npz_inputs_malformed_are_rejected(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    arrays = _signals(**changes)
    if "train_targets" in changes:
        arrays["test_targets"] = np.zeros((6, 2), int)
    np.savez(tmp_path / "set.npz", **arrays)
    with pytest.raises(DataError, match=message):
        load_data(f"npz:{tmp_path / 'set.npz'}", seed=0)


def test_npz_targets_that_are_not_finite_or_of_another_width_are_rejected(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **_signals(train_targets=np.full(20, np.nan), test_targets=np.zeros(6)))
    with pytest.raises(DataError, match="train_targets must be finite numbers"):
        load_data(f"npz:{tmp_path / 'set.npz'}", seed=0)
    np.savez(tmp_path / "set.npz", **_signals(train_targets=np.zeros((20, 3)), test_targets=np.zeros((6, 2))))
    with pytest.raises(DataError, match="test_targets must have 3 values per example as in training, got 2"):
        load_data(f"npz:{tmp_path / 'set.npz'}", seed=0)


def test_npz_inputs_have_no_image_size(tmp_path: Path) -> None:
    np.savez(tmp_path / "set.npz", **_signals())
    with pytest.raises(DataError, match="an image size is for arrays named images, these are named inputs"):
        load_data(f"npz:{tmp_path / 'set.npz'}", seed=0, image_size=8)


def test_npz_too_small_to_carve_is_rejected(tmp_path: Path) -> None:
    changes = {"train_images": IMAGES[:2], "train_labels": np.array([0, 1]), "test_labels": np.arange(12) % 2}
    with pytest.raises(DataError, match="every class must keep an example for training"):
        load_data(save(tmp_path, val_images=None, val_labels=None, **changes), seed=0)


def test_npz_that_is_no_archive_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "set.npz"
    with pytest.raises(DataError, match="the data file must exist"):
        load_data(f"npz:{file}", seed=0)
    for content in (b"", b"text", pickle.dumps(arrays())):
        file.write_bytes(content)
        with pytest.raises(DataError, match=r"must be a \.npz archive"):
            load_data(f"npz:{file}", seed=0)


def test_npz_with_a_broken_array_is_rejected(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "set.npz", "w") as archive:
        archive.writestr("train_images.npy", b"no array")
    with pytest.raises(DataError, match="every array must be readable"):
        load_data(f"npz:{tmp_path / 'set.npz'}", seed=0)


def test_npz_with_a_changed_byte_is_rejected(tmp_path: Path) -> None:
    name = save(tmp_path)
    content = bytearray((tmp_path / "set.npz").read_bytes())
    content[300] ^= 1  # inside train_images, which its checksum covers
    (tmp_path / "set.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"must be readable, got: Bad CRC.*train_images"):
        load_data(name, seed=0)


# Folders


def draw(path: Path, value: int, mode: str = "RGB", size: tuple[int, int] = (12, 10)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    color = value if mode in {"L", "1", "I;16"} else (value, 0, 255)
    Image.new(mode, size, color).save(path)


def draw_classes(folder: Path, counts: dict[str, int], mode: str = "RGB") -> str:
    for name, count in counts.items():
        for number in range(count):
            draw(folder / name / f"{number:03}.png", number, mode)
    return f"folder:{folder}"


def test_folder_of_classes_is_carved_into_three_splits(tmp_path: Path) -> None:
    name = draw_classes(tmp_path, {"cat": 20, "dog": 30})
    data = load_data(name, seed=0, image_size=8)
    assert (data.classes, data.input_shape, data.name) == (("cat", "dog"), (3, 8, 8), name)
    test = data.read_test()
    assert test.labels.bincount().tolist() == [4, 6]  # a fifth
    assert (len(data.val), len(data.train)) == (4, 36)  # a tenth of the other 40
    red = torch.cat([split.images[:, 0, 0, 0] for split in (data.train, data.val, test)])
    shown = torch.round((red * data.input.std[0] + data.input.mean[0]) * 255)
    assert sorted(shown.int().tolist()) == sorted([*range(20), *range(30)])
    second = load_data(name, seed=1, image_size=8)
    assert test.labels.tolist() == second.read_test().labels.tolist()


def test_folder_with_constant_channels_has_no_zero_spread(tmp_path: Path) -> None:
    data = load_data(draw_classes(tmp_path, {"cat": 10, "dog": 10}), seed=0, image_size=4)
    assert data.input.mean[1:] == pytest.approx((0, 1))
    assert data.input.std[1:] == (1, 1)
    assert torch.isfinite(data.train.images).all()


def test_folder_of_three_splits_uses_them(tmp_path: Path) -> None:
    for part, count in (("train", 6), ("val", 2), ("test", 3)):
        draw_classes(tmp_path / part, {"cat": count, "dog": count}, mode="L")
    data = load_data(f"folder:{tmp_path}", seed=0)
    assert data.input_shape == (1, 64, 64)
    assert (len(data.train), len(data.val), len(data.read_test())) == (12, 4, 6)
    assert data.train.labels.tolist() == [0] * 6 + [1] * 6
    # Gray values 0..5 in each class: mean 2.5 / 255.
    assert data.input.mean == pytest.approx((2.5 / 255,))
    assert data.input.std == pytest.approx((np.std(np.arange(6)) / 255,))


def test_folder_without_val_carves_it_from_train(tmp_path: Path) -> None:
    draw_classes(tmp_path / "train", {"cat": 10, "dog": 10})
    draw_classes(tmp_path / "test", {"cat": 1, "dog": 2})
    data = load_data(f"folder:{tmp_path}", seed=0, image_size=4, train_limit=8)
    assert (len(data.train), len(data.val)) == (8, 2)
    assert data.read_test().labels.tolist() == [0, 1, 1]


def test_folder_with_a_class_called_train_is_no_split(tmp_path: Path) -> None:
    data = load_data(draw_classes(tmp_path, {"car": 8, "train": 8}), seed=0, image_size=4)
    assert data.classes == ("car", "train")


def test_folder_images_are_cut_to_the_center(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for number in range(5):
            wide = np.zeros((4, 12), np.uint8)
            wide[:, 4:8] = 255 - number
            (tmp_path / name).mkdir(exist_ok=True)
            Image.fromarray(wide).save(tmp_path / name / f"{number}.png")
    data = load_data(f"folder:{tmp_path}", seed=0, image_size=4)
    assert data.input.mean[0] > 250 / 255  # the black sides are gone


def test_folder_reads_palettes_with_transparency_and_nested_files(tmp_path: Path) -> None:
    name = draw_classes(tmp_path, {"cat": 6, "dog": 6})
    palette = Image.new("P", (6, 6))
    palette.putpalette([level for value in range(256) for level in (value, value, value)])
    (tmp_path / "cat" / "more").mkdir()
    palette.save(tmp_path / "cat" / "more" / "p.png", transparency=bytes(range(256)))
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    data = load_data(name, seed=0, image_size=4)
    assert len(data.train) + len(data.val) + len(data.read_test()) == 13


def test_folder_missing_or_empty_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="gone: the data folder must exist"):
        load_data(f"folder:{tmp_path / 'gone'}", seed=0)
    with pytest.raises(DataError, match="at least 2 class folders are required, got 0"):
        load_data(f"folder:{tmp_path}", seed=0)
    draw(tmp_path / "only" / "0.png", 1)
    with pytest.raises(DataError, match="at least 2 class folders are required, got 1"):
        load_data(f"folder:{tmp_path}", seed=0)
    (tmp_path / "void").mkdir()
    with pytest.raises(DataError, match=r"void: a class folder must contain at least 1 image .* got none"):
        load_data(f"folder:{tmp_path}", seed=0)


def test_folder_with_odd_splits_is_rejected(tmp_path: Path) -> None:
    draw_classes(tmp_path / "train", {"cat": 3, "dog": 3})
    with pytest.raises(DataError, match="a folder with train must have test next to it"):
        load_data(f"folder:{tmp_path}", seed=0)
    (tmp_path / "test").mkdir()
    with pytest.raises(DataError, match="test: must have a folder for each class of training, there is none"):
        load_data(f"folder:{tmp_path}", seed=0)
    draw_classes(tmp_path / "test", {"cat": 1})
    with pytest.raises(DataError, match="test: class folders must be those of training, 'dog' is missing"):
        load_data(f"folder:{tmp_path}", seed=0)
    draw_classes(tmp_path / "test", {"cat": 1, "dog": 1, "owl": 3})
    with pytest.raises(DataError, match="test: class folders must be those of training, got 'owl' besides"):
        load_data(f"folder:{tmp_path}", seed=0)


def test_folder_whose_val_lacks_a_class_is_rejected(tmp_path: Path) -> None:
    for part in ("train", "test"):
        draw_classes(tmp_path / part, {"cat": 3, "dog": 3})
    draw_classes(tmp_path / "val", {"dog": 3})
    with pytest.raises(DataError, match="val: class folders must be those of training, 'cat' is missing"):
        load_data(f"folder:{tmp_path}", seed=0)


def test_folder_with_too_few_images_to_carve_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="every class must keep an example for training"):
        load_data(draw_classes(tmp_path, {"cat": 1, "dog": 1}), seed=0)


@pytest.mark.parametrize("kind", ["text", "cut", "deep"])
def test_folder_with_an_image_that_cannot_be_used_names_the_file(tmp_path: Path, kind: str) -> None:
    for part in ("train", "val", "test"):
        draw_classes(tmp_path / part, {"cat": 3, "dog": 3})
    file = tmp_path / "train" / "dog" / "001.png"
    if kind == "text":
        file.write_text("no image")
    elif kind == "cut":
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(file)
        file.write_bytes(file.read_bytes()[:900])
    else:
        draw(file, 40_000, mode="I;16")
    with pytest.raises(DataError, match=r"train.dog.001\.png: (every image|images) must"):
        load_data(f"folder:{tmp_path}", seed=0)


def test_folder_reads_test_images_only_when_asked(tmp_path: Path) -> None:
    for part in ("train", "val", "test"):
        draw_classes(tmp_path / part, {"cat": 3, "dog": 3})
    data = load_data(f"folder:{tmp_path}", seed=0, image_size=4)
    (tmp_path / "test" / "cat" / "000.png").write_text("no image")
    with pytest.raises(DataError, match=r"test.cat.000\.png: every image must be readable"):
        data.read_test()


@pytest.mark.parametrize("workers", [0, 1])
def test_folder_too_large_for_memory_is_read_batch_by_batch(tmp_path: Path, workers: int) -> None:
    name = draw_classes(tmp_path, {"cat": 9, "dog": 12})
    request = DataRequest(seed=0, image_size=8)
    held = load_folder(name, tmp_path, request)
    lazy = load_folder(name, tmp_path, replace(request, memory_bytes=1000))
    assert isinstance(lazy.train, LazySplit)
    assert isinstance(lazy.read_test(), LazySplit)
    assert (len(lazy.train), lazy.input_shape, lazy.num_classes) == (len(held.train), (3, 8, 8), 2)
    assert lazy.input.mean == pytest.approx(held.input.mean)
    split = LazySplit(lazy.train.paths, lazy.train.labels, lazy.train.reader, lazy.input.mean, lazy.input.std, workers)
    state = torch.get_rng_state()
    for mine, theirs in zip(split.batches(4, seed=5), held.train.batches(4, seed=5), strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=0)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("workers", [0, 1])
def test_lazy_split_names_a_file_that_broke_in_one_sentence(tmp_path: Path, workers: int) -> None:
    name = draw_classes(tmp_path, {"cat": 9, "dog": 12})
    train = load_folder(name, tmp_path, DataRequest(seed=0, image_size=8, memory_bytes=1000)).train
    split = LazySplit(train.paths, train.labels, train.reader, (0.0,) * 3, (1.0,) * 3, workers)
    train.paths[2].write_text("no image")
    with pytest.raises(DataError) as caught:
        list(split.batches(4))
    assert str(caught.value).startswith(f"{train.paths[2]}: every image must be readable")
    assert "\n" not in str(caught.value)
