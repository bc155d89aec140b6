"""Small data sets in the files and folders that the real ones come in."""

import hashlib
import pickle
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

WNIDS = ("n03", "n01", "n02")  # wnids.txt is in no order
WORDS = "n01\tgoldfish, Carassius auratus\nn02\tcrane\nn03\tcrane, lifting device\nn99\tnobody\n"


def jpeg(path: Path, seed: object, size: tuple[int, int] = (64, 64), mode: str = "RGB") -> None:
    """Noise, so that a file cut in its middle is cut in its pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (size[1], size[0], 3) if mode == "RGB" else (size[1], size[0])
    pixels = np.random.default_rng(zlib.crc32(repr(seed).encode())).integers(0, 256, shape, np.uint8)
    Image.fromarray(pixels).save(path, "JPEG")


def write_tiny_imagenet(folder: Path) -> Path:
    """Ten training images per class, two for validation, as Stanford's archive lays them out."""
    root = folder / "tiny-imagenet-200"
    for wnid in WNIDS:
        images = root / "train" / wnid
        for number in range(10):
            mode = "L" if number == 3 else "RGB"  # a few of the real ones are gray
            jpeg(images / "images" / f"{wnid}_{number}.JPEG", (wnid, number), mode=mode)
        lines = [f"{wnid}_{number}.JPEG\t0\t0\t63\t63\n" for number in range(10)]
        (images / f"{wnid}_boxes.txt").write_text("".join(lines))
    rows = []
    for number in range(6):
        jpeg(root / "val" / "images" / f"val_{number}.JPEG", number)
        rows.append(f"val_{number}.JPEG\t{WNIDS[number % 3]}\t0\t32\t44\t62\n")
    (root / "val" / "val_annotations.txt").write_text("".join(rows))
    (root / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    (root / "words.txt").write_text(WORDS)
    jpeg(root / "test" / "images" / "test_0.JPEG", 0)
    return root


def write_imagenet(folder: Path) -> Path:
    root = folder / "ILSVRC2012"
    for wnid in ("n02", "n01"):
        for number in range(10):
            jpeg(root / "train" / wnid / f"{wnid}_{number}.JPEG", (wnid, number), (50 + number, 40))
        for number in range(3):
            jpeg(root / "val" / wnid / f"ILSVRC2012_val_{wnid}{number}.JPEG", number, (40, 50))
    return root


def write_mnist_part(root: Path, part: str, images: np.ndarray, labels: np.ndarray) -> None:
    """The format of MNIST's files: magic number, sizes in big-endian, bytes."""
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    head = struct.pack(">4B3I", 0, 0, 8, 3, *images.shape)
    (raw / f"{part}-images-idx3-ubyte").write_bytes(head + images.tobytes())
    (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, len(labels)) + labels.tobytes())


def write_mnist(root: Path) -> None:
    """A hundred training images, thirty of the test."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 100), ("t10k", 30)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        write_mnist_part(root, part, images, (np.arange(count) % 10).astype(np.uint8))


def write_cifar10_npz(root: Path) -> None:
    generator = np.random.default_rng(0)
    parts = {"train": 40, "test": 20}
    images = {f"{name}_images": generator.integers(0, 256, (n, 32, 32, 3), np.uint8) for name, n in parts.items()}
    np.savez(root / "cifar10.npz", **images, **{f"{name}_labels": np.arange(n) % 10 for name, n in parts.items()})


def write_cifar_batches(root: Path, kind: Any) -> tuple[type, np.ndarray]:
    """The pickled batches of CIFAR-10 or CIFAR-100, four images each; `kind` is torchvision's class.

    With the class as it is for these files, whose MD5s are others, and with the training images, channels first.
    """
    folder, generator = root / kind.base_folder, np.random.default_rng(0)
    folder.mkdir(parents=True)
    label, images = ("fine_labels" if "100" in kind.base_folder else "labels"), []

    def batch(name: str) -> list[str]:
        data = generator.integers(0, 256, (4, 3072), np.uint8)
        images.append(data.reshape(-1, 3, 32, 32))
        (folder / name).write_bytes(pickle.dumps({"data": data, label: [0, 1, 0, 1]}))
        return [name, hashlib.md5((folder / name).read_bytes()).hexdigest()]

    meta = kind.meta["filename"]
    (folder / meta).write_bytes(pickle.dumps({kind.meta["key"]: ["apple", "bear"]}))
    changed = {
        "train_list": [batch(name) for name, _ in kind.train_list],
        "test_list": [batch(name) for name, _ in kind.test_list],
        "meta": kind.meta | {"md5": hashlib.md5((folder / meta).read_bytes()).hexdigest()},
    }
    return type(kind.__name__, (kind,), changed), np.concatenate(images[: len(kind.train_list)])
