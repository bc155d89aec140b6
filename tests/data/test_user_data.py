"""Data sets from a user's objects and functions: what is read, carved, normalized, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from sca_search.data import DataSet, LazySplit, Split, from_objects, load_data
from sca_search.errors import CodeError, DataError
from sca_search.system.torchvision import patch_torchvision

patch_torchvision()
import pytorch_lightning as lightning  # noqa: E402 - it imports torchvision, which must be healed before


def pairs(count: int = 30, shape: tuple[int, ...] = (2, 7), classes: int = 3, seed: int = 0) -> TensorDataset:
    inputs = 5 + 3 * torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed))
    return TensorDataset(inputs, torch.arange(count) % classes)


class Listed(Dataset[tuple[object, object]]):
    """Items as they are given."""

    def __init__(self, items: list[object]) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, row: int) -> object:
        return self.items[row]


@pytest.mark.parametrize("shape", [(4,), (2, 7), (3, 5, 4), (1, 3, 4, 2)])
def test_inputs_of_any_rank_are_normalized_by_channel(shape: tuple[int, ...]) -> None:
    train, val, test = pairs(40, shape), pairs(9, shape, seed=1), pairs(12, shape, seed=2)
    data = from_objects("mine", (train, val, test), seed=0)
    given = train.tensors[0].double().numpy()
    axes = (0, *range(2, given.ndim))
    assert data.input_shape == shape
    assert data.input.mean == pytest.approx(given.mean(axes).tolist())
    assert data.input.std == pytest.approx(given.std(axes).tolist())
    ones = (-1, *[1] * (len(shape) - 1))
    expected = (val.tensors[0].numpy() - np.reshape(data.input.mean, ones)) / np.reshape(data.input.std, ones)
    assert isinstance(data.val, Split)
    assert data.val.images.numpy() == pytest.approx(expected, abs=1e-5)
    assert (len(data.train), len(data.val), len(data.read_test()), data.kind) == (40, 9, 12, "classes")
    assert data.notes == ()


def test_without_normalize_inputs_and_targets_stay_as_they_are() -> None:
    inputs, targets = torch.randn(20, 3) * 7 + 1, torch.randn(20) * 100
    every = TensorDataset(inputs, targets)
    data = from_objects("mine", (every, every, every), seed=0, normalize=False)
    assert isinstance(data.train, Split)
    assert torch.equal(data.train.images, inputs)
    assert torch.equal(data.train.labels, targets[:, None])
    assert (data.input.mean, data.input.std, data.input.is_standardized) == ((0.0,) * 3, (1.0,) * 3, False)


def test_numbers_are_standardized_by_training_and_put_back_into_units() -> None:
    targets = torch.tensor([[100.0, 1.0], [300.0, 3.0], [200.0, 2.0], [400.0, 2.0]])
    every = TensorDataset(torch.randn(4, 3), targets)
    data = from_objects("mine", (every, every, every), seed=0)
    assert data.kind == "regression"
    assert data.input.target_mean == pytest.approx((250.0, 2.0))
    assert data.input.target_std == pytest.approx((np.sqrt(12500.0), np.sqrt(0.5)))
    assert data.train.labels.mean(0).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    assert data.in_units(data.read_test().labels).numpy() == pytest.approx(targets.numpy())
    assert data.name_of(data.train.labels[1]) == "300, 3"


def test_labels_are_multi_hot_and_carved_with_their_rare_ones() -> None:
    """Of a label that one example in ten has, a tenth goes to validation."""
    targets = torch.zeros(200, 3, dtype=torch.bool)
    targets[:, 0], targets[::10, 1], targets[::2, 2] = True, True, True
    data = from_objects("mine", (TensorDataset(torch.randn(200, 4), targets), None, pairs_of_labels()), seed=0)
    assert data.kind == "multi-label"
    assert data.val.labels.sum(0).tolist() == [20.0, 2.0, 10.0]
    assert data.classes == ("0", "1", "2")
    assert data.name_of(torch.tensor([1.0, 0.0, 1.0])) == "0, 2"
    assert "there is no validation split: 20 training examples" in data.notes[0]


def pairs_of_labels() -> TensorDataset:
    return TensorDataset(torch.randn(5, 4), torch.ones(5, 3, dtype=torch.int64))


def test_missing_splits_are_carved_and_said() -> None:
    data = from_objects("mine", (pairs(100),), seed=0)
    assert (len(data.read_test()), len(data.val), len(data.train)) == (20, 8, 72)
    assert data.notes == (
        "there is no test split: 20 training examples are set apart as one",
        "there is no validation split: 8 training examples are set apart as one",
    )
    other = from_objects("mine", (pairs(100),), seed=1)
    assert torch.equal(data.in_units(data.read_test().labels), other.read_test().labels)
    assert isinstance(data.val, Split)
    assert isinstance(other.val, Split)
    assert not torch.equal(data.val.images, other.val.images)


def test_limit_keeps_so_many_of_training() -> None:
    data = from_objects("mine", (pairs(60), pairs(9), pairs(9)), seed=0, train_limit=12)
    assert data.train.labels.bincount().tolist() == [4, 4, 4]


def test_images_of_pillow_and_bytes_are_scaled_to_one() -> None:
    gray = [(Image.fromarray(np.full((4, 6), value, np.uint8)), value % 2) for value in (0, 51, 102, 255)]
    data = from_objects("mine", (Listed(gray), Listed(gray), Listed(gray)), seed=0, normalize=False)
    assert data.input_shape == (1, 4, 6)
    assert isinstance(data.train, Split)
    assert data.train.images[:, 0, 0, 0].tolist() == pytest.approx([0.0, 0.2, 0.4, 1.0])
    color = [(Image.fromarray(np.full((4, 6, 3), value, np.uint8)), value % 2) for value in (0, 51, 102, 255)]
    assert from_objects("mine", (Listed(color),) * 3, seed=0).input_shape == (3, 4, 6)


def test_what_does_not_fit_into_memory_is_read_when_it_is_due() -> None:
    train, val, test = pairs(40), pairs(9, seed=1), pairs(9, seed=2)
    held = from_objects("mine", (train, val, test), seed=0)
    lazy = from_objects("mine", (train, val, test), seed=0, memory_bytes=1000)
    for one, other in ((held.train, lazy.train), (held.val, lazy.val), (held.read_test(), lazy.read_test())):
        assert isinstance(other, LazySplit)
        for (inputs, targets), (read, told) in zip(one.batches(8, seed=3), other.batches(8, seed=3), strict=True):
            assert torch.allclose(inputs, read, atol=1e-6)
            assert torch.equal(targets, told)
    assert lazy.input.mean == pytest.approx(held.input.mean)


class Noisy(Dataset[tuple[Tensor, int]]):
    """Gives an item other noise each time, as augmentation does."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return torch.full((2, 3), float(row)) + 0.01 * torch.randn(2, 3), row % 2


