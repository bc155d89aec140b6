"""Bad data through the command: one sentence, exit code 2, before anything is trained or written."""

import struct
import tracemalloc
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sca_search.config.load import resolve
from sca_search.data import load_data, load_study_data
from sca_search.data.archives import idx_fault
from sca_search.data.dataset import DataRequest
from sca_search.data.image_folder import load_folder
from sca_search.errors import DataError
from tests.support.command import Outcome
from tests.support.real_layouts import (
    jpeg,
    write_cifar10_npz,
    write_imagenet,
    write_mnist,
    write_mnist_part,
    write_tiny_imagenet,
)

Run = Callable[..., Outcome]

SHORT = ("--trials", "1", "--epochs", "1", "--dense-epochs", "1", "--refits", "0", "--threads", "1")


def refused(run: Run, *arguments: str) -> str:
    """The sentence with which a study is refused."""
    done = run(*arguments, *SHORT)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert not Path("runs").exists()
    return done.stderr.strip()


def cut(path: Path) -> Path:
    """Half of a file: its header can be read, its pixels cannot."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


# Image files of the test split


def write_folder(root: Path) -> None:
    for part, count in (("train", 8), ("val", 3), ("test", 3)):
        for label in ("cat", "dog"):
            for number in range(count):
                jpeg(root / part / label / f"{number}.jpg", (part, label, number), (20, 20))


def test_a_broken_test_image_of_imagenet_is_rejected_first(run: Run, tmp_path: Path) -> None:
    broken = cut(write_imagenet(tmp_path) / "val" / "n01" / "ILSVRC2012_val_n011.JPEG")
    said = refused(run, "--data", "imagenet", "--data-dir", str(tmp_path), "--image-size", "16")
    assert said.startswith(f"{broken}: every image must be readable, this one is not (")
    assert said.endswith("); --skip-unreadable leaves such files out")


def test_a_broken_test_image_of_tiny_imagenet_is_rejected_first(run: Run, tmp_path: Path) -> None:
    broken = cut(write_tiny_imagenet(tmp_path) / "val" / "images" / "val_2.JPEG")
    said = refused(run, "--data", "tiny-imagenet", "--data-dir", str(tmp_path), "--image-size", "16")
    assert said.startswith(f"{broken}: every image must be readable")


@pytest.mark.parametrize("augment", ["none", "scale-aspect"])
def test_a_broken_test_image_of_a_folder_is_rejected_first(run: Run, tmp_path: Path, augment: str) -> None:
    write_folder(tmp_path / "pets")
    cut(tmp_path / "pets" / "test" / "dog" / "1.jpg")
    said = refused(run, "--data", "folder:pets", "--image-size", "16", "--augment", augment)
    assert said.startswith("pets/test/dog/1.jpg: every image must be readable")


def test_a_test_image_of_16_bits_is_rejected_first(run: Run, tmp_path: Path) -> None:
    write_folder(tmp_path / "pets")
    Image.fromarray(np.zeros((20, 20), np.uint16)).save(tmp_path / "pets" / "test" / "dog" / "deep.png")
    said = refused(run, "--data", "folder:pets", "--image-size", "16")
    assert said == "pets/test/dog/deep.png: images must have 8 bits per channel, this one has mode 'I;16'"


@pytest.mark.e2e
def test_a_test_image_that_breaks_later_may_be_left_out_when_the_study_goes_on(run: Run, tmp_path: Path) -> None:
    write_folder(tmp_path / "pets")
    study = ("--data", "folder:pets", "--image-size", "16", "--name", "pets", *SHORT)
    assert run(*study).returncode == 0
    cut(tmp_path / "pets" / "test" / "dog" / "1.jpg")
    longer = (*study, "--trials", "2", "--resume")
    assert "--skip-unreadable leaves such files out" in run(*longer).stderr
    done = run(*longer, "--skip-unreadable")
    assert done.returncode == 0, done.stderr
    assert "1 trial to run, 1 finished before" in done.stdout
    # Workers, exports and reruns read the study's file, which has learnt of it.
    assert "skip_unreadable = true" in Path("runs/pets/study.toml").read_text()
    # Without a training image, it would be another study.
    cut(tmp_path / "pets" / "train" / "cat" / "1.jpg")
    Path("runs/pets/study.toml").write_text(
        Path("runs/pets/study.toml").read_text().replace("skip_unreadable = true", "skip_unreadable = false")
    )
    refusal = run(*longer, "--skip-unreadable")
    assert refusal.returncode == 2
    assert "runs/pets: holds another study, it differs in data.skip_unreadable; choose another --name" in refusal.stderr


@pytest.mark.parametrize(
    ("broken", "is_whole"), [("test/dog/1.jpg", True), ("val/dog/1.jpg", False), ("train/dog/1.jpg", False)]
)
def test_training_is_whole_where_only_test_images_are_left_out(tmp_path: Path, broken: str, is_whole: bool) -> None:
    write_folder(tmp_path)
    cut(tmp_path / broken)
    data = load_folder("folder:pets", tmp_path, DataRequest(0, image_size=8, skip_unreadable=True))
    assert data.training_is_whole is is_whole
    assert data.notes == (f"1 unreadable image is left out, {tmp_path / broken}",)


# Arrays


def arrays(**changes: np.ndarray) -> dict[str, np.ndarray]:
    given = {}
    for part, count in (("train", 30), ("test", 12)):
        given[f"{part}_images"] = np.random.default_rng(0).random((count, 8, 8))
        given[f"{part}_labels"] = np.arange(count) % 3
    return given | changes


def test_a_changed_byte_of_cifars_test_images_is_rejected_first(run: Run, tmp_path: Path) -> None:
    write_cifar10_npz(tmp_path)
    file = tmp_path / "cifar10.npz"
    with zipfile.ZipFile(file) as archive:
        place = archive.getinfo("test_images.npy").header_offset + 5000
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    said = refused(run, "--data", "cifar10", "--data-dir", str(tmp_path))
    assert said == f"{file}: test_images must be readable, got: Bad CRC-32 for file 'test_images.npy'"


@pytest.mark.parametrize("value", [np.nan, -np.inf, 1e300])
def test_test_images_that_are_not_finite_are_rejected_first(run: Run, tmp_path: Path, value: float) -> None:
    bad = np.zeros((12, 8, 8))
    bad[11, 7, 7] = value
    np.savez_compressed(tmp_path / "a.npz", **arrays(test_images=bad))
    said = refused(run, "--data", "npz:a.npz")
    assert said == "a.npz: test_images must be finite numbers, got NaN or infinity"


def test_test_images_are_looked_through_in_pieces(tmp_path: Path) -> None:
    many = np.zeros((40_000, 32, 32), np.uint8)  # 41 MB
    few = np.zeros((30, 32, 32), np.uint8)
    changes = {"train_images": few, "test_images": many, "test_labels": np.arange(40_000) % 3}
    np.savez_compressed(tmp_path / "a.npz", **arrays(**changes))
    tracemalloc.start()
    try:
        load_data(f"npz:{tmp_path / 'a.npz'}", seed=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6


def test_a_damaged_array_is_reported_whatever_packed_it(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "plain.npz", **arrays())
    with (
        zipfile.ZipFile(tmp_path / "plain.npz") as plain,
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_LZMA) as packed,
    ):
        for name in plain.namelist():
            packed.writestr(name, plain.read(name))
        begin = packed.getinfo("test_images.npy").header_offset
    whole = bytearray((tmp_path / "a.npz").read_bytes())
    place = begin + 30 + len("test_images.npy") + 60  # behind the member's own header, in the midst of what it holds
    whole[place : place + 8] = b"\xff" * 8
    (tmp_path / "a.npz").write_bytes(whole)
    assert refused(run, "--data", "npz:a.npz").startswith("a.npz: ")


def with_header(path: Path, key: str, shape: tuple[int, ...]) -> None:
    """A data set of which one array says that it has another shape than it has."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays().items():
            member = BytesIO()
            header = {"descr": "|u1", "fortran_order": False, "shape": shape if name == key else array.shape}
            np.lib.format.write_array_header_1_0(member, header)
            archive.writestr(f"{name}.npy", member.getvalue() + bytes(array.size))


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ((10**12, 8, 8), "64,000,000,000,000"),
        ((10**30, 8, 8), "64,000,000,000,000,000,000,000,000,000,000"),
        ((29, 8, 8), "1,856"),
    ],
)
@pytest.mark.parametrize("key", ["train_images", "test_images"])
def test_an_array_that_claims_another_size_is_rejected(
    run: Run, tmp_path: Path, key: str, shape: tuple[int, ...], size: str
) -> None:
    with_header(tmp_path / "a.npz", key, shape)
    held = {"train_images": "1,920", "test_images": "768"}[key]
    assert refused(run, "--data", "npz:a.npz") == (
        f"a.npz: every array must be readable, got: {key}.npy has the shape {shape} of uint8, which is {size} bytes, "
        f"but holds {held}"
    )


