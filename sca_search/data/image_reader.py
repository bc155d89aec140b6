"""One image file as a square tensor: its center, or a random crop for training."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from sca_search.errors import DataError

# Everything Pillow raises on a file that is not an image, is truncated, or is absurdly large;
# its PNG reader raises SyntaxError for a broken chunk.
_UNREADABLE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)

Box = tuple[float, float, float, float]  # left, top, right, bottom in pixels

# The random crop, as ImageNet's networks are trained: its fraction of the image's area, and its width by height.
AREA = (0.08, 1.0)
ASPECT = (3 / 4, 4 / 3)
# A crop that does not fit into the image is drawn again, at most this many times; in a long image none may fit.
_TRIES = 10


@dataclass(frozen=True)
class ImageReader:
    """Reads a file as a square image: its center crop, resized."""

    size: int
    channels: int  # 1: gray, 3: red, green, blue
    center: float = 1.0  # crop relative to the shorter side; 224/256: as if resized to 256, then cropped to 224

    @property
    def image_shape(self) -> tuple[int, int, int]:
        return self.channels, self.size, self.size

    def check(self, path: Path, /) -> None:
        """DataError as reading would raise it, but faster: a JPEG is decoded at an eighth of its size."""
        with _opened(path) as image:
            _load_small(image)
            _convert(image.crop((0, 0, 1, 1)), self.channels, path)

    def __call__(self, path: Path, generator: np.random.Generator | None = None, /) -> Tensor:
        """The image as float32 CHW in 0..1; with a generator, a random crop of it, flipped with probability 1/2."""
        with _opened(path) as image:
            colored = _convert(image, self.channels, path)
            box = random_box(colored.size, generator) if generator else center_box(colored.size, self.center)
            square = colored.resize((self.size, self.size), Image.Resampling.BILINEAR, box=box)
        pixels = (np.asarray(square, dtype=np.float32) / 255).reshape(self.size, self.size, self.channels)
        if generator and generator.random() < 0.5:
            pixels = pixels[:, ::-1]
        return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


def center_box(size: tuple[int, int], fraction: float) -> Box:
    """The central square of an image, with a side of this fraction of the shorter one."""
    side = min(size) * fraction
    left, top = (size[0] - side) / 2, (size[1] - side) / 2
    return left, top, left + side, top + side


def random_box(size: tuple[int, int], generator: np.random.Generator) -> Box:
    """A random crop: area uniform in AREA, aspect log-uniform in ASPECT, position uniform.

    As torchvision's RandomResizedCrop.get_params, which draws from torch's global generator: here the result depends
    on the seed, epoch and row alone.
    """
    width, height = size
    for _ in range(_TRIES):
        area = width * height * generator.uniform(*AREA)
        aspect = math.exp(generator.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = (int(generator.integers(0, slack + 1)) for slack in (width - wide, height - high))
            return left, top, left + wide, top + high
    # the largest central crop with an allowed aspect
    breadth, rise = min(width, height * ASPECT[1]), min(height, width / ASPECT[0])
    x, y = (width - breadth) / 2, (height - rise) / 2
    return x, y, x + breadth, y + rise


def is_gray(path: Path) -> bool:
    """Whether a file is grayscale by its header."""
    with _opened(path) as image:
        return image.mode in {"L", "1"}


def is_readable(path: Path) -> bool:
    """Whether a file can be read to its end."""
    try:
        with _opened(path) as image:
            _load_small(image)
    except DataError:
        return False
    return True


def _load_small(image: Image.Image) -> None:
    """Read a file to its end; a JPEG is read completely but decoded at an eighth of its size."""
    image.draft(image.mode, (1, 1))
    image.load()


def _convert(image: Image.Image, channels: int, path: Path) -> Image.Image:
    if image.mode[0] in "IF":
        # Pillow would clip these to 255 and return a white image.
        raise DataError(f"{path}: images must have 8 bits per channel, this one has mode {image.mode!r}")
    if "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns when it converts a palette with transparency to RGB directly
    return image.convert("L" if channels == 1 else "RGB")


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    try:
        with Image.open(path) as image:
            yield image
    except _UNREADABLE as error:
        reason = " ".join(str(error).split())
        rule = f"{path}: every image must be readable, this one is not ({reason})"
        raise DataError(f"{rule}; --skip-unreadable leaves such files out") from None
