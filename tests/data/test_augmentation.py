"""Augmented training images: what is drawn, what becomes of them, and who sees them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sca_search.config.study import DataSpec
from sca_search.data import DataSet, LazySplit, Split, TeacherSplit, from_objects, load_data, load_study_data
from sca_search.data.augment import CropFlipSplit, Draws, crop_flip, draw, padding_of
from sca_search.data.image_reader import ImageReader, center_box, random_box
from sca_search.errors import DataError


def restated(images: np.ndarray, corners: np.ndarray, mirrored: np.ndarray, pads: tuple[int, int], fill: np.ndarray):
    """Crop-flip an image at a time: numpy's own padding, a slice, a reversal."""
    rows, columns = pads
    height, width = images.shape[2:]
    out = []
    for image, (top, left), is_mirrored in zip(images, corners, mirrored, strict=True):
        channels = [
            np.pad(channel, ((rows, rows), (columns, columns)), constant_values=value)
            for channel, value in zip(image, fill, strict=True)
        ]
        part = np.stack(channels)[:, top : top + height, left : left + width]
        out.append(part[:, :, ::-1] if is_mirrored else part)
    return np.stack(out)


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 5), st.integers(1, 3), st.integers(1, 12), st.integers(1, 12)),
    st.tuples(st.integers(0, 4), st.integers(0, 4)),
    st.integers(0, 2**31 - 1),
)
def test_crop_flip_agrees_with_numpy_an_image_at_a_time(
    shape: tuple[int, int, int, int], pads: tuple[int, int], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    images = generator.normal(size=shape).astype(np.float32)
    corners = np.stack([generator.integers(0, 2 * pad + 1, shape[0]) for pad in pads], axis=1)
    mirrored = generator.random(shape[0]) < 0.5
    fill = generator.normal(size=shape[1]).astype(np.float32)
    draws = Draws(torch.from_numpy(corners), torch.from_numpy(mirrored))
    got = crop_flip(torch.from_numpy(images), draws, pads, torch.from_numpy(fill))
    np.testing.assert_array_equal(got.numpy(), restated(images, corners, mirrored, pads, fill))


def test_crop_flip_of_one_row_by_hand() -> None:
    image = torch.tensor([[[[1.0, 2.0, 3.0]]]])
    fill = torch.tensor([9.0])

    def cut(column: int, mirrored: bool) -> list[float]:
        draws = Draws(torch.tensor([[0, column]]), torch.tensor([mirrored]))
        return crop_flip(image, draws, (0, 2), fill).flatten().tolist()

    assert cut(0, False) == [9, 9, 1]
    assert cut(2, False) == [1, 2, 3]
    assert cut(3, False) == [2, 3, 9]
    assert cut(3, True) == [9, 3, 2]


@pytest.mark.parametrize(("side", "pixels"), [(32, 4), (64, 8), (28, 4), (8, 1), (1, 1), (33, 5)])
def test_padding_is_an_eighth_of_a_side_rounded_up(side: int, pixels: int) -> None:
    assert padding_of(side) == pixels


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 300), st.tuples(st.integers(0, 9), st.integers(0, 9)), st.integers(0, 2**31 - 1), st.integers(0, 700)
)
def test_crops_stay_within_the_padded_image(count: int, padding: tuple[int, int], seed: int, epoch: int) -> None:
    draws = draw(count, padding, (seed, epoch))
    assert draws.corners.shape == (count, 2)
    assert bool((draws.corners >= 0).all())
    assert bool((draws.corners <= 2 * torch.tensor(padding)).all())


def test_half_are_flipped_and_every_corner_is_as_likely() -> None:
    draws = draw(90_000, (4, 1), (3, 7))
    # Five standard deviations of a share of 90,000 tosses: 5 · 0.5 / 300.
    assert float(draws.flipped.float().mean()) == pytest.approx(0.5, abs=5 * 0.5 / 300)
    for axis, places in ((0, 9), (1, 3)):
        share = draws.corners[:, axis].bincount(minlength=places) / 90_000
        deviation = np.sqrt((1 / places) * (1 - 1 / places) / 90_000)
        assert len(share) == places
        assert float((share - 1 / places).abs().max()) < 5 * deviation


# Splits


def pictures(count: int = 40) -> Split:
    """Every pixel is its image's number, so that labels and images can be held together."""
    numbers = torch.arange(count, dtype=torch.float32)
    ramp = torch.arange(64, dtype=torch.float32).view(1, 1, 8, 8) / 100
    return Split(numbers.view(-1, 1, 1, 1) + ramp.expand(count, 2, 8, 8), torch.arange(count))


def augmented(split: Split | LazySplit) -> CropFlipSplit:
    return CropFlipSplit(split, split.image_shape, torch.tensor([-5.0, -7.0]))