def test_names_of_another_shape_are_rejected_unread(run: Run, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays())
    member = BytesIO()
    np.lib.format.write_array_header_1_0(member, {"descr": "<U3", "fortran_order": False, "shape": (10**30, 0)})
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("output_names.npy", member.getvalue())
    assert "output_names must be 3 strings, got <U3 of shape (1000000000" in refused(run, "--data", "npz:a.npz")


# MNIST


def mnist(run: Run) -> str:
    return refused(run, "--data", "mnist", "--data-dir", "data")


def write_part(part: str, count: int, side: int = 28, classes: int = 10) -> None:
    images = np.random.default_rng(0).integers(0, 256, (count, side, side), dtype=np.uint8)
    write_mnist_part(Path("data"), part, images, (np.arange(count) % classes).astype(np.uint8))


RAW = "data/MNIST/raw"
WHOLE = "the copy of mnist is incomplete or corrupt"


@pytest.mark.parametrize(
    ("part", "count", "side", "classes", "sentence"),
    [
        ("train", 1, 28, 10, f"{RAW}/train-labels-idx1-ubyte: every class must keep an example for training"),
        ("train", 5, 28, 5, f"{RAW}/train-labels-idx1-ubyte: every class must keep an example for training"),
        ("train", 100, 28, 1, f"{RAW}/train-labels-idx1-ubyte: every class must keep an example for training"),
        (
            "train",
            100,
            14,
            10,
            f"{RAW}/train-images-idx3-ubyte: mnist must have images of shape (28, 28), got (14, 14); load other",
        ),
        (
            "t10k",
            30,
            14,
            10,
            f"{RAW}/t10k-images-idx3-ubyte: mnist must have images of shape (28, 28), got (14, 14); load other",
        ),
        ("train", 0, 28, 10, f"{RAW}/train-images-idx3-ubyte: {WHOLE} (by its header it is empty)"),
        ("t10k", 0, 28, 10, f"{RAW}/t10k-images-idx3-ubyte: {WHOLE} (by its header it is empty)"),
        ("t10k", 30, 28, 11, f"{RAW}/t10k-labels-idx1-ubyte: {WHOLE} (labels must be 0..9, got 10)"),
    ],
)
def test_a_copy_of_mnist_that_is_something_else_is_rejected(
    run: Run, part: str, count: int, side: int, classes: int, sentence: str
) -> None:
    write_mnist(Path("data"))
    write_part(part, count, side, classes)
    assert mnist(run).startswith(sentence)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it ends in its header, after 0 bytes"),
        (bytes(5000), "it must begin with the bytes 0 0 8 3, got 0 0 0 0"),
        (
            struct.pack(">4B3I", 0, 0, 8, 3, 2**31 - 1, 2**31 - 1, 28) + bytes(1000),
            "by its header it has 129,127,208,395,707,777,068 bytes, it has 1,016",
        ),
    ],
)
@pytest.mark.parametrize("part", ["train", "t10k"])
def test_a_damaged_file_of_mnist_is_named(run: Run, part: str, content: bytes, reason: str) -> None:
    write_mnist(Path("data"))
    file = f"{RAW}/{part}-images-idx3-ubyte"
    Path(file).write_bytes(content)
    assert mnist(run) == f"{file}: {WHOLE} ({reason}); delete it to download it again"