def test_training_that_augments_is_read_anew_each_epoch() -> None:
    data = from_objects("mine", (Noisy(), pairs(6, (2, 3), 2), pairs(6, (2, 3), 2)), seed=0)
    assert isinstance(data.train, LazySplit)
    assert data.train.changes
    assert isinstance(data.val, Split)
    assert "augmented" in data.notes[0]
    batches = data.train.batches(24)
    first, second = (next(iter(batches))[0] for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.allclose(first, second, atol=0.1)


def test_readers_next_to_the_training_do_not_repeat_their_noise() -> None:
    data = from_objects("mine", (Noisy(), pairs(6, (2, 3), 2), pairs(6, (2, 3), 2)), seed=0)
    assert isinstance(data.train, LazySplit)
    split = LazySplit(**{**vars(data.train), "workers": 1})
    batches = split.batches(24, seed=5)

    def noise() -> Tensor:
        inputs = next(iter(batches))[0]
        return inputs[inputs[:, 0, 0].argsort()]

    first, second = noise(), noise()
    assert not torch.equal(first, second)
    batches.set_epoch(0)
    assert torch.equal(first, noise())


class Module(lightning.LightningDataModule):
    """Training and validation, no test; prepared before it is set up."""

    def prepare_data(self) -> None:
        self.prepared = True

    def setup(self, _stage: str) -> None:
        assert self.prepared
        self.parts = pairs(50), pairs(10, seed=1)

    def train_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.parts[0], batch_size=4, shuffle=True)

    def val_dataloader(self) -> DataLoader[tuple[Tensor, ...]]:
        return DataLoader(self.parts[1], batch_size=4)


def test_a_data_module_gives_the_data_sets_of_its_loaders() -> None:
    data = from_objects("mine", Module(), seed=0, normalize=False)
    assert (len(data.train), len(data.val), len(data.read_test())) == (40, 10, 10)
    assert isinstance(data.val, Split)
    assert torch.equal(data.val.images, pairs(10, seed=1).tensors[0])


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    def __iter__(self):  # type: ignore[no-untyped-def]
        yield from zip(*pairs(12).tensors, strict=True)


