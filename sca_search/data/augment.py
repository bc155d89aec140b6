"""Training images moved by a few pixels and mirrored, anew in each epoch: as tensors, a whole batch at a time.

What an image becomes follows from the training's seed, the epoch and the image's row alone: neither the batch that it
is in nor who read it makes a difference, and a training that goes on sees what it would have seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sca_search.data.splits import Batch, Batches, Fetches, Moment

# 4 pixels on each side of 32, as the paper has it on CIFAR; 8 of 64, where it gives no number.
_PAD_SHARE = 8
# Apart from the stream that shuffles.
_STREAM = 1


@dataclass(frozen=True, eq=False)
class Draws:
    """What happens to each image: where the part begins in the padded one, and whether it is mirrored."""

    corners: Tensor  # (N, 2): row and column, from 0 to twice the padding
    mirrored: Tensor  # (N,) bool

    def take(self, rows: Tensor) -> "Draws":
        return Draws(self.corners.index_select(0, rows), self.mirrored.index_select(0, rows))


def padding_of(side: int) -> int:
    """Pixels that are put on either end of a side: an eighth of it, rounded up."""
    return -(-side // _PAD_SHARE)


def draw(count: int, padding: tuple[int, int], moment: Moment) -> Draws:
    """Of all images of a split at once, which costs a hundredth of a draw for each."""
    generator = np.random.default_rng([*moment, _STREAM])
    corners = generator.integers(0, [2 * pixels + 1 for pixels in padding], (count, 2))
    return Draws(torch.from_numpy(corners), torch.from_numpy(generator.random(count) < 0.5))


def crop_flip(images: Tensor, draws: Draws, padding: tuple[int, int], fill: Tensor) -> Tensor:
    """Each image padded with `fill` (a value a channel), cut back to its size at its corner, mirrored or not."""
    count, channels, height, width = images.shape
    rows, columns = padding
    wide = width + 2 * columns
    padded = fill.view(1, -1, 1, 1).expand(count, channels, height + 2 * rows, wide).clone()
    padded[:, :, rows : rows + height, columns : columns + width] = images
    across = torch.arange(width)
    across = torch.where(draws.mirrored[:, None], width - 1 - across, across) + draws.corners[:, 1:]
    down = torch.arange(height) + draws.corners[:, :1]
    places = (down[:, :, None] * wide + across[:, None, :]).view(count, 1, -1).expand(-1, channels, -1)
    return padded.view(count, channels, -1).gather(2, places).view(images.shape)


@dataclass(frozen=True, eq=False)
class CropFlipSplit:
    """A split of images whose batches are moved and mirrored at each moment of a training, and else as they are."""

    split: Fetches
    image_shape: tuple[int, ...]
    fill: Tensor  # what black is, a value a channel, once images are normalised

    def __len__(self) -> int:
        return len(self.split)

    def batches(self, size: int, *, seed: int | None = None) -> Batches:
        """As the split's own batches."""
        return Batches(self, size, seed=seed)

    def fetch(self, chunks: Sequence[Tensor], moment: Moment | None = None, /) -> Iterator[Batch]:
        """One batch for each list of rows."""
        batches = self.split.fetch(chunks, moment)
        if moment is None:
            yield from batches
            return
        padding = padding_of(self.image_shape[1]), padding_of(self.image_shape[2])
        draws = draw(len(self), padding, moment)
        for (images, *rest), rows in zip(batches, chunks, strict=True):
            yield (crop_flip(images, draws.take(rows), padding, self.fill), *rest)