def test_a_file_of_mnists_format_has_no_fault(tmp_path: Path) -> None:
    write_mnist(tmp_path)
    raw = tmp_path / "MNIST" / "raw"
    assert idx_fault(raw / "t10k-images-idx3-ubyte", 3) == ""
    # A header of 4 bytes and one length of 4, then 30 labels.
    (raw / "t10k-labels-idx1-ubyte").write_bytes((raw / "t10k-labels-idx1-ubyte").read_bytes()[:20])
    assert idx_fault(raw / "t10k-labels-idx1-ubyte", 1) == "by its header it has 38 bytes, it has 20"


# Functions that end the process


OWN = """
import sys
import torch
from torch.utils.data import Dataset, TensorDataset

def part(count):
    return TensorDataset(torch.randn(count, 1, 8, 8), torch.arange(count) % 2)

class Ends(Dataset):
    def __len__(self): return 4
    def __getitem__(self, row): sys.exit(0)

def ends(*args, **kwargs): sys.exit(0)
def items(): return part(20), part(8), Ends()

class Module:
    def setup(self, stage): sys.exit(0)
    def train_dataloader(self): return None

class Net(torch.nn.Linear):
    def forward(self, inputs): sys.exit(0)

def net(num_classes): return Net(64, num_classes)
"""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--data", "sys:exit"), "the data must be of your own or of an installed package, sys is of Python itself"),
        (("--data", "own.py:ends"), "data set 'own.py:ends': the function failed with SystemExit: 0 (own.py, line 13)"),
        (("--data", "own.py:items"), "data set 'own.py:items', test: reading item 0 failed with SystemExit: 0"),
        (("--data", "own.py:Module"), "data set 'own.py:Module': its data module failed with SystemExit: 0"),
        (("--model", "own.py:ends"), "model own.py:ends: failed when called: SystemExit: 0 (own.py, line 13)"),
        (("--model", "own.py:net"), "the network cannot process an input of shape (1, 8, 8)"),
        (("--loss", "own.py:ends"), "the loss own.py:ends failed with SystemExit: 0 (own.py, line 13)"),
        (("--metric", "own.py:ends"), "data set 'digits': the metric ends failed with SystemExit: 0"),
    ],
)
def test_a_function_that_ends_the_process_is_rejected(
    run: Run, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    said = refused(run, *arguments)
    assert said.replace(f"{tmp_path}/", "").startswith(sentence)


def test_test_examples_that_were_looked_through_are_not_read_again(tmp_path: Path) -> None:
    """By the processes of a study: the one that started them has just done it."""
    (tmp_path / "own.py").write_text(OWN)
    data = resolve(None, {"target_sparsity": 0.5, "data": f"{tmp_path}/own.py:items"}).data
    assert len(load_study_data(data, seed=0, check_test=False).train) > 0
    with pytest.raises(DataError, match="test: reading item 0 failed with SystemExit"):
        load_study_data(data, seed=0)


def test_an_item_of_a_users_test_split_that_cannot_be_read_is_rejected_first(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        OWN.replace("sys.exit(0)", "return torch.full((1, 8, 8), row / 0 if row else 1), 0")
    )
    with pytest.raises(DataError, match="test: reading item 1 failed with ZeroDivisionError"):
        load_data(f"{tmp_path}/own.py:items", seed=0)