class Streams(Module):
    def train_dataloader(self):  # type: ignore[no-untyped-def]
        return DataLoader(Stream(), batch_size=5)

    def val_dataloader(self):  # type: ignore[no-untyped-def]
        def doubled(items: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
            return 2 * torch.stack([item[0] for item in items]), torch.stack([item[1] for item in items])

        return DataLoader(self.parts[1], batch_size=4, collate_fn=doubled)

    def test_dataloader(self):  # type: ignore[no-untyped-def]
        return DataLoader(pairs(6, seed=2))


def test_loaders_without_plain_items_are_read_through() -> None:
    data = from_objects("mine", Streams(), seed=0, normalize=False)
    assert isinstance(data.train, Split)
    assert isinstance(data.val, Split)
    assert torch.equal(data.train.images, pairs(12).tensors[0])
    assert torch.equal(data.val.images, 2 * pairs(10, seed=1).tensors[0])
    assert len(data.read_test()) == 6


def test_a_data_set_of_ours_is_taken_as_it_is() -> None:
    known = load_data("digits", seed=0)
    assert from_objects("mine", known, seed=0) is known


def test_the_users_code_draws_the_same_numbers_everywhere_and_ours_are_left_alone() -> None:
    class Random(Module):
        def setup(self, _stage: str) -> None:
            self.parts = torch.utils.data.random_split(pairs(50), [40, 10])

    torch.manual_seed(11)
    first = from_objects("mine", Random(), seed=3).val
    drawn = torch.rand(1)
    torch.manual_seed(12)
    second = from_objects("mine", Random(), seed=3).val
    assert isinstance(first, Split)
    assert isinstance(second, Split)
    assert torch.equal(first.images, second.images)
    torch.manual_seed(11)
    assert torch.equal(drawn, torch.rand(1))


NAN, GOOD = torch.full((2, 7), float("nan")), torch.zeros(2, 7)


class Failing(Module):
    def setup(self, _stage: str) -> None:
        raise OSError("no such disk")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "data set 'mine' must be a LightningDataModule, or a tuple .*, got None"),
        (7, "must be a LightningDataModule, .*, got a int"),
        ((), "must be a LightningDataModule, .*, got a tuple of 0"),
        ((None, pairs()), "training: there must be a training split, got None"),
        (({"x": 1}, pairs()), "training: must be a data set with a length and items .*, got a dict"),
        ((Listed([]),), "training: must not be empty, it has no item"),
        ((pairs(), Listed([])), "validation: must not be empty"),
        ((Listed([GOOD] * 4),), r"every item must be a pair \(input, target\), got a Tensor"),
        ((Listed([(GOOD, 1, 2)] * 4),), r"every item must be a pair .*, got a tuple of length 3"),
        ((Listed([("text", 1)] * 4),), "inputs must be tensors, arrays or images of numbers .*, got a str"),
        ((Listed([(3.0, 1)] * 4),), r"inputs must be tensors, .* got a float of shape \(\)"),
        ((Listed([(GOOD, "cat")] * 4),), "targets must be numbers, got a str"),
        ((Listed([(GOOD, 0), (NAN, 1)]),), "training: inputs must be finite numbers, got NaN"),
        ((Listed([(GOOD, 0), (GOOD[:1], 1)]),), r"all inputs must have one shape, got \(2, 7\) and, item 1, \(1, 7\)"),
        ((Listed([(GOOD, 0), (GOOD, 0.5)]),), "training: targets must be all integers or all floats, got both"),
        ((Listed([(GOOD, [0, 1]), (GOOD, [1])]),), r"targets must have one shape, got \(1,\) and \(2,\)"),
        ((Listed([(GOOD, [0, 2])] * 4),), "targets must be 0 or 1 where an example has several labels, got 2"),
        ((Listed([(GOOD, [[0, 1]])] * 4),), r"targets must be integers \(N,\) .* got int64 of shape \(4, 1, 2\)"),
        ((Listed([(GOOD, float("nan"))] * 4),), "targets must be finite numbers"),
        ((Listed([(GOOD, 1)] * 4),), "targets must have at least 2 classes, got 1"),
        ((Listed([(GOOD, 0), (GOOD, 2)] * 4),), "targets must use every class from 0 to the highest, got 2 but no 1"),
        (
            (pairs(), pairs(shape=(2, 6))),
            r"validation: inputs must have the shape \(2, 7\) as in training, got \(2, 6\)",
        ),
        (
            (pairs(), pairs(), pairs(shape=(7,))),
            r"test: inputs must have the shape \(2, 7\) as in training, got \(7,\)",
        ),
        ((pairs(), pairs(classes=4)), r"validation: targets must be 0..2 as in training, got 3"),
        ((pairs(), TensorDataset(torch.zeros(3, 2, 7), torch.rand(3))), "same kind as in training, classes, got reg"),
        (
            (TensorDataset(torch.zeros(4, 7), torch.rand(4, 2)), TensorDataset(torch.zeros(3, 7), torch.rand(3))),
            "2 val",
        ),
        (Failing(), r"its data module failed with AttributeError|its data module failed with OSError: no such disk"),
    ],
)
def test_what_cannot_be_used_gives_a_one_line_error(given: object, message: str) -> None:
    with pytest.raises(DataError, match=message) as told:
        from_objects("mine", given, seed=0)
    assert "\n" not in str(told.value)
    assert str(told.value).startswith("data set 'mine'")


