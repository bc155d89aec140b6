"""Random crops and horizontal flips of training images, different in every epoch: on tensors, a batch at a time.

The result for an image is a function of the training's seed, the epoch and the image's row alone. It does not depend
on the batch or the process, so a resumed training gets the same images.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sca_search.data.splits import Batch, BatchSource, EpochSeed

# 4 pixels on each side of 32, as in the paper on CIFAR; 8 of 64, where it gives no number.
_SIDE_PER_PADDING = 8
# A random stream separate from the one that shuffles.
_STREAM = 1


@dataclass(frozen=True, eq=False)
class Draws:
    """The random crop and flip of each image."""

    corners: Tensor  # (N, 2): row and column of the crop in the padded image, from 0 to twice the padding
    flipped: Tensor  # (N,) bool


def padding_of(side: int) -> int:
    """Pixels added at either end of a side: an eighth of it, rounded up."""
    return -(-side // _SIDE_PER_PADDING)


def draw(count: int, padding: tuple[int, int], epoch_seed: EpochSeed) -> Draws:
    """The draws of all images of a split at once, a hundred times faster than one draw per image."""
    generator = np.random.default_rng([*epoch_seed, _STREAM])
    corners = generator.integers(0, [2 * pixels + 1 for pixels in padding], (count, 2))
    return Draws(torch.from_numpy(corners), torch.from_numpy(generator.random(count) < 0.5))


def crop_flip(images: Tensor, draws: Draws, padding: tuple[int, int], fill: Tensor) -> Tensor:
    """Each image padded with `fill` (one value per channel), cropped to its size at its corner, and maybe flipped.

    One gather per batch: torchvision's crop and flip take the same corner for a whole batch.
    """
    count, channels, height, width = images.shape
    rows, columns = padding
    wide = width + 2 * columns
    padded = fill.view(1, -1, 1, 1).expand(count, channels, height + 2 * rows, wide).clone()
    padded[:, :, rows : rows + height, columns : columns + width] = images
    across = torch.arange(width)
    across = torch.where(draws.flipped[:, None], width - 1 - across, across) + draws.corners[:, 1:]
    down = torch.arange(height) + draws.corners[:, :1]
    places = (down[:, :, None] * wide + across[:, None, :]).view(count, 1, -1).expand(-1, channels, -1)
    return padded.view(count, channels, -1).gather(2, places).view(images.shape)


@dataclass(frozen=True, eq=False)
class CropFlipSplit(BatchSource):
    """A split of images whose batches are cropped and flipped in training, and unchanged otherwise."""

    split: BatchSource
    image_shape: tuple[int, ...]
    fill: Tensor  # the normalized value of black, per channel

    def __len__(self) -> int:
        return len(self.split)

    def fetch(self, chunks: Sequence[Tensor], epoch_seed: EpochSeed | None = None, /) -> Iterator[Batch]:
        batches = self.split.fetch(chunks, epoch_seed)
        if epoch_seed is None:
            yield from batches
            return
        padding = padding_of(self.image_shape[1]), padding_of(self.image_shape[2])
        draws = draw(len(self), padding, epoch_seed)
        for (images, *rest), rows in zip(batches, chunks, strict=True):
            own = Draws(draws.corners.index_select(0, rows), draws.flipped.index_select(0, rows))
            yield (crop_flip(images, own, padding, self.fill), *rest)