def by_row(batches: object) -> dict[int, torch.Tensor]:
    return {
        int(label): image
        for images, labels in batches  # type: ignore[attr-defined]
        for image, label in zip(images, labels, strict=True)
    }


def test_labels_and_pixels_stay_together() -> None:
    seen = by_row(augmented(pictures()).batches(7, seed=1))
    assert sorted(seen) == list(range(40))
    for number, image in seen.items():
        inner = image[image >= 0]
        assert len(inner) >= 2 * 7 * 7  # at most one row and one column went over the border
        assert set(inner.floor().int().tolist()) == {number}
        border = set(image[image < 0].tolist())
        assert border <= {-5.0, -7.0}


def test_what_an_image_becomes_follows_from_seed_and_epoch_alone() -> None:
    split = augmented(pictures())
    batches = split.batches(7, seed=1)
    first, second = by_row(batches), by_row(batches)
    assert any(not torch.equal(first[row], second[row]) for row in first)
    going_on = split.batches(16, seed=1)  # whatever batch an image is in
    going_on.set_epoch(1)
    again = by_row(going_on)
    assert all(torch.equal(second[row], again[row]) for row in second)
    other = by_row(split.batches(7, seed=2))
    assert any(not torch.equal(first[row], other[row]) for row in first)


def test_without_a_seed_images_are_as_they_are() -> None:
    plain = pictures()
    (images, labels), *_ = augmented(plain).batches(40)
    assert torch.equal(images, plain.images)
    assert torch.equal(labels, plain.labels)


def test_drawing_leaves_the_global_generators_alone() -> None:
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].tolist()
    list(augmented(pictures()).batches(7, seed=1))
    assert torch.equal(torch_state, torch.get_rng_state())
    assert np.random.get_state()[1].tolist() == numpy_state


def test_the_teacher_is_asked_about_what_the_training_sees() -> None:
    split = TeacherSplit(augmented(pictures()), lambda images: images.sum((1, 2, 3)))
    for images, _, answers in split.batches(8, seed=3):
        assert torch.equal(answers, images.sum((1, 2, 3)))


# Data sets


def test_only_training_is_augmented() -> None:
    plain, moved = load_study_data(DataSpec(), 0), load_study_data(DataSpec(augment="crop-flip"), 0)
    assert not plain.changes
    assert moved.changes
    for one, other in ((plain.train, moved.train), (plain.val, moved.val), (plain.read_test(), moved.read_test())):
        assert isinstance(other, Split)
        assert torch.equal(one.images, other.images)
    assert plain.training is plain.train
    mine, theirs = (next(iter(data.training.batches(64, seed=0))) for data in (plain, moved))
    assert torch.equal(mine[1], theirs[1])
    assert not torch.equal(mine[0], theirs[0])


def test_the_border_is_what_black_becomes() -> None:
    data = load_study_data(DataSpec(augment="crop-flip"), 0)
    assert isinstance(data.training, CropFlipSplit)
    black = (0 - data.input.mean[0]) / data.input.std[0]
    assert data.training.fill.tolist() == pytest.approx([black])
    # The digits have a black margin nearly everywhere: a border of black is what their first column already is.
    assert float(load_data("digits", seed=0).train.images.min()) == pytest.approx(black)
    raw = load_study_data(DataSpec(augment="crop-flip", normalize=False), 0)
    assert isinstance(raw.training, CropFlipSplit)
    assert raw.training.fill.tolist() == [0.0]


@pytest.mark.parametrize("shape", [(3,), (2, 50), (1, 4, 4, 4)])
def test_crop_flip_of_what_is_no_image_is_rejected(tmp_path: Path, shape: tuple[int, ...]) -> None:
    arrays = {}
    for part in ("train", "test"):
        arrays |= {f"{part}_inputs": np.random.default_rng(0).normal(size=(40, *shape))}
        arrays |= {f"{part}_targets": np.arange(40) % 2}
    np.savez(tmp_path / "series.npz", **arrays)
    name = f"npz:{tmp_path / 'series.npz'}"
    with pytest.raises(DataError) as caught:
        load_study_data(DataSpec(name=name, augment="crop-flip"), 0)
    assert str(caught.value) == (
        f"data set {name!r}: augmentation 'crop-flip' is for images (channels, height, width), inputs have the shape "
        f"{shape}"
    )


def test_scale_aspect_of_images_in_memory_is_rejected() -> None:
    with pytest.raises(DataError, match=r"'digits': augmentation 'scale-aspect' is for image files \(folder:PATH, "):
        load_study_data(DataSpec(augment="scale-aspect"), 0)


def test_objects_of_images_may_be_augmented_too() -> None:
    pairs = [(torch.rand(1, 8, 8), number % 2) for number in range(40)]
    data = from_objects("mine", (pairs, pairs[:8], pairs[:8]), seed=0).augmented_by("crop-flip")
    images, _ = next(iter(data.training.batches(20, seed=0)))
    assert images.shape == (20, 1, 8, 8)
    assert isinstance(data, DataSet)