def test_a_class_with_too_few_examples_is_named() -> None:
    targets = torch.tensor([0, 1] * 40 + [2])
    with pytest.raises(DataError, match=r"every class must keep an example for training .*, class '2' has too few"):
        from_objects("mine", (TensorDataset(torch.randn(81, 3), targets), None, None), seed=0, train_limit=10)


def test_two_examples_of_a_class_are_enough_to_carve() -> None:
    targets = torch.tensor([0, 1] * 50 + [2, 2])
    data = from_objects("mine", (TensorDataset(torch.randn(102, 3), targets), None, None), seed=0)
    assert (data.train.labels == 2).any()


class Breaks(Dataset[tuple[Tensor, int]]):
    """Can be read as often as it is asked to be ready, and no more."""

    def __init__(self, reads: int) -> None:
        self.reads = reads

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        self.reads -= 1
        if self.reads < 0:
            raise RuntimeError("the tape is torn")
        return torch.full((2, 7), float(row)), row % 3


def test_a_data_set_that_raises_at_once_is_rejected_and_later_is_reported_as_the_users() -> None:
    with pytest.raises(DataError, match=r"reading item \d+ failed with RuntimeError: the tape is torn \(test_user_"):
        from_objects("mine", (Breaks(5), pairs(), pairs()), seed=0)
    source = Breaks(1000)
    data = from_objects("mine", (source, pairs(), pairs()), seed=0, memory_bytes=0)
    source.reads = 3
    with pytest.raises(
        CodeError, match=r"^data set 'mine', training: reading item 3 failed with RuntimeError: the tape"
    ):
        list(data.train.batches(8))


OWN = """
import torch
from torch.utils.data import TensorDataset

def part(count):
    return TensorDataset(torch.randn(count, 2, 9), torch.arange(count) % 2)

def plain(): return part(20), part(8), part(8)
def told(seed, data_dir=None):
    assert (seed, str(data_dir)) == (5, "here")
    return plain()
def wants(size): return plain()
def broken(): return 1 / 0
def other(): return "text"
ready = plain()
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    (tmp_path / "own.py").write_text(OWN)
    return f"{tmp_path}/own.py"


@pytest.mark.parametrize("name", ["plain", "told", "ready"])
def test_a_function_or_an_object_of_a_file_is_a_data_set(own: str, name: str) -> None:
    data = load_data(f"{own}:{name}", seed=5, data_dir=Path("here"))
    assert isinstance(data, DataSet)
    assert (data.input_shape, len(data.train), data.num_classes) == ((2, 9), 20, 2)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wants", "the function must be callable without arguments, or with seed or data_dir, it requires 'size'"),
        ("broken", r"the function failed with ZeroDivisionError: division by zero \(own\.py, line 13\)"),
        ("other", "must be a LightningDataModule, .* got a str"),
        ("plane", "has no 'plane'; did you mean 'plain'?"),
    ],
)
def test_a_function_that_gives_no_data_is_rejected(own: str, name: str, message: str) -> None:
    with pytest.raises(DataError, match=message) as told:
        load_data(f"{own}:{name}", seed=0)
    assert "\n" not in str(told.value)


def test_an_image_size_is_not_for_a_users_function(own: str) -> None:
    with pytest.raises(DataError, match="an image size is for built-in image readers"):
        load_data(f"{own}:plain", seed=0, image_size=8)