# Parts of any scale and aspect


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 400), st.integers(1, 400), st.integers(0, 2**31 - 1))
def test_random_parts_stay_within_the_image(width: int, height: int, seed: int) -> None:
    left, top, right, bottom = random_box((width, height), np.random.default_rng(seed))
    assert 0 <= left < right <= width
    assert 0 <= top < bottom <= height


def test_random_parts_have_the_areas_and_aspects_requested() -> None:
    generator = np.random.default_rng(0)
    boxes = np.array([random_box((1000, 1000), generator) for _ in range(4000)])
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    areas, aspects = wide * high / 1e6, wide / high
    assert areas.min() > 0.079
    assert areas.max() <= 1.0
    assert aspects.min() > 3 / 4 - 0.005
    assert aspects.max() < 4 / 3 + 0.005
    # Small parts always fit into a square: below 3/4 of its area, areas are uniform from 0.08.
    small = areas[areas < 0.7]
    assert np.median(small) == pytest.approx((0.08 + 0.7) / 2, abs=0.02)
    assert np.median(np.log(aspects)) == pytest.approx(0, abs=0.02)


@pytest.mark.parametrize(
    ("size", "box"),
    # 1000 x 10: nothing of 8 % fits; 4/3 of the height is the widest that may be.
    [((1000, 10), (500 - 20 / 3, 0, 500 + 20 / 3, 10)), ((10, 1000), (0, 500 - 20 / 3, 10, 500 + 20 / 3))],
)
def test_of_a_long_image_the_middle_is_taken(size: tuple[int, int], box: tuple[float, ...]) -> None:
    assert random_box(size, np.random.default_rng(0)) == pytest.approx(box)


def test_the_center_is_224_of_256_pixels_of_the_shorter_side() -> None:
    # 512 x 256 resized by the shorter side stays as it is; 224 in the middle begin at 144 and 16.
    assert center_box((512, 256), 224 / 256) == (144, 16, 368, 240)
    assert center_box((12, 4), 1.0) == (4, 0, 8, 4)


def test_the_center_read_agrees_with_resizing_and_cutting(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, 96 * 64).reshape(64, 96).astype(np.uint8)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    got = ImageReader(28, 1, 224 / 256)(tmp_path / "ramp.png")
    resized = Image.fromarray(ramp).resize((48, 32), Image.Resampling.BILINEAR)
    expected = np.asarray(resized)[2:30, 10:38] / 255
    np.testing.assert_allclose(got[0].numpy(), expected, atol=1.5 / 255)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for number in range(12):
            Image.fromarray(generator.integers(0, 256, (20, 24, 3), np.uint8)).save(tmp_path / name / f"{number}.png")
    return tmp_path


def parts_of(photos: Path) -> DataSet:
    spec = DataSpec(name=f"folder:{photos}", augment="scale-aspect", image_size=8)
    return load_study_data(spec, 0)


def test_scale_aspect_reads_training_anew_and_the_rest_once(photos: Path) -> None:
    data = parts_of(photos)
    assert isinstance(data.train, LazySplit)
    assert isinstance(data.val, Split)
    assert isinstance(data.read_test(), Split)
    batches = data.training.batches(6, seed=4)
    first, second = (torch.cat([images for images, _ in batches]) for _ in range(2))
    assert first.shape == second.shape == (len(data.train), 3, 8, 8)
    assert not torch.equal(first, second)
    plain = [images for images, _ in data.train.batches(6, seed=4)]
    assert torch.equal(torch.cat(plain), torch.cat([images for images, _ in data.train.batches(6, seed=4)]))
    assert not torch.equal(torch.cat(plain), first)


def test_scale_aspect_is_the_same_whoever_reads_and_whenever_it_goes_on(photos: Path) -> None:
    training = parts_of(photos).training
    assert isinstance(training, LazySplit)

    def seen(workers: int, size: int) -> dict[tuple[float, ...], int]:
        batches = replace(training, workers=workers).batches(size, seed=4)
        batches.set_epoch(3)
        return {
            tuple(image.flatten().tolist()): int(label)
            for images, labels in batches
            for image, label in zip(images, labels, strict=True)
        }

    assert seen(0, 6) == seen(1, 6) == seen(2, 5)


def test_scale_aspect_mirrors_about_half(tmp_path: Path) -> None:
    ramp = np.tile(np.arange(0, 256, 4, dtype=np.uint8), (64, 1))
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    reader = ImageReader(8, 1)
    rising = sum(
        bool(image[0, 0, -1] > image[0, 0, 0])
        for image in (reader(tmp_path / "ramp.png", np.random.default_rng(n)) for n in range(400))
    )
    assert rising == pytest.approx(200, abs=50)  # five standard deviations
